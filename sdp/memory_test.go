package sdp

import (
	"context"
	"net"
	"testing"
	"testing/synctest"

	"viaduct/internal/attend"
	"viaduct/internal/testkit"
	"viaduct/internal/wire/sdpwire"
	"viaduct/iwarp"
)

// inBubble is t.Run with a test in a bubble of synctest, where time passes only when all
// is at rest, so that silence is certain and a timer is exact. Connections are streams in
// memory there. A consumer that waits polls nothing: it would wait for time to pass.
func inBubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		defer attend.AssumeProcessors(1)()
		synctest.Test(t, f)
	})
}

// memSide is what an end of a connection in memory is made of.
type memSide struct {
	opt Options
	dev *iwarp.Device
}

// memAccept makes a connection of nc as Accepting Peer.
func memAccept(t testing.TB, nc net.Conn, s memSide) (*Conn, error) {
	opt, err := s.opt.complete()
	if err != nil {
		t.Fatal(err)
	}
	set, g, p, err := accept(context.Background(), peekable(nc), opt, s.dev, func(*setup, greeting) Reason { return ReasonUnknown })
	if err != nil {
		return nil, err
	}
	c := newConn(set.opt, g.layout, set, p)
	c.path = Path{SDP: true, Accepted: true, Local: nc.LocalAddr(), Remote: nc.RemoteAddr()}
	c.begin()
	return c, nil
}

// memPair returns the two ends of a connection in memory, which are shut when the test
// ends.
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

// memWire is connectWire in memory: the peer sends hello, and is answered. Both are shut
// when the test ends.
func memWire(t testing.TB, s memSide, hello sdpwire.Hello) (*wirePeer, *Conn) {
	t.Helper()
	w, c, _ := memWireOn(t, s, hello)
	return w, c
}

// memWireOn is memWire that also returns the peer's end of the stream.
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

// started runs f in a goroutine and returns where its result comes.
func started(f func() (int, error)) <-chan outcome {
	ch := make(chan outcome, 1)
	go func() {
		n, err := f()
		ch <- outcome{n, err}
	}()
	return ch
}

// An outcome is the result of a call that moves bytes.
type outcome struct {
	n   int
	err error
}

// waits reports that a call is still under way when all is at rest.
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
