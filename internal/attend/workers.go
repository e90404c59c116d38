package attend

import (
	"time"

	"viaduct/internal/perturb"
)

// The set-up, service and end of a connection need a deeper stack than a new goroutine has. Growing
// the stack three times is a good part of the cost of a short connection. So a goroutine that has
// done such work waits a moment for the next connection.

const (
	// idleTime is the time a worker waits for work, at most twice as long.
	idleTime = 50 * time.Millisecond

	// maxIdle is the largest number of waiting workers.
	maxIdle = 16
)

// A worker is a goroutine waiting for further work.
type worker struct {
	work chan func() // has one slot; closed to end the worker
	seen bool        // guarded by workers.mu; whether the worker was idle at the last check
}

var workers struct {
	mu    perturb.Mutex
	idle  []*worker // guarded by mu; in the order of finishing
	timed bool      // guarded by mu; whether a timer will call endIdle
}

// Go runs f in another goroutine. If pooled is true, the goroutine may be a worker that has done
// such work before. Streams of tests pass false, because tests may need separate goroutines.
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

// run calls f, and then further functions.
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

// rest adds w to the idle workers. It returns false, and w ends, if there are maxIdle.
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

// endIdle ends the workers idle since the last check.
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
