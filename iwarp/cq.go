package iwarp

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"sync/atomic"

	"viaduct/internal/attend"
	"viaduct/internal/perturb"
	"viaduct/internal/queue"
)

// A CompletionQueue collects the completions of one or more send and receive queues. The capacity
// is fixed. A stream whose queues are deeper than the free capacity cannot be made, so a completion
// queue never overflows.
//
// Streams share a queue only if the caller passes the queue to several streams. Share a queue only
// among streams allowed to know about each other, for example the streams of a single tenant.
//
// A CompletionQueue is safe for concurrent use.
type CompletionQueue struct { // [SEC-6.4.3.2-1] [SEC-6.4.3.2-2] [RDMAP-8.1.1-11] [RDMAP-8.1.2-4] [SEC-6.4.6-1] [SEC-6.4.3.2-3] [RDMAP-8.1.1-10] [SEC-7.1-1]
	q        queue.Completions[Completion]
	capacity int
	users    atomic.Pointer[[]*QueuePair]
	armed    atomic.Int32
	handler  atomic.Pointer[func()] // of [ulp.Stream.Handle], or nil

	mu       perturb.Mutex
	reserved int           // guarded by mu
	events   chan struct{} // guarded by mu; nil until signals first makes it
}

// The events a completion queue is armed for.
const (
	armedNot = iota
	armedSolicited
	armedAny
)

// NewCQ returns a completion queue for at most capacity completions. The error is ErrLimit if
// capacity is not positive or exceeds Limits.CQEntries.
func (d *Device) NewCQ(capacity int) (*CompletionQueue, error) {
	if capacity <= 0 || capacity > d.cfg.Limits.CQEntries {
		return nil, fmt.Errorf("%w: completion queue of %d entries, at most %d", ErrLimit,
			capacity, d.cfg.Limits.CQEntries)
	}
	c := &CompletionQueue{
		capacity: capacity,
	}
	c.users.Store(new([]*QueuePair))
	return c, nil
}

// Poll removes and returns the first completion. If the queue is empty, Poll receives from the
// connections of the attached streams without waiting. ok is false if the queue is still empty.
// Polling in a loop has the lowest latency.
func (c *CompletionQueue) Poll() (Completion, bool) {
	e, ok := c.q.Poll()
	if !ok && (*progress)(c).Poll() {
		e, ok = c.q.Poll()
	}
	if ok {
		e.QP.taken(e.Op, 1)
	}
	return e, ok
}

// PollN removes up to len(buf) completions, stores them in buf and returns their number. If the
// queue is empty, PollN receives from the connections like Poll.
func (c *CompletionQueue) PollN(buf []Completion) int {
	n := c.q.PollN(buf)
	// A queue with a handler is not polled, because the handler is called in a poll.
	if n == 0 && len(buf) > 0 && c.handler.Load() == nil && (*progress)(c).Poll() {
		n = c.q.PollN(buf)
	}
	taken(buf[:n])
	return n
}

// Wait removes and returns the first completion, and waits if the queue is empty. Wait polls for a
// moment before sleeping. If ctx ends first, Wait returns the error of ctx.
func (c *CompletionQueue) Wait(ctx context.Context) (Completion, error) {
	e, err := c.q.Wait(ctx, (*progress)(c)) // [MPA-7.1.2-26]
	if err == nil {
		e.QP.taken(e.Op, 1)
	}
	return e, err
}

// All returns an iterator over the completions. The iterator waits for each completion as
// [CompletionQueue.Wait] does, and stops without an error when ctx ends.
func (c *CompletionQueue) All(ctx context.Context) iter.Seq[Completion] {
	return func(yield func(Completion) bool) {
		for {
			e, err := c.Wait(ctx)
			if err != nil || !yield(e) {
				return
			}
		}
	}
}

// Len returns the number of completions not yet polled.
func (c *CompletionQueue) Len() int { return c.q.Len() }

// Arm asks for one signal on [CompletionQueue.Events], at the next completion. If solicited is
// true, the signal comes at the next completion of a message with Solicited Event or of a failed
// request. After arming, poll until the queue is empty before you wait: completions already present
// cause no signal.
func (c *CompletionQueue) Arm(solicited bool) { // [RDMAP-5.3-6] [I-72]
	v := int32(armedAny)
	if solicited {
		v = armedSolicited
	}
	c.arm(v)
	(*progress)(c).Unpoll()
}

func (c *CompletionQueue) arm(v int32) {
	for {
		old := c.armed.Load()
		if old >= v || c.armed.CompareAndSwap(old, v) {
			return
		}
	}
}

