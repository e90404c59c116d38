package rxe

import (
	"errors"
	"sync"

	"viaduct/cmd/viaduct/internal/rdma/abi"
)

// Errors of methods that create or change objects.
var (
	ErrInvalid = errors.New("rxe: a value is outside what the device allows") // EINVAL
	ErrMemory  = errors.New("rxe: no memory for a ring")                      // ENOMEM
)

// CQEvents holds the handlers of a completion queue's events. Both are called with the queue
// locked, and must not use the queue.
type CQEvents struct {
	Completed func() // there is a completion, and the program requested an event for it
	Overrun   func() // a completion was lost because the ring was full
}

// A CQ is a completion queue.
type CQ struct {
	events CQEvents

	mu      sync.Mutex
	ring    ring   // guarded by mu
	notify  notify // guarded by mu
	overrun bool   // guarded by mu
}

// A notify records for which completions the program requested an event.
type notify uint8

const (
	notifyNone notify = iota
	notifySolicited
	notifyNext
)

// NewCQ creates a completion queue for at least n entries. The error is ErrInvalid or ErrMemory.
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

// Describe returns the capacity in completions, and the description of the ring.
func (q *CQ) Describe() (entries uint32, info abi.Body) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.ring.mask, q.ring.info()
}

// Resize moves the queue with the unread completions to a new ring for at least n entries. It calls
// keep with the description of the new ring. If keep returns false, because the program could not
// be informed, the queue keeps the old ring. The error is ErrInvalid if the unread completions do
// not fit or the queue is closed, or ErrMemory.
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
	if unread > r.mask { // the program has moved its index in between
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

// Notify requests an event for the next completion, or only for the next solicited or failed
// completion.
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

// push writes a completion to the ring, and sends an event if the program requested one. If the
// ring is full, the completion is lost, and push calls Overrun at the first loss. After Close, push
// does nothing.
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

// Close frees the ring. No event follows.
func (q *CQ) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ring.drop()
}
