package rping

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"viaduct/internal/testkit"
	"viaduct/iwarp"
	"viaduct/iwarp/ddp"
	"viaduct/iwarp/mpa"
	"viaduct/iwarp/rdmap"
)

// TestReplay puts a recorded client of Linux in front of our server, and a
// recorded server in front of our client. What one side chose in the recording
// and ours chooses now (where its buffers are) is exchanged in the recorded
// bytes; everything else is sent as it was.
func TestReplay(t *testing.T) {
	files, _ := filepath.Glob("../../interop/testdata/siw-rping-*.pcap")
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

// A player plays one side of a recording.
type player struct {
	t        *testing.T
	c        net.Conn
	left     [][]byte // recorded ULPDUs of this side still to be sent
	enc      mpa.Encoder
	dec      mpa.Decoder
	buf      []byte
	lastRead rdmap.ReadRequest
	lastAd   ad
}

func ulpdus(t *testing.T, b []byte, crc bool) (us [][]byte) {
	d := mpa.Decoder{CRC: crc}
	for len(b) > 0 {
		u, n, err := d.Next(b)
		if err != nil || n == 0 {
			t.Fatal(err)
		}
		us = append(us, bytes.Clone(u))
		b = b[n:]
	}
	return us
}

// next reads a ULPDU of ours; nil at the end.
func (p *player) next() []byte {
	for {
		u, n, err := p.dec.Next(p.buf)
		if err != nil {
			p.t.Fatal(err)
		}
		if n > 0 {
			u = bytes.Clone(u)
			p.buf = p.buf[n:]
			return u
		}
		var b [65536]byte
		p.c.SetReadDeadline(time.Now().Add(20 * time.Second))
		k, err := p.c.Read(b[:])
		p.buf = append(p.buf, b[:k]...)
		if err == io.EOF && k == 0 {
			return nil
		}
		if err != nil && k == 0 {
			p.t.Fatal(err)
		}
	}
}

// message reads a whole message of ours.
func (p *player) message() (op rdmap.Opcode, body []byte) {
	for {
		u := p.next()
		if u == nil {
			p.t.Fatal("our side has closed")
		}
		_, op = rdmap.ParseControl(u[1])
		body = append(body, u[ddp.HeaderLen(u[0]):]...)
		if ddp.IsLast(u[0]) {
			if op == rdmap.ReadRequestOp {
				p.lastRead, _, _ = rdmap.ParseReadRequest(body)
			}
			if op == rdmap.Send {
				p.lastAd = parseAd(body)
			}
			return op, body
		}
	}
}

// play sends recorded ULPDUs up to the end of a message of kind op.
func (p *player) play(op rdmap.Opcode) {
	p.t.Helper()
	first := uint64(0)
	for n := 0; ; n++ {
		if len(p.left) == 0 {
			p.t.Fatalf("the recording has no %v any more", op)
		}
		u := bytes.Clone(p.left[0])
		p.left = p.left[1:]
		if _, got := rdmap.ParseControl(u[1]); got != op {
			p.t.Fatalf("recorded %v, expected %v", got, op)
		}
		to := binary.BigEndian.Uint64(u[6:])
		if n == 0 {
			first = to
		}
		switch op {
		case rdmap.ReadResponse:
			binary.BigEndian.PutUint32(u[2:], p.lastRead.SinkSTag)
			binary.BigEndian.PutUint64(u[6:], p.lastRead.SinkTO+to-first)
		case rdmap.Write:
			binary.BigEndian.PutUint32(u[2:], p.lastAd.at.STag)
			binary.BigEndian.PutUint64(u[6:], p.lastAd.at.TO+to-first)
		case rdmap.ReadRequestOp:
			binary.BigEndian.PutUint32(u[18+16:], p.lastAd.at.STag)
			binary.BigEndian.PutUint64(u[18+20:], p.lastAd.at.TO)
		}
		if _, err := p.c.Write(p.enc.Append(nil, u)); err != nil {
			p.t.Fatal(err)
		}
		if ddp.IsLast(u[0]) {
			return
		}
	}
}

func newPlayer(t *testing.T, c net.Conn, body []byte, crc bool) *player {
	return &player{t: t, c: c, left: ulpdus(t, body, crc)}
}

// frameFrom reads a start-up frame of ours.
func frameFrom(t *testing.T, c net.Conn) mpa.Frame {
	var b []byte
	for {
		f, _, err := mpa.ParseFrame(b)
		if err == nil {
			return f
		}
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatal(err)
		}
		var one [1]byte
		if _, err := c.Read(one[:]); err != nil {
			t.Fatal(err)
		}
		b = append(b, one[0])
	}
}

