package vi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"viaduct/internal/attend"
	"viaduct/internal/queue"
)

// A Completion reports the completion of a descriptor of a work queue. SendDone or RecvDone returns
// the descriptor itself.
type Completion struct { // [VIA 6.4.7]
	VI   *VI
	Recv bool // true for the receive queue, false for the send queue
}

// A CompletionQueue collects the completions of any number of work queues.
type CompletionQueue struct {
	nic *NIC
	q   *queue.Completions[Completion]

	vis    atomic.Pointer[[]*VI] // the attached VIs; replaced with nic.mu held
	gone   bool                  // guarded by nic.mu
	closed atomic.Bool           // true if gone is true or the NIC is closed
}

// CreateCQ creates a completion queue with room for entries completions. A full queue grows, so
// that no completion is ever lost.
//
// Errors: ErrInvalidParameter for 0 or more than MaxCQEntries, ErrResource, ErrClosed.
func (n *NIC) CreateCQ(entries int) (*CompletionQueue, error) { // [VIA 6.4.7] [VIA 1.6]
	if err := n.checkEntries(entries); err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil, ErrClosed
	}
	if n.attrs.MaxCQ > 0 && len(n.cqs) >= n.attrs.MaxCQ {
		return nil, fmt.Errorf("%w: %d completion queues", ErrResource, len(n.cqs)) // [VIA-8.2-1] [VIA-8.3-2]
	}
	c := &CompletionQueue{nic: n, q: queue.NewCompletions[Completion](entries)}
	c.vis.Store(new([]*VI))
	n.cqs[c] = struct{}{}
	return c, nil
}

func (n *NIC) checkEntries(entries int) error {
	if entries <= 0 || n.attrs.MaxCQEntries > 0 && entries > n.attrs.MaxCQEntries {
		return fmt.Errorf("%w: %d entries, at most %d", ErrInvalidParameter, entries, n.attrs.MaxCQEntries)
	}
	return nil
}

// Destroy ends the queue and cancels its notify registrations. It returns ErrResource while a VI is
// attached, and ErrClosed.
func (c *CompletionQueue) Destroy() error { // [VIA 6.4.7]
	n := c.nic
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case c.gone || n.closed:
		return ErrClosed
	case len(*c.vis.Load()) > 0:
		return fmt.Errorf("%w: VIs are attached", ErrResource) // [VIA-6.4-24] [VIA-8.3-17]
	}
	c.gone = true
	delete(n.cqs, c)
	c.close()
	return nil
}

func (c *CompletionQueue) close() {
	c.closed.Store(true)
	c.q.Close()
}

// Resize changes the room of the queue. Entries in the queue stay. It may be called while the queue
// is in use. Errors: ErrResource if the queue holds more than entries completions,
// ErrInvalidParameter, ErrClosed.
func (c *CompletionQueue) Resize(entries int) error { // [VIA 6.4.7]
	if c.closed.Load() {
		return ErrClosed
	}
	if err := c.nic.checkEntries(entries); err != nil {
		return err
	}
	if err := c.q.Resize(entries); err != nil { // [VIA-6.4-25]
		return fmt.Errorf("%w: %w", ErrResource, err)
	}
	return nil
}

// Done removes and returns an entry. It never blocks. Errors: ErrNotDone if the queue is empty,
// ErrClosed.
func (c *CompletionQueue) Done() (Completion, error) { // [VIA-6.4-26] [VIA 6.4.7]
	var e [1]Completion
	if c.DoneN(e[:]) == 1 {
		return e[0], nil
	}
	if c.closed.Load() {
		return Completion{}, ErrClosed
	}
	return Completion{}, ErrNotDone
}

// DoneN moves up to len(buf) entries into buf and returns their number: 0 for an empty or a
// destroyed queue.
func (c *CompletionQueue) DoneN(buf []Completion) int {
	n := c.poll(buf)
	if n == 0 && (*cqProgress)(c).Poll() {
		n = c.poll(buf)
	}
	return n
}

// poll removes entries like DoneN, but skips the entries of destroyed VIs. A destroyed VI can have
// an entry because a completion can be published a moment after its descriptor was reaped.
// [VIA-4.7-3]
func (c *CompletionQueue) poll(buf []Completion) int {
	for {
		n := c.q.PollN(buf)
		live := slices.DeleteFunc(buf[:n], Completion.stale)
		if len(live) > 0 || n == 0 {
			return len(live)
		}
	}
}

