package vi

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"viaduct/internal/queue"
)

// A side is one work queue of a VI with what reports its completions.
type side struct {
	v      *VI
	q      queue.Work[*Descriptor]
	cq     *CompletionQueue
	isRecv bool

	registered atomic.Bool // there are Notify registrations
	mu         sync.Mutex
	notify     []func(*Descriptor) // guarded by mu
}

func (s *side) init(v *VI, cq *CompletionQueue, isRecv bool, limit int) {
	s.v, s.cq, s.isRecv = v, cq, isRecv
	s.q.Limit = limit
	s.q.OnDone = (*Descriptor).publish
}

func (s *side) empty() bool {
	c := s.q.Counts()
	return c.Posted == c.Reaped
}

// completed reports that n descriptors are done. It is called without locks
// of the queues.
func (s *side) completed(n int) {
	if n == 0 {
		return
	}
	if s.cq != nil {
		s.cq.q.PushN(Completion{VI: s.v, Recv: s.isRecv}, n)
		return
	}
	if s.registered.Load() {
		s.serveNotify()
	}
}

// post appends d, which belongs to the NIC until it is reaped.
func (s *side) post(d *Descriptor) error {
	if d == nil {
		return fmt.Errorf("%w: no descriptor", ErrInvalidParameter)
	}
	d.status.Store(0)
	if s.isRecv {
		d.result = StatusOpReceive
	} else {
		d.result = d.Control.sendOp()
	}
	if _, err := s.q.Post(d); err != nil {
		if errors.Is(err, queue.ErrFull) {
			s.v.overrun(d)
			return ErrOverrun
		}
		return err
	}
	return nil
}

// reap takes the first descriptor if it is done. [VIA 6.4.4]
func (s *side) reap() (*Descriptor, error) {
	d, h := s.q.Reap()
	switch h {
	case queue.Done:
		return d, d.Status().Err()
	case queue.Empty:
		return nil, ErrQueueEmpty
	}
	return nil, ErrNotDone
}

// done is reap for a consumer that polls: it drives the connection first if
// there is nothing yet.
func (s *side) done() (*Descriptor, error) {
	d, err := s.reap()
	if err == ErrNotDone {
		s.v.Poll()
		d, err = s.reap()
	}
	return d, err
}

func (s *side) wait(ctx context.Context) (*Descriptor, error) {
	if s.cq != nil {
		return nil, fmt.Errorf("%w: the queue is attached to a completion queue", ErrResource)
	}
	d, h, err := s.q.Wait(ctx, s.v)
	if err != nil {
		return nil, waitError(err)
	}
	if h == queue.Empty {
		return nil, ErrQueueEmpty
	}
	return d, d.Status().Err()
}

// waitError turns the end of a context into what VIPL calls it.
func waitError(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return ErrTimeout
	}
	return err
}

// addNotify registers a handler for the next descriptor to be reaped.
func (s *side) addNotify(f func(*Descriptor)) error {
	if f == nil {
		return fmt.Errorf("%w: no handler", ErrInvalidParameter)
	}
	if s.cq != nil {
		return fmt.Errorf("%w: the queue is attached to a completion queue", ErrResource)
	}
	s.mu.Lock()
	s.notify = append(s.notify, f)
	s.registered.Store(true)
	s.mu.Unlock()
	s.serveNotify()
	return nil
}

// serveNotify hands descriptors that are done to registrations, in order.
func (s *side) serveNotify() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.notify) > 0 {
		d, h := s.q.Reap()
		if h != queue.Done {
			return
		}
		f := s.notify[0]
		s.notify = s.notify[1:]
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

// flush completes every descriptor that has not. What was started on a
// connection that broke under it is a transport error. [VIA 2.3]
func (s *side) flush(started Status) {
	s.completed(s.q.Flush(func(d **Descriptor, wasStarted bool) {
		bits := StatusFlushed
		if wasStarted && !s.isRecv {
			bits = started
		}
		(*d).result |= bits
		if s.isRecv {
			(*d).Length = 0
		}
	}))
}
