package sdp

import (
	"context"
	"net"
	"testing"
	"testing/synctest"

	"viaduct/internal/attend"
	"viaduct/internal/sock"
	"viaduct/internal/testkit"
	"viaduct/internal/wire/sdpwire"
	"viaduct/iwarp"
)

// inBubble runs f as a subtest in a bubble of synctest. Time passes there only while all goroutines
// are blocked, so a test can rule out later arrivals, and timers are exact. Connections are streams
// in memory. A waiting consumer does not poll, because polling would need time to pass.
func inBubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		defer attend.AssumeProcessors(1)()
		defer sock.TryOnce()()
		synctest.Test(t, f)
	})
}

// A memSide holds the options and the device for one end of a connection in memory.
type memSide struct {
	opt Options
	dev *iwarp.Device
}

// memAccept makes a connection on nc as Accepting Peer.
func memAccept(t testing.TB, nc net.Conn, s memSide) (*Conn, error) {
	opt, err := s.opt.complete()
	if err != nil {
		t.Fatal(err)
	}
	set, g, p, err := accept(context.Background(), peekable(nc), opt, s.dev,
		func(*setup, greeting) Reason { return ReasonUnknown })
	if err != nil {
		return nil, err
	}
	c := newConn(set.opt, g.layout, set, p)
	c.path = Path{SDP: true, Accepted: true, Local: nc.LocalAddr(), Remote: nc.RemoteAddr()}
	c.begin()
	return c, nil
}

// memPair returns the two ends of a connection in memory, closed when the test ends.
func memPair(t testing.TB, d, l Options) (dialled, accepted *Conn) {
	t.Helper()
	a, b := testkit.Pipe()
	type result struct {
		c   *Conn
		err error
	}
	ch := make(chan result, 1)
	go func() {
		c, err := memAccept(t, b, memSide{opt: l})
		ch <- result{c, err}
	}()
	dialled, err := (&Dialer{Options: d}).Client(context.Background(), a)
	if err != nil {
		t.Fatal(err)
	}
	r := <-ch
	if r.err != nil {
		t.Fatal(r.err)
	}
	t.Cleanup(func() {
		for _, c := range []*Conn{dialled, r.c} {
			c.Abort()
			<-c.Done()
		}
	})
	return dialled, r.c
}

// memWire returns a connection in memory, and the peer, which has sent hello and received the
// answer. Both are closed when the test ends.
func memWire(t testing.TB, s memSide, hello sdpwire.Hello) (*wirePeer, *Conn) {
	t.Helper()
	w, c, _ := memWireOn(t, s, hello)
	return w, c
}

// memWireOn does the same as memWire, and also returns the peer's end of the stream.
func memWireOn(t testing.TB, s memSide, hello sdpwire.Hello) (*wirePeer, *Conn, *testkit.Conn) {
	t.Helper()
	a, b := testkit.Pipe()
	type result struct {
		c   *Conn
		err error
	}
	ch := make(chan result, 1)
	go func() {
		c, err := memAccept(t, b, s)
		ch <- result{c, err}
	}()
	w := &wirePeer{t: t}
	if _, err := iwarp.Client(context.Background(), a, w.config(hello.Append(nil, sdpwire.Figure))); err != nil {
		t.Fatal(err)
	}
	if _, b := w.next(); len(b) != sdpwire.HelloAckLen {
		t.Fatalf("HelloAck: %x", b)
	}
	r := <-ch
	if r.err != nil {
		t.Fatal(r.err)
	}
	t.Cleanup(func() {
		r.c.Abort()
		w.close()
		<-r.c.Done()
	})
	return w, r.c, a
}

// started runs f in a goroutine, and returns a channel for its result.
func started(f func() (int, error)) <-chan outcome {
	ch := make(chan outcome, 1)
	go func() {
		n, err := f()
		ch <- outcome{n, err}
	}()
	return ch
}

// An outcome is the result of a read or write.
type outcome struct {
	n   int
	err error
}

// waits reports whether the call of ch has not returned when all goroutines are blocked.
func waits(ch <-chan outcome) bool {
	synctest.Wait()
	return len(ch) == 0
}

// locked calls f with mu of c held.
func locked(c *Conn, f func()) {
	c.mu.Lock()
	defer c.unlock()
	f()
}
