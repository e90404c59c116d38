package frameio

import (
	"net"
	"sync"
	"time"
)

// Setting a connection up, driving it and ending it needs a deeper stack than a
// goroutine begins with, and growing one three times is a good part of what a
// short connection costs. So those that have done such work stay for a moment,
// for the next connection.

// atRest is how long a goroutine of the crew waits for work, once to twice.
const atRest = 50 * time.Millisecond

// mostAtRest is how many wait at a time.
const mostAtRest = 16

// A hand is a goroutine of the crew.
type hand struct {
	work chan func() // one slot; closed when it may go
	seen bool        // guarded by crew.mu: at the last look it had nothing to do
}

var crew struct {
	mu   sync.Mutex
	idle []*hand // guarded by mu: without work, the last to finish last
	tick bool    // guarded by mu: a look is going to be made
}

// Crewed reports whether work on nc is for the crew: whether it is a TCP
// connection. A stream of a test may be confined to goroutines of its own.
func Crewed(nc net.Conn) bool {
	switch nc.(type) {
	case *net.TCPConn, socketConn:
		return true
	}
	return false
}

// A socketConn is a connection of this package that has a descriptor.
type socketConn interface{ isSocket() }

// Go is go f(), if crewed perhaps in a goroutine that has done such work before.
func Go(crewed bool, f func()) {
	if !crewed {
		go f()
		return
	}
	crew.mu.Lock()
	n := len(crew.idle)
	if n == 0 {
		crew.mu.Unlock()
		go (&hand{work: make(chan func(), 1)}).run(f)
		return
	}
	h := crew.idle[n-1]
	crew.idle[n-1] = nil
	crew.idle = crew.idle[:n-1]
	crew.mu.Unlock()
	h.work <- f
}

// run works, and waits for more to do.
func (h *hand) run(f func()) {
	for ok := true; ok; {
		f()
		f = nil
		if !h.rest() {
			return
		}
		f, ok = <-h.work
	}
}

// rest puts h among those who wait, unless there are enough.
func (h *hand) rest() bool {
	crew.mu.Lock()
	defer crew.mu.Unlock()
	if len(crew.idle) >= mostAtRest {
		return false
	}
	h.seen = false
	crew.idle = append(crew.idle, h)
	if !crew.tick {
		crew.tick = true
		time.AfterFunc(atRest, lookAround)
	}
	return true
}

// lookAround lets those go who have had nothing to do since the last look.
func lookAround() {
	crew.mu.Lock()
	defer crew.mu.Unlock()
	stay := crew.idle[:0]
	for _, h := range crew.idle {
		if h.seen {
			close(h.work)
			continue
		}
		h.seen = true
		stay = append(stay, h)
	}
	clear(crew.idle[len(stay):])
	crew.idle = stay
	if crew.tick = len(stay) > 0; crew.tick {
		time.AfterFunc(atRest, lookAround)
	}
}
