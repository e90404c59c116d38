package fcip

import (
	"context"
	"net"
	"strings"
	"testing"

	"viaduct/internal/fc"
	"viaduct/internal/testkit"
	"viaduct/samehost"
)

// TestSameHost: a link uses shared memory if both ends want it. The link carries frames in both
// directions, and the end of the link is detected.
func TestSameHost(t *testing.T) {
	for _, tc := range []struct {
		listener, dialer samehost.Policy
		shared           bool
		why              string // expected reason why the dialer has TCP, or no link
	}{
		{samehost.Auto, samehost.Auto, true, ""},
		{samehost.Require, samehost.Require, true, ""},
		{samehost.Auto, samehost.Off, false, "turned off"},
		{samehost.Off, samehost.Auto, false, "does not offer"},
		{samehost.Off, samehost.Require, false, "does not offer"},
	} {
		t.Run(tc.listener.String()+" "+tc.dialer.String(), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
			defer cancel()
			var x, y *Link
			var err error
			for {
				x, y, err = linked(t, ctx, tc.listener, tc.dialer)
				if err != nil || !late(x.Path()) {
					break
				}
				x.Close()
				y.Close()
			}
			if tc.dialer == samehost.Require && !tc.shared {
				if err == nil || !strings.Contains(err.Error(), tc.why) {
					t.Errorf("dial: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if p := x.Path(); p.SharedMemory != tc.shared || !strings.Contains(p.Why, tc.why) {
				t.Errorf("dialer: %v", p)
			}
			if p := y.Path(); p.SharedMemory != tc.shared {
				t.Errorf("acceptor: %v", p)
			}
			sx, sy := newSink(), newSink()
			x.Start(sx)
			y.Start(sy)
			for i, l := range []*Link{x, y} {
				l.Send(&fc.Frame{SOF: fc.SOFi3, EOF: fc.EOFt, Payload: []byte{byte(i)}})
				l.Flush()
				if got := <-[]*sink{sy, sx}[i].frames; got != string([]byte{byte(i)}) {
					t.Errorf("got %q", got)
				}
			}
			x.Close()
			select {
			case <-sy.down:
			case <-ctx.Done():
				t.Error("the other end does not hear of the end")
			}
			y.Close()
		})
	}
}

// linked makes a link with a new listener. x is the dialer's end.
func linked(t *testing.T, ctx context.Context, listener, dialer samehost.Policy) (x, y *Link, err error) {
	cfg := Config{FabricName: 2, SameHost: listener}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if ln, err = cfg.Listen(ln); err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	links := make(chan *Link, 1)
	go func() {
		nc, err := ln.Accept()
		if err != nil {
			return
		}
		l, err := NewAcceptor(cfg).Accept(ctx, nc)
		if err != nil {
			return
		}
		links <- l
	}()
	if x, err = Dial(ctx, ln.Addr().String(), Config{FabricName: 1, Peer: 2, SameHost: dialer}); err != nil {
		return nil, nil, err
	}
	return x, testkit.Await(t, "the accepted link", links), nil
}

// late reports whether a link uses TCP because the listener was late. Auto gives a listener a
// fraction of a second, which a busy machine may exceed.
func late(p samehost.Path) bool {
	return strings.Contains(p.Why, "in time") || strings.Contains(p.Why, "has not accepted")
}

// TestSameHostRequired: an acceptor that requires shared memory refuses a connection without it.
func TestSameHostRequired(t *testing.T) {
	addr, _, errs := acceptWith(t, Config{FabricName: 2, SameHost: samehost.Require})
	if _, err := Dial(t.Context(), addr, Config{FabricName: 1, Peer: 2, SameHost: samehost.Off}); err == nil {
		t.Error("the link is made")
	}
	if err := <-errs; err == nil || !strings.Contains(err.Error(), "shared memory") {
		t.Errorf("accept: %v", err)
	}
}
