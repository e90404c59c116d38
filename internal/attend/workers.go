package attend

import (
	"time"

	"viaduct/internal/perturb"
)

// Setting a connection up, serving it and ending it need a deeper stack than a
// goroutine begins with, and growing one three times is a good part of what a
// short connection costs. So goroutines that have done such work stay for a
// moment, for the next connection.

const (
	// idleTime is how long a worker waits for work, once to twice.
	idleTime = 50 * time.Millisecond

	// maxIdle is how many wait at a time.
	maxIdle = 16
)

// A worker is a goroutine that is kept for further work.
type worker struct {
	work chan func() // one slot; closed when the worker is to end
	seen bool        // guarded by workers.mu: it was idle at the last look already
}

var workers struct {
	mu    perturb.Mutex
	idle  []*worker // guarded by mu; the last to finish last
	timed bool      // guarded by mu: a timer is going to look
}

// Go is go f(). With pooled, f may run on a worker that has done such work
// before; a stream of a test may be confined to goroutines of its own.
func Go(pooled bool, f func()) {
	if !pooled {
		go f()
		return
	}
	workers.mu.Lock()
	n := len(workers.idle)
	if n == 0 {
		workers.mu.Unlock()
		go (&worker{work: make(chan func(), 1)}).run(f)
		return
	}
	w := workers.idle[n-1]
	workers.idle[n-1] = nil
	workers.idle = workers.idle[:n-1]
	workers.mu.Unlock()
	w.work <- f
}

// run works, and waits for more to do.
func (w *worker) run(f func()) {
	for ok := true; ok; {
		f()
		f = nil
		if !w.rest() {
			return
		}
		f, ok = <-w.work
	}
}

// rest adds w to the idle workers, unless there are enough.
func (w *worker) rest() bool {
	workers.mu.Lock()
	defer workers.mu.Unlock()
	if len(workers.idle) >= maxIdle {
		return false
	}
	w.seen = false
	workers.idle = append(workers.idle, w)
	if !workers.timed {
		workers.timed = true
		time.AfterFunc(idleTime, endIdle)
	}
	return true
}

// endIdle ends the workers that have been idle since the last look.
func endIdle() {
	workers.mu.Lock()
	defer workers.mu.Unlock()
	stay := workers.idle[:0]
	for _, w := range workers.idle {
		if w.seen {
			close(w.work)
			continue
		}
		w.seen = true
		stay = append(stay, w)
	}
	clear(workers.idle[len(stay):])
	workers.idle = stay
	if workers.timed = len(stay) > 0; workers.timed {
		time.AfterFunc(idleTime, endIdle)
	}
}
