package rxe

import (
	"sync"

	"viaduct/cmd/viaduct/internal/rdma/abi"
)

// An SRQ is a receive queue shared by several queue pairs.
type SRQ struct {
	sge   uint32
	limit func() // called with the queue locked when it has fewer receives than the limit

	mu   sync.Mutex
	ring ring   // guarded by mu
	low  uint32 // guarded by mu; the limit, 0 if not armed
}

// SRQLimits are the sizes and the limit of a shared receive queue.
type SRQLimits struct{ WR, SGE, Limit uint32 }

// NewSRQ creates a shared receive queue. It calls limit once, with the queue locked, when the queue
// has fewer receives than l.Limit, unless l.Limit is 0. The error is ErrInvalid or ErrMemory.
func NewSRQ(a Arena, l SRQLimits, limit func()) (*SRQ, error) {
	if l.WR == 0 || l.WR > MaxWR || l.SGE > MaxSRQSGE || l.Limit > l.WR {
		return nil, ErrInvalid
	}
	l.SGE = max(l.SGE, 1)
	r, err := newRing(a, l.WR, recvHeadLen+sgeLen*int(l.SGE))
	if err != nil {
		return nil, ErrMemory
	}
	return &SRQ{sge: l.SGE, limit: limit, ring: r, low: l.Limit}, nil
}

// Describe returns the actual limits, and the description of the ring.
func (q *SRQ) Describe() (SRQLimits, abi.Body) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return SRQLimits{q.ring.mask, q.sge, q.low}, q.ring.info()
}

// take copies the next receive, and frees the entry. It returns false if none is posted.
func (q *SRQ) take(e *recvEntry) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ring.mem == nil || q.ring.waiting() == 0 {
		return false
	}
	e.take(q.ring.slot(q.ring.at))
	q.ring.pop()
	if q.low > 0 && q.ring.waiting() < q.low {
		q.low = 0
		q.limit()
	}
	return true
}

// Arm arms the limit: the queue calls the limit function once when fewer than low receives are
// left. 0 disarms the limit. The error is ErrInvalid if the ring has no room for low receives.
func (q *SRQ) Arm(low uint32) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if low > q.ring.mask {
		return ErrInvalid
	}
	q.low = low
	return nil
}

// Resize moves the queue with the posted receives to a new ring for at least n receives; keep is as
// in [CQ.Resize].
func (q *SRQ) Resize(n uint32, keep func(info abi.Body) bool) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ring.mem == nil {
		return ErrInvalid
	}
	posted := q.ring.waiting()
	if n == 0 || n > MaxWR || n < posted || n < q.low {
		return ErrInvalid
	}
	r, err := newRing(q.ring.arena, n, 1<<q.ring.shift)
	if err != nil {
		return ErrMemory
	}
	r.adopt(&q.ring, q.ring.at, posted)
	if !keep(r.info()) {
		r.drop()
		return nil
	}
	q.ring.drop()
	q.ring = r
	return nil
}

// Close frees the ring. The limit function is not called afterwards.
func (q *SRQ) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ring.drop()
}
