package transport

import (
	"sync"
	"sync/atomic"
)

// A slab is the memory of the posted receives of a connection: count receives of size bytes each.
// The peer may fill all receives at any moment, so each must be as long as the longest message. But
// the kernel allocates pages only for arrived bytes. An idle connection after only short messages
// has a page per receive, even if long messages are accepted. [V-43] [I-70]
type slab struct {
	mem  []byte
	size int
	pool *slabPool

	mu   sync.Mutex
	used []int // guarded by mu: bytes that messages filled in each receive since giveBack last freed its pages
	over bool  // guarded by mu: the memory may belong to another connection
}

// A slabPool hands out slabs and reuses the memory for later connections. When a connection ends,
// the pages filled by messages go back to the kernel. The zero value is ready. Safe for concurrent
// use.
type slabPool struct {
	dirty atomic.Int64 // bytes that messages have filled, in the slabs in use

	mu   sync.Mutex
	free map[int][][]byte // by length
}

// slabs is the pool of the process.
var slabs slabPool

const (
	// slabKeep is how many bytes of each receive are kept until the connection ends.
	slabKeep = 64 << 10
	// slabBudget bounds the memory filled by messages in all slabs. Above the bound, a receive
	// posted again returns the bytes beyond slabKeep to the kernel. A new allocation costs a few
	// microseconds per 64 KiB.
	slabBudget = 256 << 20
)

// get returns a slab of count receives of size bytes each. Its bytes are zero, or left over from a
// former connection.
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

// filled records a message of n bytes in receive i.
func (s *slab) filled(i, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over {
		s.holdLocked(i, max(n, s.used[i]))
	}
}

// repost must be called before receive i is posted again, when the message is no longer used.
// repost may return memory of the receive to the kernel.
func (s *slab) repost(i int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over && s.used[i] > slabKeep && s.pool.dirty.Load() > slabBudget {
		giveBack(s.at(i)[slabKeep:])
		s.holdLocked(i, slabKeep)
	}
}

// holdLocked records n filled bytes of receive i. The caller holds s.mu.
func (s *slab) holdLocked(i, n int) {
	s.pool.dirty.Add(int64(n - s.used[i]))
	s.used[i] = n
}

// put returns the memory to the pool. No receive of the slab may still be posted. A caller still
// reading a message may then see zeros, or data of another connection. Further calls do nothing.
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

// bytes returns the size of all receives together. It returns 0 for a nil slab.
func (s *slab) bytes() uint64 {
	if s == nil {
		return 0
	}
	return uint64(len(s.mem))
}
