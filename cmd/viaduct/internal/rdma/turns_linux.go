//go:build linux && (amd64 || arm64)

package rdma

import (
	"net/netip"
	"sync"
	"time"
)

// turns keeps concurrent set-ups with the same peer in the order they began. Programs that open
// several connections at once rely on the order: the third connection requested here arrives third at
// the peer. The tools of perftest wait for ever if it does not.
type turns struct {
	mu   sync.Mutex
	last map[netip.AddrPort]chan struct{} // of the latest set-up with each peer; guarded by mu
}

// turnTime bounds how long a slow set-up delays the later set-ups with its peer.
const turnTime = 2 * time.Second

// A turn is a place in the order.
type turn struct {
	turns        *turns
	peer         netip.AddrPort
	before, over chan struct{}
}

func (t *turns) next(peer netip.AddrPort) turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.last == nil {
		t.last = map[netip.AddrPort]chan struct{}{}
	}
	n := turn{turns: t, peer: peer, before: t.last[peer], over: make(chan struct{})}
	t.last[peer] = n.over
	return n
}

// wait waits until the previous turn is over, but at most turnTime.
func (n turn) wait() {
	if n.before == nil {
		return
	}
	late := time.NewTimer(turnTime)
	defer late.Stop()
	select {
	case <-n.before:
	case <-late.C:
	}
}

// end ends the turn. Call it once.
func (n turn) end() {
	close(n.over)
	n.turns.mu.Lock()
	defer n.turns.mu.Unlock()
	if n.turns.last[n.peer] == n.over {
		delete(n.turns.last, n.peer)
	}
}
