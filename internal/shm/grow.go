package shm

import (
	"sync"
	"sync/atomic"
	"time"
)

// A ring begins small, and its producer has it grow when bytes pass fast and wait
// for room: 1000 connections do not have 1000 large rings. The memory is mapped
// from the beginning, and its pages exist from the time when they are first
// written to. The size changes only while the ring is empty, and is published before
// the next position: so both ends agree on where each byte is. When little passes
// any more, the ring becomes small again, and the pages go back to the system.

const (
	// growPasses is how many times the bytes of a ring have to pass within
	// growWithin, with waits for room, for the ring to grow growBy times.
	growPasses = 4
	growWithin = 10 * time.Millisecond
	growBy     = 8

	// calmTime is how long a ring has to be passed less than once to become
	// small again.
	calmTime = time.Second
)

// growth is what a Producer knows of the size of its ring.
type growth struct {
	due bool // it is to grow as soon as the ring is empty

	since time.Time // of a time in which the passes are counted
	from  uint64    // the position then

	large atomic.Bool // the ring has grown; then mu is held around all uses of the Producer
	held  bool        // the producer holds mu
	mu    sync.Mutex
	calm  uint64 // the position at the last look of shrinkLocked; guarded by mu
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

// full is called when there is no room.
func (p *Producer) full() {
	g := &p.grow
	if g.due || p.ring == uint64(len(p.data)) {
		return
	}
	now := time.Now()
	if g.since.IsZero() || now.Sub(g.since) > growWithin {
		g.since, g.from = now, p.tail
		return
	}
	g.due = p.tail-g.from >= growPasses*p.ring
}

// enlarge has the ring grow, which is empty, if there is memory for it.
func (p *Producer) enlarge() {
	g := &p.grow
	g.due, g.since = false, time.Time{}
	to := min(growBy*p.ring, uint64(len(p.data)))
	if !reserveMore(int64(to - p.ring)) {
		return
	}
	if !g.large.Load() {
		g.large.Store(true)
		g.enter() // until the call in progress leaves
		g.calm = p.tail
		grown.add(p)
	}
	p.ring = to
	p.c.size.Store(uint32(to))
}

// shrink makes the ring as small as it was at first if less than its size has
// passed since the last call. It reports whether that was done.
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
	p.ring = firstRing(p.data)
	p.c.size.Store(uint32(p.ring))
	giveBack(p.data[p.ring:before])
	release(int64(before - p.ring))
	g.due, g.since = false, time.Time{}
	g.large.Store(false)
	return true
}

// disown ends the growth and the references of a ring whose memory is going to be unmapped.
func (p *Producer) disown() {
	if len(p.ref.copies) > 0 {
		p.forgive()
	}
	grown.Lock()
	defer grown.Unlock()
	delete(grown.list, p)
	if p.grow.large.Load() {
		release(int64(p.ring - firstRing(p.data)))
	}
}

// resize reads the size of the ring. The ring was empty.
func (q *Consumer) resize() error {
	size := uint64(q.c.size.Load())
	if size == 0 {
		size = firstRing(q.data)
	}
	if size == q.ring {
		return nil
	}
	if size < firstRing(q.data) || size > uint64(len(q.data)) || size&(size-1) != 0 {
		return ErrIndex
	}
	q.ring = size
	return nil
}

// grown has the producers whose rings are large.
var grown large

type large struct {
	sync.Mutex
	list  map[*Producer]struct{}
	armed bool // a look is to come
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

// shrinkLocked makes those small by which little passes.
func (l *large) shrinkLocked() {
	for p := range l.list {
		if p.shrink() {
			delete(l.list, p)
		}
	}
}
