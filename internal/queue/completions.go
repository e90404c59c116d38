package queue

import (
	"context"
	"errors"
	"fmt"

	"viaduct/internal/attend"
	"viaduct/internal/counter"
	"viaduct/internal/perturb"
)

// Errors of a completion queue.
var (
	ErrClosed   = errors.New("queue: completion queue is closed")
	ErrCapacity = errors.New("queue: more entries than the new capacity")
)

// Completions is a completion queue. The capacity is only a reservation: the ring grows if more
// entries are pushed, so no completion is ever lost.
//
// An entry goes to the first Notify registration. If there is none, the entry goes to a waiter;
// without a waiter, the entry stays until polled.
type Completions[E any] struct {
	kept counter.Counter // number of entries when mu was last released, so that an empty poll takes no lock

	mu       perturb.Mutex
	s        slots[E]
	capacity int
	closed   bool
	waiters  attend.Waiters
	notify   []func(E)
}

// NewCompletions returns a queue with room for capacity entries before growing.
func NewCompletions[E any](capacity int) *Completions[E] {
	return &Completions[E]{capacity: capacity}
}

// Push appends an entry. A closed queue drops the entry.
func (c *Completions[E]) Push(e E) { c.PushN(e, 1) }

// PushN appends the same entry n times. A closed queue drops the entries.
func (c *Completions[E]) PushN(e E, n int) {
	if n == 0 {
		return
	}
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	var fs []func(E)
	if len(c.notify) > 0 {
		k := min(n, len(c.notify))
		fs = append(fs, c.notify[:k]...)
		c.notify = append(c.notify[:0], c.notify[k:]...)
		n -= k
	}
	for range n {
		*c.s.push() = e
	}
	c.kept.Set(uint64(c.s.n))
	c.waiters.WakeLocked(n)
	c.mu.Unlock()
	for _, f := range fs {
		f(e)
	}
}

// PushAll appends the entries of es, under one lock unless a Notify registration is pending. A
// closed queue drops the entries.
func (c *Completions[E]) PushAll(es []E) {
	if len(es) == 0 {
		return
	}
	c.mu.Lock()
	if !c.closed && len(c.notify) == 0 {
		for i := range es {
			*c.s.push() = es[i]
		}
		c.kept.Set(uint64(c.s.n))
		c.waiters.WakeLocked(len(es))
		c.mu.Unlock()
		return
	}
	c.mu.Unlock()
	for _, e := range es {
		c.Push(e)
	}
}

// popLocked removes and returns the first entry, which must exist.
func (c *Completions[E]) popLocked() E {
	e := c.s.pop()
	c.kept.Set(uint64(c.s.n))
	return e
}

// Poll removes and returns the first entry. ok is false if there is none.
func (c *Completions[E]) Poll() (e E, ok bool) {
	if c.kept.Load() == 0 {
		return e, false
	}
	c.mu.Lock()
	if ok = c.s.n > 0; ok {
		e = c.popLocked()
	}
	c.mu.Unlock()
	return e, ok
}

// PollN removes up to len(buf) entries, stores them in buf and returns their number.
func (c *Completions[E]) PollN(buf []E) int {
	if c.kept.Load() == 0 {
		return 0
	}
	c.mu.Lock()
	n := c.s.popN(buf)
	c.kept.Set(uint64(c.s.n))
	c.mu.Unlock()
	return n
}

// Wait removes and returns the first entry. If there is none, Wait waits until an entry is pushed,
// ctx ends or the queue is closed; the error is then nil, the error of ctx or ErrClosed. A present
// entry wins over a cancelled context. p, which may be nil, is the connection to poll for progress.
func (c *Completions[E]) Wait(ctx context.Context, p attend.Progress) (e E, err error) {
	c.mu.Lock()
	if err := attend.Until(ctx, &c.mu, &c.waiters, (*completionSource[E])(c), p); err != nil {
		return e, err
	}
	e = c.popLocked()
	c.mu.Unlock()
	return e, nil
}

type completionSource[E any] Completions[E]

func (s *completionSource[E]) ReadyLocked() (bool, error) {
	if s.s.n > 0 {
		return true, nil
	}
	if s.closed {
		return false, ErrClosed
	}
	return false, nil
}

// Notify passes a single entry to f. If an entry is present, Notify calls f at once. Otherwise the
// caller of a later Push calls f. Registrations are served in order. f is called without a lock,
// and must not block. The error is ErrClosed if the queue is closed; f is then not called.
func (c *Completions[E]) Notify(f func(E)) error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return ErrClosed
	}
	if c.s.n == 0 {
		c.notify = append(c.notify, f)
		c.mu.Unlock()
		return nil
	}
	e := c.popLocked()
	c.mu.Unlock()
	f(e)
	return nil
}

// Len returns the number of entries.
func (c *Completions[E]) Len() int { return int(c.kept.Load()) }

// Cap returns the capacity last set, in entries.
func (c *Completions[E]) Cap() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.capacity
}

// Resize changes the capacity. Present entries stay. It returns ErrCapacity and changes nothing if
// there are more entries than the new capacity.
func (c *Completions[E]) Resize(capacity int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.s.n > capacity {
		return fmt.Errorf("%w: %d present, capacity %d", ErrCapacity, c.s.n, capacity)
	}
	c.capacity = capacity
	return nil
}

// Discard removes the entries for which drop returns true. It calls drop under the queue's lock.
func (c *Completions[E]) Discard(drop func(E) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for range c.s.n {
		if e := c.s.pop(); !drop(e) {
			*c.s.push() = e
		}
	}
	c.kept.Set(uint64(c.s.n))
}

// Close discards the entries and registrations, and wakes the waiters, whose Wait returns
// ErrClosed. It may be called twice.
func (c *Completions[E]) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.s, c.notify = slots[E]{}, nil
	c.kept.Set(0)
	c.waiters.WakeAllLocked()
}
