package rping

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"viaduct/internal/testkit"
	"viaduct/iwarp"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestRounds(t *testing.T) {
	l, err := iwarp.Listen("127.0.0.1:0", Config(nil))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	for _, v := range []struct {
		name string
		cfg  iwarp.Config
	}{{"default", iwarp.Config{}}, {"plain", iwarp.Config{Interop: iwarp.Interop{Plain: true}}}, {"client-server", iwarp.Config{Interop: iwarp.Interop{ClientServer: true}}}} {
		for _, size := range []int{MinSize, DefaultSize, 4096, MaxSize} {
			t.Run(fmt.Sprintf("%s/%d", v.name, size), func(t *testing.T) {
				served := make(chan error, 1)
				n := 0
				go func() {
					r, err := l.AcceptRequest(ctx)
					if err == nil {
						var rounds int
						rounds, err = Serve(ctx, r, Options{OnRound: func(i int, data []byte) {
							if i != n || len(data) != size ||
								!strings.HasPrefix(string(data), fmt.Sprintf("rdma-ping-%d: ", i)) {
								t.Errorf("round %d: %.30q", i, data)
							}
							n++
						}})
						if rounds != 50 {
							err = fmt.Errorf("server saw %d rounds: %w", rounds, err)
						}
					}
					served <- err
				}()
				rounds, err := Dial(ctx, l.Addr().String(), &v.cfg, Options{Size: size, Count: 50, Verify: true})
				if err != nil || rounds != 50 {
					t.Errorf("client: %d rounds, %v", rounds, err)
				}
				if err := <-served; err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// TestPeerLeaves: the server ends if the client closes after a message not handled by the server,
// although no posted receive is left to report the end.
func TestPeerLeaves(t *testing.T) {
	l, err := iwarp.Listen("127.0.0.1:0", Config(nil))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	left := make(chan struct{})
	go func() {
		defer close(left)
		q, err := iwarp.Dial(ctx, l.Addr().String(), Config(nil))
		if err != nil {
			return
		}
		q.Post(iwarp.SendWR{SG: []iwarp.SGE{iwarp.Buf(make([]byte, adLen))}})
		q.CloseWrite()
		<-ctx.Done()
		q.Close()
	}()
	r, err := l.AcceptRequest(ctx)
	if err != nil {
		t.Fatal(err)
	}
	e, err := New(r.QueuePair(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	q, err := r.Accept(nil)
	if err != nil {
		t.Fatal(err)
	}
	<-q.PeerClosed()
	if _, err := e.hear(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := e.hear(ctx); err != io.EOF {
		t.Errorf("%v, want EOF", err)
	}
	cancel()
	q.Close()
	<-left
}

func TestMismatch(t *testing.T) {
	a, b := make([]byte, 64), make([]byte, 64)
	fill(a, 3)
	fill(b, 3)
	if err := compare(a, b, 3); err != nil {
		t.Error(err)
	}
	b[40]++
	if err := compare(a, b, 3); !errors.Is(err, ErrMismatch) || !strings.Contains(err.Error(), "byte 40") {
		t.Error(err)
	}
}

// TestText: fill makes the text captured from rping, for rounds 0 and 1 of 64 bytes.
func TestText(t *testing.T) {
	for n, want := range []string{
		"rdma-ping-0: ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqr\x00",
		"rdma-ping-1: BCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrs\x00",
	} {
		b := make([]byte, 64)
		fill(b, n)
		if string(b) != want {
			t.Errorf("round %d: %q, want %q", n, b, want)
		}
	}
	b := make([]byte, 64)
	if fill(b, 58); b[14] != 'A' || string(text([]byte("ab\x00c"))) != "ab\x00" || string(text([]byte("ab"))) != "ab" {
		t.Errorf("%q", b)
	}
}

func TestSize(t *testing.T) {
	for _, n := range []int{1, MinSize - 1, MaxSize + 1} {
		if _, err := New(nil, Options{Size: n}); err == nil {
			t.Errorf("size %d accepted", n)
		}
	}
}
