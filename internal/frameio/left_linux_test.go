package frameio

import (
	"sync/atomic"
	"testing"
)

// TestLeftIsTold: what a protocol left staged is told of by UnpollUntil like what is
// in the socket, though no arrival follows: the consumer's own look may have found
// the role taken, by whoever was about to sleep.
func TestLeftIsTold(t *testing.T) {
	nc, peer := tcpPair(t)
	defer peer.Close()
	p := newFramed(nc, Options{})
	var got, allowed atomic.Int32
	p.got = func([]byte) { got.Add(1) }
	p.enough = func() bool { return got.Load() >= allowed.Load() }
	p.c.Start(nil)
	p.c.devote() // so that there is somebody who may have the role
	called := make(chan bool, 1)
	arrived := func() { called <- true }
	for i := range int32(20) {
		allowed.Store(2*i + 1)
		p.c.Poll()
		if _, err := peer.Write(stream([][]byte{{1, 2, 3}, {4, 5}})); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the first frame", func() bool { p.c.Poll(); return got.Load() == 2*i+1 })
		p.c.Poll() // it comes to nothing
		p.c.rx.mu.Lock()
		allowed.Store(2*i + 2)
		p.c.UnpollUntil(&arrived)
		if p.c.Poll() {
			t.Fatal("two have the role")
		}
		p.c.rx.mu.Unlock()
		await(t, "the call", called)
		eventually(t, "the second frame", func() bool { p.c.Poll(); return got.Load() == 2*i+2 })
	}
	p.close(t)
}

// TestLeftStays: who has left something staged does not wait in a lobby, where only
// arrivals are told of.
func TestLeftStays(t *testing.T) {
	nc, peer := tcpPair(t)
	defer peer.Close()
	p := newFramed(nc, Options{})
	p.c.Start(nil)
	if !p.c.vacate() {
		t.Fatal("it does not begin in a lobby")
	}
	r := &p.c.rx
	for _, left := range []bool{true, false} {
		r.mu.Lock()
		r.left = left
		r.mu.Unlock()
		if in := p.c.retire(); in == left || in != (r.lobby.Load() != nil) {
			t.Errorf("left %v: retired %v, in a lobby %v", left, in, r.lobby.Load() != nil)
		}
	}
	p.close(t)
}
