package vi

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"viaduct/internal/perturb"
	"viaduct/internal/queue"
)

// A side is a work queue of a VI. It reports completions to a completion queue, to Notify handlers,
// or to polling or waiting consumers.
type side struct {
	v      *VI
	q      queue.Work[*Descriptor]
	cq     *CompletionQueue
	isRecv bool
	failed atomic.Bool // an error of this connection was published

	registered atomic.Bool // there are Notify registrations
	mu         perturb.Mutex
	notify     []func(*Descriptor) // guarded by mu
}

func (s *side) init(v *VI, cq *CompletionQueue, isRecv bool, limit int) {
	s.v, s.cq, s.isRecv = v, cq, isRecv
	s.q.Limit = limit // [VIA-1.6-1] [VIA-8.2-1]
	s.q.OnDone = s.publish
}

// publish copies a descriptor's result into the status. The caller holds the queue's lock and
// publishes in posting order. After an error ending the connection publish flushes every later
// descriptor, also a descriptor finished before the error was published. [VIA-4.4-5]
func (s *side) publish(d *Descriptor) {
	if s.failed.Load() {
		d.result = d.result&^StatusErrorMask | StatusFlushed
	} else if d.fatal {
		s.failed.Store(true)
	}
	d.publish()
}

func (s *side) empty() bool {
	c := s.q.Counts()
	return c.Posted == c.Reaped
}

// completed reports that n descriptors are done. The caller holds no lock of a queue.
func (s *side) completed(n int) {
	if n == 0 {
		return
	}
	if s.cq != nil {
		s.cq.q.PushN(Completion{VI: s.v, Recv: s.isRecv}, n) // [VIA-4.7-2] [VIA-1.6-3] [VIA-1.6-4]
		return
	}
	if s.registered.Load() {
		s.serveNotify()
	}
}

// post appends the prepared descriptor d to the queue. d belongs to the NIC until reaped.
// [VIA-1.2-1]
func (s *side) post(d *Descriptor) error {
	if _, err := s.q.Post(d); err != nil {
		return s.notPosted(d, err)
	}
	return nil
}

// postAll posts many descriptors with one lock of the queue. It stops at the first error and
// returns the number of posted descriptors.
func (s *side) postAll(ds []*Descriptor) (n int, err error) {
	k := 0
	for ; k < len(ds); k++ {
		if err = s.prepare(ds[k]); err != nil {
			break
		}
	}
	n, full := s.q.PostN(ds[:k])
	if full == nil {
		return n, err
	}
	for _, d := range ds[n+1 : k] {
		d.giveBack()
	}
	return n, s.notPosted(ds[n], full)
}

// prepare marks d as posted. It returns an error if d is nil or posted already, or if the VI is
// destroyed.
func (s *side) prepare(d *Descriptor) error {
	switch {
	case d == nil:
		return fmt.Errorf("%w: no descriptor", ErrInvalidParameter) // [VIA-5.3-1]
	case s.v.closed.Load():
		return ErrClosed
	case !d.take():
		return fmt.Errorf("%w: the descriptor is posted already", ErrInvalidParameter)
	}
	d.fatal = false
	if s.isRecv {
		d.result = StatusOpReceive
	} else {
		d.result = d.Control.sendOp()
	}
	return nil
}

// notPosted returns d to the consumer after the queue has refused it, and returns the error for the
// consumer.
func (s *side) notPosted(d *Descriptor, err error) error {
	d.giveBack()
	if errors.Is(err, queue.ErrFull) {
		s.v.overrun(d) // [VIA-5.3-3]
		return ErrOverrun
	}
	return err
}

// answer converts the result of Reap for the consumer. If d is done, answer returns d with the
// error of the status. Otherwise the error is ErrNotDone, or ErrQueueEmpty or ErrClosed for an
// empty queue. [VIA 6.4.4] [VIA-6.4-7] [VIA-3.1-2] [VIA-8.3-4]
func (s *side) answer(d *Descriptor, h queue.Head) (*Descriptor, error) {
	switch h {
	case queue.Done:
		return d.reaped()
	case queue.Empty:
		return nil, s.emptyError()
	}
	return nil, ErrNotDone
}

