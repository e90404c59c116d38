//go:build linux && (amd64 || arm64)

package rdma

import (
	"sync"
	"time"
)

// turns keeps what goes on side by side in the order in which it was begun.
// Programs that make several connections at once count on it: the third that is
// asked for here is the third that arrives there.
type turns struct {
	mu   sync.Mutex
	last chan struct{} // guarded by mu
}

// turnTime bounds how long one that is slow holds up those behind it.
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

// wait waits until the turn before is over.
func (n turn) wait() {
	if n.before == nil {
		return
	}
	select {
	case <-n.before:
	case <-time.After(turnTime):
	}
}

// end ends the turn. It is called once.
func (n turn) end() { close(n.over) }
