//go:build linux && (amd64 || arm64)

package rdma

import (
	"sync"
	"time"
)

// turns keeps concurrent set-ups in the order they began. Programs that open several connections at
// once rely on the order: the third connection requested here arrives third at the peer.
type turns struct {
	mu   sync.Mutex
	last chan struct{} // guarded by mu
}

// turnTime bounds how long a slow set-up delays the later set-ups.
const turnTime = 100 * time.Millisecond

// A turn is a place in the order.
type turn struct{ before, over chan struct{} }

func (t *turns) next() turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := turn{before: t.last, over: make(chan struct{})}
	t.last = n.over
	return n
}

// wait waits until the previous turn is over, but at most turnTime.
func (n turn) wait() {
	if n.before == nil {
		return
	}
	select {
	case <-n.before:
	case <-time.After(turnTime):
	}
}

// end ends the turn. Call it once.
func (n turn) end() { close(n.over) }
