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

// workers are the waiting workers.
type workers struct {
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
	if w := process.workers.take(); w != nil {
		w.work <- f
		return
	}
	go (&worker{work: make(chan func(), 1)}).run(f)
}

// run calls f, and then further functions.
func (w *worker) run(f func()) {
	for ok := true; ok; {
		f()
		f = nil
		if !process.workers.add(w) {
			return
		}
		f, ok = <-w.work
	}
}

// take removes and returns the worker that finished last, or nil if none waits.
func (p *workers) take() *worker {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.idle)
	if n == 0 {
		return nil
	}
	w := p.idle[n-1]
	p.idle[n-1] = nil
	p.idle = p.idle[:n-1]
	return w
}

// add adds w to the idle workers. It returns false, and w ends, if there are maxIdle.
func (p *workers) add(w *worker) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.idle) >= maxIdle {
		return false
	}
	w.seen = false
	p.idle = append(p.idle, w)
	if !p.timed {
		p.timed = true
		time.AfterFunc(idleTime, p.endIdle)
	}
	return true
}

// endIdle ends the workers idle since the last check.
func (p *workers) endIdle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	stay := p.idle[:0]
	for _, w := range p.idle {
		if w.seen {
			close(w.work)
			continue
		}
		w.seen = true
		stay = append(stay, w)
	}
	clear(p.idle[len(stay):])
	p.idle = stay
	if p.timed = len(stay) > 0; p.timed {
		time.AfterFunc(idleTime, p.endIdle)
	}
}
