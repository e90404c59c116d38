package shm

import (
	"sync"
	"sync/atomic"
	"time"
)

// A ring begins small. It grows to FirstRing when a write finds no room or is longer than the ring.
// The producer enlarges it further when bytes pass fast and writes wait for room, so that 1000
// connections do not need 1000 large rings. All addresses are mapped from the beginning, and a page
// exists from the first write to it on. The size changes only while the ring is empty, and the
// producer publishes the size before the next position, so that both ends agree on the place of each
// byte. When few bytes pass any more, a ring larger than FirstRing becomes small again, and the pages
// are returned to the system.

const (
	// A ring grows by the factor growBy when growPasses times the ring's size in bytes has passed
	// within growWithin, and writes have waited for room meanwhile.
	growPasses = 4
	growWithin = 10 * time.Millisecond
	growBy     = 8

	// A ring becomes small again when less than the ring's size in bytes has passed within
	// calmTime.
	calmTime = time.Second
)

// growth is the part of a Producer's state for the size of the ring.
type growth struct {
	due bool // the ring gets another size as soon as it is empty

	since time.Time // beginning of the period of counting passes; zero: none
	from  uint64    // the position at since

	large atomic.Bool // the ring has grown; then each use of the Producer holds mu
	held  bool        // the producer holds mu
	mu    sync.Mutex
	calm  uint64 // the position when shrink was last called; guarded by mu
}

func (g *growth) enter() {
	if g.large.Load() {
		g.mu.Lock()
		g.held = true
	}
}

func (g *growth) leave() {
	if g.held {
		g.held = false
		g.mu.Unlock()
	}
}

// full records that a write has found no room, and decides whether the ring is to grow.
func (p *Producer) full() {
	g := &p.grow
	if g.due || p.ring == uint64(len(p.data)) {
		return
	}
	if p.ring < firstRing(p.data) {
		g.due = true
		return
	}
	now := time.Now()
	if g.since.IsZero() || now.Sub(g.since) > growWithin {
		g.since, g.from = now, p.tail
		return
	}
	g.due = p.tail-g.from >= growPasses*p.ring
}

// foresee makes the ring grow before a write of n bytes if the ring is small, empty and shorter than
// the write. Otherwise the writer would have to wait for the consumer.
func (p *Producer) foresee(n int) {
	if uint64(n) > p.ring && p.ring < firstRing(p.data) && p.c.head.Load() == p.tail {
		p.grow.due = true
	}
}

// length returns the number of bytes of all pieces.
func length(pieces [][]byte) (n int) {
	for _, b := range pieces {
		n += len(b)
	}
	return n
}

// enlarge gives the ring its first size, or makes the ring larger if the memory limit allows it. The
// ring is empty.
func (p *Producer) enlarge() {
	g := &p.grow
	g.due, g.since = false, time.Time{}
	if p.ring == 0 {
		p.setSize(p.least())
		return
	}
	if first := firstRing(p.data); p.ring < first {
		p.setSize(first)
		return
	}
	to := min(growBy*p.ring, uint64(len(p.data)))
	if !process.rings.reserveMore(int64(to - p.ring)) {
		return
	}
	if !g.large.Load() {
		g.large.Store(true)
		g.enter() // the call in progress unlocks it in leave
		g.calm = p.tail
		process.grown.add(p)
	}
	p.setSize(to)
}

// setSize changes the size of the empty ring.
func (p *Producer) setSize(n uint64) {
	p.ring = n
	p.c.size.Store(uint32(n))
}

// least returns the initial size of the ring.
func (p *Producer) least() uint64 {
	if p.c.small.Load() == 1 {
		return smallRing
	}
	return firstRing(p.data)
}

// shrink reduces the ring to the initial size, returns the other pages to the system, and returns
// true. It returns false unless the ring is empty and less than the ring's size has passed since
// the last call.
func (p *Producer) shrink() bool {
	g := &p.grow
	g.mu.Lock()
	defer g.mu.Unlock()
	busy := p.tail-g.calm >= p.ring
	g.calm = p.tail
	if busy || p.c.head.Load() != p.tail {
		return false
	}
	p.head = p.tail
	before := p.ring
	p.setSize(p.least())
	giveBack(p.data[p.ring:before])
	process.rings.release(int64(before - firstRing(p.data)))
	g.due, g.since = false, time.Time{}
	g.large.Store(false)
	return true
}

// disown ends the growth and the references of a ring, because the memory is about to be unmapped.
func (p *Producer) disown() {
	if len(p.ref.copies) > 0 {
		p.forgive()
	}
	process.grown.Lock()
	defer process.grown.Unlock()
	delete(process.grown.list, p)
	if p.grow.large.Load() {
		process.rings.release(int64(p.ring - firstRing(p.data)))
	}
}

// resize adopts the size the producer has published; 0 stands for FirstRing. The ring was
// empty when the producer published the size. resize returns ErrIndex if the size is impossible.
func (q *Consumer) resize() error {
	size := uint64(q.c.size.Load())
	if size == 0 {
		size = firstRing(q.data)
	}
	if size == q.ring {
		return nil
	}
	if size < smallRing || size > uint64(len(q.data)) || size&(size-1) != 0 {
		return ErrIndex
	}
	q.ring = size
	return nil
}

// large is the set of the producers whose rings have grown.
type large struct {
	sync.Mutex
	list  map[*Producer]struct{}
	armed bool // a timer will call shrinkLocked
}

func (l *large) add(p *Producer) {
	l.Lock()
	defer l.Unlock()
	if l.list == nil {
		l.list = make(map[*Producer]struct{})
	}
	l.list[p] = struct{}{}
	l.armLocked()
}

func (l *large) armLocked() {
	if l.armed || len(l.list) == 0 {
		return
	}
	l.armed = true
	time.AfterFunc(calmTime, func() {
		l.Lock()
		defer l.Unlock()
		l.armed = false
		l.shrinkLocked()
		l.armLocked()
	})
}

// shrinkLocked shrinks the rings with little traffic, and removes the producers from the set. The
// caller holds the lock.
func (l *large) shrinkLocked() {
	for p := range l.list {
		if p.shrink() {
			delete(l.list, p)
		}
	}
}
