package iwarp

import (
	"fmt"
	"sync/atomic"

	"viaduct/internal/queue"
)

// A recvQueue holds receive buffers. TCP delivers in order, so a buffer is taken at the first
// segment of a message, and completes before the next buffer is taken.
type recvQueue struct {
	wait  queue.FIFO[*recvWQE] // posted and not yet taken
	depth int
	used  atomic.Int64 // posted, and the completion not yet polled
}

func (r *recvQueue) post(w *recvWQE) error {
	if r.used.Add(1) > int64(r.depth) {
		r.used.Add(-1)
		return ErrQueueFull
	}
	r.wait.Push(w)
	return nil
}

func (r *recvQueue) take() (*recvWQE, bool) { return r.wait.Pop() }

// A SharedReceiveQueue is a receive queue for several streams. Three means bound a greedy peer: the
// statistics of each stream count taken and held buffers, Config.SRQShare limits the held buffers,
// and Low signals when buffers run low. Safe for concurrent use.
type SharedReceiveQueue struct { // [SEC-6.4.3.1-1] [DDP-8.3.2-5] [RDMAP-8.1.2-7]
	mem memory
	q   recvQueue
	low atomic.Int64
	sig chan struct{}
}

// NewSRQ returns a shared receive queue of the domain for at most depth buffers. The error is
// ErrLimit if depth is not positive or exceeds Limits.QueueDepth.
func (p *ProtectionDomain) NewSRQ(depth int) (*SharedReceiveQueue, error) {
	if depth <= 0 || depth > p.dev.cfg.Limits.QueueDepth {
		return nil, fmt.Errorf("%w: receive queue of %d, at most %d", ErrLimit, depth, p.dev.cfg.Limits.QueueDepth)
	}
	return &SharedReceiveQueue{mem: newMemory(p), q: recvQueue{depth: depth}, sig: make(chan struct{}, 1)}, nil
}

// Post adds a buffer. The error wraps ErrInvalid, ErrRegistered or ErrQueueFull.
func (s *SharedReceiveQueue) Post(wr RecvWR) error {
	w, err := newRecvWQE(&wr, &s.mem)
	if err != nil {
		return err
	}
	if err := s.q.post(w); err != nil {
		freeRecvWQE(w)
		return err
	}
	return nil
}

// Len returns the number of buffers in the queue that no message has taken yet.
func (s *SharedReceiveQueue) Len() int { return s.q.wait.Len() }

// ArmLow asks for one signal on [SharedReceiveQueue.Low]. The signal is sent when a message takes a
// buffer and leaves fewer than n, even if the queue is low already. n = 0 cancels the request.
func (s *SharedReceiveQueue) ArmLow(n int) { s.low.Store(int64(n)) }

// Low returns the channel for the signals of ArmLow. The channel holds at most one signal.
func (s *SharedReceiveQueue) Low() <-chan struct{} { return s.sig }

func (s *SharedReceiveQueue) take() (*recvWQE, bool) {
	w, ok := s.q.take()
	if n := s.low.Load(); n > 0 && int64(s.q.wait.Len()) < n && s.low.CompareAndSwap(n, 0) {
		select {
		case s.sig <- struct{}{}:
		default:
		}
	}
	return w, ok
}