func listenTCP(t *testing.T) net.Listener {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func replayClient(t *testing.T, c testkit.Conversation, rounds, size int) {
	req, n, _ := mpa.ParseFrame(c.Client)
	rep, _, _ := mpa.ParseFrame(c.Server)
	l := listenTCP(t)
	ln := iwarp.NewListener(l, Config(nil))
	defer ln.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
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
	nc, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	p := newPlayer(t, nc, c.Client[n:], req.CRC || rep.CRC)
	nc.Write(c.Client[:n])
	f := frameFrom(t, nc)
	crc := f.CRC || req.CRC
	p.enc, p.dec = mpa.Encoder{CRC: crc}, mpa.Decoder{CRC: crc}
	if req.Conn.PeerToPeer {
		p.rtr()
	}
	for range rounds {
		p.play(rdmap.Send)
		if op, _ := p.message(); op != rdmap.ReadRequestOp {
			t.Fatal(op)
		}
		p.play(rdmap.ReadResponse)
		if op, _ := p.message(); op != rdmap.Send {
			t.Fatal(op)
		}
		p.play(rdmap.Send)
		if op, body := p.message(); op != rdmap.Write || len(body) != size {
			t.Fatal(op, len(body))
		}
		if op, _ := p.message(); op != rdmap.Send {
			t.Fatal(op)
		}
	}
	nc.(*net.TCPConn).CloseWrite()
	if u := p.next(); u != nil {
		t.Errorf("%x after the end", u)
	}
	if err := <-served; err != nil || got != rounds {
		t.Errorf("%d rounds, %v", got, err)
	}
}

// rtr sends the recorded ready message.
func (p *player) rtr() {
	u := p.left[0]
	p.left = p.left[1:]
	if _, err := p.c.Write(p.enc.Append(nil, u)); err != nil {
		p.t.Fatal(err)
	}
}

func replayServer(t *testing.T, c testkit.Conversation, rounds, size int) {
	req, _, _ := mpa.ParseFrame(c.Client)
	rep, m, _ := mpa.ParseFrame(c.Server)
	l := listenTCP(t)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		n, err := Dial(ctx, l.Addr().String(), &iwarp.Config{ClientServer: !req.Conn.PeerToPeer, NoNudge: true},
			Options{Size: size, Count: rounds, Verify: true})
		if err == nil && n != rounds {
			err = errors.New("too few rounds")
		}
		done <- err
	}()
	nc, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	p := newPlayer(t, nc, c.Server[m:], req.CRC || rep.CRC)
	f := frameFrom(t, nc)
	nc.Write(c.Server[:m])
	crc := f.CRC || rep.CRC
	p.enc, p.dec = mpa.Encoder{CRC: crc}, mpa.Decoder{CRC: crc}
	if req.Conn.PeerToPeer {
		if u := p.next(); len(u) != 14 {
			t.Fatalf("ready message %x", u)
		}
	}
	for range rounds {
		if op, _ := p.message(); op != rdmap.Send {
			t.Fatal(op)
		}
		p.play(rdmap.ReadRequestOp)
		if op, body := p.message(); op != rdmap.ReadResponse || len(body) != size {
			t.Fatal(op, len(body))
		}
		p.play(rdmap.Send)
		if op, _ := p.message(); op != rdmap.Send {
			t.Fatal(op)
		}
		p.play(rdmap.Write)
		p.play(rdmap.Send)
	}
	nc.(*net.TCPConn).CloseWrite()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
