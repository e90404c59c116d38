package frameio

import (
	"sync/atomic"
	"testing"
	"time"

	"viaduct/internal/attend"
	"viaduct/internal/testkit"
)

// TestLeftIsTold: what a protocol left staged is told of by UnpollUntil like what is
// in the socket, though no arrival follows: the consumer's own look may have found
// the role taken, by whoever was about to sleep.
func TestLeftIsTold(t *testing.T) {
	nc, peer := testkit.TCPPair(t)
	defer peer.Close()
	p := newFramed(nc, Options{})
	var got, allowed atomic.Int32
	p.got = func([]byte) { got.Add(1) }
	p.enough = func() bool { return got.Load() >= allowed.Load() }
	p.c.Start(nil)
	p.c.att.Dedicate() // so that there is somebody who may have the role
	called := make(chan bool, 1)
	arrived := func() { called <- true }
	for i := range int32(20) {
		allowed.Store(2*i + 1)
		p.c.Poll()
		if _, err := peer.Write(stream([][]byte{{1, 2, 3}, {4, 5}})); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, "the first frame", func() bool { p.c.Poll(); return got.Load() == 2*i+1 })
		p.c.Poll() // it comes to nothing
		p.c.att.Lock()
		allowed.Store(2*i + 2)
		p.c.UnpollUntil(&arrived)
		if p.c.Poll() {
			t.Fatal("two have the role")
		}
		p.c.att.Unlock()
		testkit.Await(t, "the call", called)
		testkit.Eventually(t, "the second frame", func() bool { p.c.Poll(); return got.Load() == 2*i+2 })
	}
	p.close(t)
}

// A connection with something left staged keeps its attendant, since a shared poller
// is told of arrivals only.
func TestLeftStays(t *testing.T) {
	nc, peer := testkit.TCPPair(t)
	defer peer.Close()
	p := newFramed(nc, Options{})
	defer p.close(t)
	p.c.Start(nil)
	if s := p.c.att.State(); s != attend.Shared {
		t.Fatalf("it begins in state %v", s)
	}
	p.c.att.Dedicate()
	left := func(left bool) { p.c.WithReceiver(func() { p.c.rx.left = left }) }
	for range 3 {
		left(true)
		for range 20 {
			p.c.sock.Load().Interrupt()
			time.Sleep(time.Millisecond)
			if s := p.c.att.State(); s != attend.Dedicated {
				t.Fatalf("left staged: state %v", s)
			}
		}
		left(false)
		testkit.Eventually(t, "it waits with a shared poller", func() bool {
			p.c.sock.Load().Interrupt()
			return p.c.att.State() == attend.Shared
		})
		p.c.att.Dedicate()
	}
}
