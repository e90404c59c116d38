package transport

import (
	"sync"
	"sync/atomic"
)

// A slab is the memory of the receives that one connection keeps posted: count of
// size bytes each. The peer may fill all of them at any moment, so each has to be as
// long as the longest message; but it is taken from the system page by page, as
// messages come in. An idle connection that has seen short messages holds a page per
// receive, whatever its longest message may be. [V-43] [I-70]
type slab struct {
	mem  []byte
	size int
	pool *slabPool

	mu   sync.Mutex
	used []int // guarded by mu: bytes of each receive that messages have filled since they were given back
	over bool  // guarded by mu: another connection may have the memory
}

// A slabPool makes slabs, and takes them back for other connections. What the
// messages of one connection have left in its slab is given back to the system with
// it. The zero value is ready. Safe for concurrent use.
type slabPool struct {
	dirty atomic.Int64 // bytes that messages have filled of the slabs in use

	mu   sync.Mutex
	free map[int][][]byte // by length
}

// slabs is the pool of the process.
var slabs slabPool

const (
	// slabKeep is how much of each receive is never given back before its
	// connection ends.
	slabKeep = 64 << 10
	// slabBudget is how much memory all slabs may hold before receives that are
	// longer give back what is beyond slabKeep each time they are posted again:
	// getting it anew costs a few microseconds for 64 KiB.
	slabBudget = 256 << 20
)

// get returns a slab whose bytes are zero or a former connection's.
func (p *slabPool) get(size, count int) (*slab, error) {
	n := max(size*count, 1)
	p.mu.Lock()
	var mem []byte
	if f := p.free[n]; len(f) > 0 {
		mem = f[len(f)-1]
		p.free[n] = f[:len(f)-1]
	}
	p.mu.Unlock()
	if mem == nil {
		var err error
		if mem, err = mapLazily(n); err != nil {
			return nil, err
		}
	}
	return &slab{mem: mem, size: size, pool: p, used: make([]int, count)}, nil
}

// at returns the memory of receive i.
func (s *slab) at(i int) []byte { return s.mem[i*s.size:][:s.size:s.size] }

// filled notes that a message of n bytes has come into receive i.
func (s *slab) filled(i, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over {
		s.holdLocked(i, max(n, s.used[i]))
	}
}

// repost is called when the message in receive i was used, before it is posted again.
func (s *slab) repost(i int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over && s.used[i] > slabKeep && s.pool.dirty.Load() > slabBudget {
		giveBack(s.at(i)[slabKeep:])
		s.holdLocked(i, slabKeep)
	}
}

// holdLocked notes that receive i holds n bytes.
func (s *slab) holdLocked(i, n int) {
	s.pool.dirty.Add(int64(n - s.used[i]))
	s.used[i] = n
}

// put gives the slab back. Nothing must be posted in it any more; a message that
// is still being looked at reads as zeros or as another connection's.
func (s *slab) put() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return
	}
	s.over = true
	for i := range s.used {
		s.holdLocked(i, 0)
	}
	if !slabsReused {
		return
	}
	giveBack(s.mem)
	p := s.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.free == nil {
		p.free = make(map[int][][]byte)
	}
	p.free[len(s.mem)] = append(p.free[len(s.mem)], s.mem)
}

// bytes is the memory of the receives, 0 if there is none yet.
func (s *slab) bytes() uint64 {
	if s == nil {
		return 0
	}
	return uint64(len(s.mem))
}