func (e Completion) stale() bool { return e.VI.closed.Load() }

// Wait removes and returns an entry, and waits if the queue is empty. An entry wakes a single
// waiter. Errors: ErrTimeout, the context's, ErrClosed.
func (c *CompletionQueue) Wait(ctx context.Context) (Completion, error) { // [VIA 6.4.7]
	e, err := c.q.Wait(ctx, (*cqProgress)(c)) // [VIA-6.4-26] [VIA-6.7-2]
	for err == nil && e.stale() {
		e, err = c.q.Wait(ctx, nil)
	}
	if errors.Is(err, queue.ErrClosed) {
		err = ErrClosed
	} else if err != nil {
		err = waitError(err)
	}
	return e, err
}

// Notify removes the next entry of the queue and calls handler with the entry, once. If the queue
// is empty, the call follows when an entry arrives. Registrations are served in order and before
// waiters. Destroying the queue cancels all registrations. Handlers run in sequence in a goroutine
// of the NIC. Errors: ErrInvalidParameter for a nil handler, ErrClosed.
func (c *CompletionQueue) Notify(handler func(Completion)) error { // [VIA 6.4.7]
	if handler == nil {
		return fmt.Errorf("%w: no handler", ErrInvalidParameter)
	}
	var serve func(Completion)
	serve = func(e Completion) {
		if e.stale() {
			c.q.Notify(serve)
			return
		}
		c.nic.notify.add(func() { handler(e) }) // [VIA-6.4-27]
	}
	if err := c.q.Notify(serve); err != nil {
		return ErrClosed
	}
	return nil
}

func (c *CompletionQueue) attachLocked(v *VI) {
	vis := append(slices.Clone(*c.vis.Load()), v)
	c.vis.Store(&vis)
}

// detachLocked removes an attachment of v, and v's entries from the queue. A VI with both queues
// attached has two attachments.
func (c *CompletionQueue) detachLocked(v *VI) {
	vis := slices.Clone(*c.vis.Load())
	if i := slices.Index(vis, v); i >= 0 {
		vis = slices.Delete(vis, i, i+1)
	}
	c.vis.Store(&vis)
	c.q.Discard(func(e Completion) bool { return e.VI == v })
}

// pollable is the largest number of VIs whose sockets a consumer of their completion queue polls
// itself. With more VIs, polls without a result cost more than wake-ups by the goroutines waiting
// at the sockets.
const pollable = 8

// cqProgress makes the connections of the attached VIs progress, for a polling consumer.
type cqProgress CompletionQueue

func (p *cqProgress) Poll() (got bool) {
	vis := *p.vis.Load()
	if len(vis) > pollable {
		return false
	}
	var last *VI
	for _, v := range vis {
		if v != last && v.Poll() { // a VI with both queues attached has two adjacent entries
			got = true
		}
		last = v
	}
	return got
}

// Expects implements attend.SourceSleeper. It reports whether an attached VI expects an arrival
// soon. With more than pollable VIs the result is false.
func (p *cqProgress) Expects() bool {
	vis := *p.vis.Load()
	return len(vis) <= pollable && slices.ContainsFunc(vis, func(v *VI) bool { return (*progress)(v).Expects() })
}

// Near implements attend.SourceSleeper. It reports whether all peers are on the same host. Without
// VIs, or with more than pollable, the result is false.
func (p *cqProgress) Near() bool {
	vis := *p.vis.Load()
	far := func(v *VI) bool { return !(*progress)(v).Near() }
	return 0 < len(vis) && len(vis) <= pollable && !slices.ContainsFunc(vis, far)
}

// SleepAt implements attend.SourceSleeper. It prepares a sleep at the sockets of the attached VIs.
// It returns false without a VI, or if no sleep is possible at some VI.
func (p *cqProgress) SleepAt(s *attend.Sleeper) bool {
	vis := *p.vis.Load()
	var last *VI
	for _, v := range vis {
		if v != last && !(*progress)(v).SleepAt(s) {
			return false
		}
		last = v
	}
	return last != nil
}

func (p *cqProgress) Unpoll() {
	vis := *p.vis.Load()
	if len(vis) > pollable {
		return
	}
	for _, v := range vis {
		v.Unpoll()
	}
}