// reaped returns the descriptor to the consumer, with the error of the status, if any. [VIA-4.7-1]
func (d *Descriptor) reaped() (*Descriptor, error) {
	s := d.Status()
	d.status.Store(uint32(s))
	return d, s.Err()
}

func (s *side) emptyError() error {
	if s.v.closed.Load() {
		return ErrClosed
	}
	return ErrQueueEmpty
}

// done returns the first descriptor to a polling consumer. If the descriptor has not completed,
// done polls the connection first. [VIA-6.4-8] [VIA-8.3-5]
func (s *side) done() (*Descriptor, error) {
	d, h := s.q.Reap()
	if h == queue.NotDone {
		s.v.Poll()
		d, h = s.q.Reap()
	}
	return s.answer(d, h)
}

// doneN stores up to len(buf) completed descriptors in buf and returns their number. If the number
// is 0, the error is done's.
func (s *side) doneN(buf []*Descriptor) (n int, err error) {
	for n < len(buf) {
		d, h := s.q.Reap()
		if h != queue.Done {
			break
		}
		buf[n], _ = d.reaped()
		n++
	}
	if n == 0 && len(buf) > 0 {
		if buf[0], err = s.done(); buf[0] != nil {
			return 1, nil
		}
	}
	return n, err
}

func (s *side) wait(ctx context.Context) (*Descriptor, error) {
	if s.cq != nil && !s.v.closed.Load() {
		return nil, fmt.Errorf("%w: the queue is attached to a completion queue", ErrResource) // [VIA-6.4-10]
	}
	d, h, err := s.q.Wait(ctx, (*progress)(s.v)) // [VIA-6.4-9] [VIA-6.4-11] [VIA-8.3-4]
	if err != nil {
		return nil, waitError(err)
	}
	if h == queue.Empty {
		return nil, s.emptyError() // without waiting [VIA-6.4-9]
	}
	return d.reaped()
}

// waitError returns VIPL's error for the end of a context: ErrTimeout for a deadline, and otherwise
// err.
func waitError(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return ErrTimeout // [VIA-6.4-19] [VIA-8.3-9]
	}
	return err
}

// addNotify registers a handler for the next descriptor to be reaped.
func (s *side) addNotify(f func(*Descriptor)) error {
	if f == nil {
		return fmt.Errorf("%w: no handler", ErrInvalidParameter)
	}
	if s.v.closed.Load() {
		return ErrClosed
	}
	if s.cq != nil {
		return fmt.Errorf("%w: the queue is attached to a completion queue", ErrResource) // [VIA-6.4-10]
	}
	s.mu.Lock()
	if s.v.closed.Load() { // the VI is closed: cancelNotify has run, or waits for mu
		s.mu.Unlock()
		return ErrClosed
	}
	s.notify = append(s.notify, f)
	s.registered.Store(true)
	s.mu.Unlock()
	s.serveNotify()
	return nil
}

// serveNotify passes completed descriptors to the registered handlers, in order.
func (s *side) serveNotify() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.notify) > 0 {
		d, h := s.q.Reap()
		if h != queue.Done {
			return
		}
		f := s.notify[0] // [VIA-6.4-12] [VIA-8.3-18]
		s.notify = s.notify[1:]
		d.reaped()
		s.v.nic.notify.add(func() { f(d) })
	}
	s.registered.Store(false)
}

func (s *side) cancelNotify() {
	s.mu.Lock()
	s.notify = nil
	s.registered.Store(false)
	s.mu.Unlock()
}

// flush completes every outstanding descriptor. started is the status of the started descriptors:
// on a broken connection a transport error. [VIA 2.3]
func (s *side) flush(started Status) {
	s.completed(s.q.Flush(func(d **Descriptor, wasStarted bool) {
		bits := StatusFlushed // [VIA-2.3-9]
		if wasStarted && !s.isRecv {
			bits = started // [VIA-2.3-10]
		}
		(*d).result |= bits
		if s.isRecv {
			(*d).Length = 0
		}
	}))
}