// handle does the work of [ulp.Stream.Handle].
func (c *CompletionQueue) handle(f func()) { c.handler.Store(&f) }

// deliver calls the handler if the queue has one and is not empty. The caller must hold neither the
// send nor the receive role of a stream, because the handler may post.
func (c *CompletionQueue) deliver() {
	if f := c.handler.Load(); f != nil && c.q.Len() > 0 {
		(*f)()
	}
}

// Events returns the channel of the signals of Arm. The channel holds at most one signal and is
// never closed.
func (c *CompletionQueue) Events() <-chan struct{} { return c.signals() }

func (c *CompletionQueue) signals() chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.events == nil {
		c.events = make(chan struct{}, 1)
	}
	return c.events
}

func (c *CompletionQueue) push(e *Completion) {
	c.q.Push(*e)
	if a := c.armed.Load(); a != armedNot {
		c.signal(a, e)
	}
}

func (c *CompletionQueue) pushAll(es []Completion) {
	c.q.PushAll(es)
	if a := c.armed.Load(); a != armedNot {
		for i := range es {
			c.signal(a, &es[i])
		}
	}
}

// wake sends a signal even if the queue is not armed. It does nothing if a signal is already
// waiting in the channel.
func (c *CompletionQueue) wake() {
	select {
	case c.signals() <- struct{}{}:
	default:
	}
}

func (c *CompletionQueue) signal(a int32, e *Completion) {
	if a == armedSolicited && !e.Solicited && e.Status == StatusOK {
		return
	}
	if c.armed.CompareAndSwap(a, armedNot) {
		c.wake()
	}
}

// attach reserves room for depth completions of q. The error is ErrLimit if there is less room.
func (c *CompletionQueue) attach(q *QueuePair, depth int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if depth > c.capacity-c.reserved {
		return fmt.Errorf("%w: completion queue of %d entries has %d left, %d needed", ErrLimit,
			c.capacity, c.capacity-c.reserved, depth)
	}
	c.reserved += depth
	if us := *c.users.Load(); !slices.Contains(us, q) {
		us = append(slices.Clip(us), q)
		c.users.Store(&us)
	}
	return nil
}

func (c *CompletionQueue) detach(q *QueuePair, depth int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reserved -= depth
	us := slices.DeleteFunc(slices.Clone(*c.users.Load()), func(u *QueuePair) bool { return u == q })
	c.users.Store(&us)
}

// progress is a CompletionQueue as an [attend.SourceSleeper], by which a waiting consumer receives
// from the attached connections.
type progress CompletionQueue

// maxPolled is the largest number of connections a consumer polls itself. With more connections,
// the system calls of polling cost more than they gain, so the goroutines of the connections
// receive.
const maxPolled = 8

// Poll implements [attend.Progress]. It receives from all connections without waiting. If there are
// more than maxPolled, it only starts delayed sends and returns false.
func (p *progress) Poll() (got bool) {
	users := *p.users.Load()
	if len(users) > maxPolled {
		for _, q := range users {
			q.sends.ring()
		}
		return false
	}
	for _, q := range users {
		if q.poll() {
			got = true
		}
	}
	return got
}

// Unpoll implements [attend.Progress]. From now on other goroutines receive from the connections.
func (p *progress) Unpoll() {
	for _, q := range *p.users.Load() {
		q.unpoll()
	}
}

// Expects implements [attend.SourceSleeper]. It reports whether any connection may get an answer
// soon; with more than maxPolled connections it returns false.
func (p *progress) Expects() bool {
	users := *p.users.Load()
	return len(users) <= maxPolled && slices.ContainsFunc(users, func(q *QueuePair) bool {
		if !q.link.ready.Load() {
			return false
		}
		q.sends.ring()
		return q.link.fc.Expects()
	})
}

// Near implements [attend.SourceSleeper]. It is false without connections, with more than
// maxPolled, or if a connection is not ready.
func (p *progress) Near() bool {
	users := *p.users.Load()
	far := func(q *QueuePair) bool { return !q.link.ready.Load() || !q.link.fc.Near() }
	return 0 < len(users) && len(users) <= maxPolled && !slices.ContainsFunc(users, far)
}

// SleepAt implements [attend.SourceSleeper]. It returns false without connections, or if a
// connection is not ready or cannot be added to s.
func (p *progress) SleepAt(s *attend.Sleeper) bool {
	users := *p.users.Load()
	for _, q := range users {
		if !q.link.ready.Load() {
			return false
		}
		if !q.link.fc.SleepAt(s) {
			return false
		}
	}
	return len(users) > 0
}
