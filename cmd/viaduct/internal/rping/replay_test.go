package rping

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"viaduct/internal/replay"
	"viaduct/internal/testkit"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
	"viaduct/iwarp"
)

// TestReplay replays recorded clients of Linux to our server, and recorded servers to our client.
// The replay replaces the recorded buffer addresses by ours, and sends all other bytes as recorded.
func TestReplay(t *testing.T) {
	files, _ := filepath.Glob("../../../../interop/testdata/siw-rping-*.pcap")
	if len(files) < 5 {
		t.Fatal(files)
	}
	for _, file := range files {
		rounds, size := 3, 64
		if strings.Contains(file, "big") {
			rounds, size = 2, 20000
		}
		c := testkit.Conversations(t, file)[0]
		t.Run("client/"+filepath.Base(file), func(t *testing.T) { replayClient(t, c, rounds, size) })
		t.Run("server/"+filepath.Base(file), func(t *testing.T) { replayServer(t, c, rounds, size) })
	}
}

// message reads a message of our endpoint, which must be of kind op.
func message(t *testing.T, p *replay.Player, op rdmap.Opcode) []byte {
	t.Helper()
	got, _, body := p.Message()
	if got != op {
		t.Fatalf("%v, want %v", got, op)
	}
	return body
}

// data reads a message of our endpoint that carries the data of a round.
func data(t *testing.T, p *replay.Player, op rdmap.Opcode, size int) {
	t.Helper()
	if body := message(t, p, op); len(body) != size {
		t.Fatalf("%v of %d bytes, want %d", op, len(body), size)
	}
}

func replayClient(t *testing.T, c testkit.Conversation, rounds, size int) {
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	ln, err := iwarp.Listen("127.0.0.1:0", Config(nil))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	served := make(chan error, 1)
	got := 0
	go func() {
		r, err := ln.AcceptRequest(ctx)
		if err == nil {
			_, err = Serve(ctx, r, Options{OnRound: func(i int, data []byte) {
				want := make([]byte, size)
				fill(want, i)
				if err := compare(want, data, i); err != nil {
					t.Error(err)
				}
				got++
			}})
		}
		served <- err
	}()
	p := replay.Connect(t, ln.Addr().String(), c)
	for range rounds {
		p.Play(rdmap.Send)
		r, _, err := rdmap.ParseReadRequest(message(t, p, rdmap.ReadRequestOp))
		if err != nil {
			t.Fatal(err)
		}
		p.PlayAt(rdmap.ReadResponse, p.Names(), iwarp.RemoteAddr{STag: r.SinkSTag, TO: r.SinkTO})
		message(t, p, rdmap.Send)
		p.Play(rdmap.Send)
		data(t, p, rdmap.Write, size)
		message(t, p, rdmap.Send)
	}
	p.End()
	if err := <-served; err != nil || got != rounds {
		t.Errorf("%d rounds, %v", got, err)
	}
}

func replayServer(t *testing.T, c testkit.Conversation, rounds, size int) {
	req, _, _ := mpa.ParseFrame(c.Client)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		n, err := Dial(ctx, l.Addr().String(), &iwarp.Config{Interop: iwarp.Interop{ClientServer: !req.Conn.PeerToPeer, NoNudge: true}},
			Options{Size: size, Count: rounds, Verify: true})
		if err == nil && n != rounds {
			err = errors.New("too few rounds")
		}
		done <- err
	}()
	p := replay.Accept(t, l, c)
	for range rounds {
		source := parseAd(message(t, p, rdmap.Send))
		p.PlayAt(rdmap.ReadRequestOp, p.Names(), source.at)
		data(t, p, rdmap.ReadResponse, size)
		p.Play(rdmap.Send)
		sink := parseAd(message(t, p, rdmap.Send))
		p.PlayAt(rdmap.Write, p.Names(), sink.at)
		p.Play(rdmap.Send)
	}
	p.End()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
