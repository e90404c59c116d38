package rxe

import (
	"errors"
	"sync"

	"viaduct/cmd/viaduct/internal/rdma/abi"
)

// Errors of making and changing objects.
var (
	ErrInvalid = errors.New("rxe: a value is outside what the device allows") // EINVAL
	ErrMemory  = errors.New("rxe: no memory for a ring")                      // ENOMEM
)

// CQEvents says what becomes of a completion queue. Both functions are called with the queue locked, and
// must not use it.
type CQEvents struct {
	Completed func() // the program asked to be told of the next completion, and there is one
	Overrun   func() // a completion was lost because the program did not take those before
}

// A CQ is a completion queue.
type CQ struct {
	events CQEvents

	mu      sync.Mutex
	ring    ring   // guarded by mu
	notify  notify // guarded by mu
	overrun bool   // guarded by mu
}

// notify says of which completions the program wants to be told.
type notify uint8

const (
	notifyNone notify = iota
	notifySolicited
	notifyNext
)

// NewCQ makes a completion queue of at least n entries.
func NewCQ(a Arena, n uint32, ev CQEvents) (*CQ, error) {
	if n == 0 || n > MaxCQE {
		return nil, ErrInvalid
	}
	r, err := newRing(a, n, completionLen)
	if err != nil {
		return nil, ErrMemory
	}
	return &CQ{events: ev, ring: r}, nil
}

// Describe returns how many completions fit, and where the ring is.
func (q *CQ) Describe() (entries uint32, info abi.Body) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.ring.mask, q.ring.info()
}

// Resize gives the queue another ring, with the completions that were not taken. keep is asked whether the
// program has learnt of it; if not the queue stays as it was.
func (q *CQ) Resize(n uint32, keep func(entries uint32, info abi.Body) bool) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ring.mem == nil || n == 0 || n > MaxCQE || n < q.ring.unread() {
		return ErrInvalid
	}
	r, err := newRing(q.ring.arena, n, completionLen)
	if err != nil {
		return ErrMemory
	}
	from := q.ring.consumed()
	unread := (q.ring.at - from) & q.ring.mask
	if unread > r.mask { // the program has moved its index meanwhile
		r.drop()
		return ErrInvalid
	}
	r.adopt(&q.ring, from, unread)
	r.at = unread
	if !keep(r.mask, r.info()) {
		r.drop()
		return nil
	}
	q.ring.drop()
	q.ring = r
	return nil
}

// Notify has the next completion told, or only the next solicited or failed one.
func (q *CQ) Notify(solicited bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case !solicited:
		q.notify = notifyNext
	case q.notify == notifyNone:
		q.notify = notifySolicited
	}
}

// push shows a completion to the program.
func (q *CQ) push(c *completion) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ring.mem == nil {
		return
	}
	if q.ring.unread() == q.ring.mask {
		if !q.overrun {
			q.overrun = true
			q.events.Overrun()
		}
		return
	}
	c.put(q.ring.slot(q.ring.at))
	q.ring.publish()
	if q.notify == notifyNext || q.notify == notifySolicited && (c.solicited || c.status != Success) {
		q.notify = notifyNone
		q.events.Completed()
	}
}

// Close takes the ring away. No event comes behind it.
func (q *CQ) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ring.drop()
}
