package shm

import (
	"sync/atomic"
	"unsafe"
)

// Bytes of memory from [Alloc] need not go through the ring: the producer leaves a
// reference, and the consumer copies them from the producer's memory, which it has mapped
// for reading only, to where they belong. A reference stands in the stream before a byte of
// the ring, and takes no room in it.
//
// What is referred to counts as written when the consumer has copied it: so it stays as it
// is until then. If it can't ([Producer.Detach]), the reference is moved to a copy. The
// consumer looks behind each piece that it copies whether that has happened, and copies it again:
// what it accepts was the producer's at that time.
//
// A consumer that does not know references never tells that it has mapped the memory.

const (
	// refMin is the least number of bytes that are worth a reference.
	refMin = 16 << 10

	// refSlots is how many references there may be at a time.
	refSlots = 64
)

// A slot is a reference in shared memory. It is the producer's.
type slot struct {
	where atomic.Uint64 // in the producer's memory; changes if the reference is moved
	pos   atomic.Uint64 // of the byte of the ring before which it stands
	size  atomic.Uint64
}

// slotsAt is where the slots of a control are.
const slotsAt = 1024

var (
	_ [slotsAt - unsafe.Sizeof(control{})]byte
	_ [controlSize - slotsAt - refSlots*unsafe.Sizeof(slot{})]byte
)

// slot returns the slot of the reference with the number n.
func (c *control) slot(n uint32) *slot {
	return (*slot)(unsafe.Add(unsafe.Pointer(c), slotsAt+uintptr(n%refSlots)*unsafe.Sizeof(slot{})))
}

// How far the offer of the producer's memory has come.
const (
	notOffered = iota
	offered    // it is on the way
	lent       // the consumer has mapped it
)

// referring is what a Producer knows of references.
type referring struct {
	refs   uint32   // put into slots since the beginning
	shown  uint32   // the truth about c.refs
	owed   int      // bytes that a write has taken, from the first reference on, and that are not reported yet
	out    [][]byte // what the references of that write refer to
	copies [][]byte // what they were moved to
	never  bool     // the memory can't be offered
}

// refers puts a reference to b behind what was written, if b is memory that the consumer has
// mapped, and there is a slot.
func (p *Producer) refers(b []byte) bool {
	if len(b) < refMin {
		return false
	}
	at, ok := arena.offset(b)
	if !ok || len(p.ref.out) == refSlots {
		return false
	}
	if p.c.lent.Load() != lent {
		p.offer()
		return false
	}
	s := p.c.slot(p.ref.refs)
	s.where.Store(at)
	s.pos.Store(p.tail)
	s.size.Store(uint64(len(b)))
	p.ref.refs++
	p.ref.out = append(p.ref.out, b)
	return true
}

// offer has the memory of Alloc sent to the consumer, once.
func (p *Producer) offer() {
	if p.ref.never || p.Offer == nil || arena.fd < 0 || p.c.offer.Load() != notOffered {
		return
	}
	sent, again := p.Offer(arena.fd)
	if sent {
		p.c.offer.Store(offered)
	}
	p.ref.never = !sent && !again
}

// settled reports whether the consumer has copied all that was referred to.
func (p *Producer) settled() (bool, error) {
	done := p.c.done.Load()
	if int(p.ref.refs-done) > len(p.ref.out) {
		return false, ErrIndex
	}
	return done == p.ref.refs, nil
}

// settle is a write while bytes are owed: it reports them as soon as it may.
func (p *Producer) settle() (n int, err error) {
	ok, err := p.settled()
	switch {
	case err != nil:
		return 0, err
	case ok:
		n = p.ref.owed
		p.forgive()
		return n, nil
	case p.c.left.Load() != 0:
		return 0, ErrPipe
	}
	return 0, ErrWouldBlock
}

// forgive ends the references of a write.
func (p *Producer) forgive() {
	for _, b := range p.ref.copies {
		_ = Free(b)
	}
	clear(p.ref.copies)
	clear(p.ref.out)
	p.ref.out, p.ref.copies, p.ref.owed = p.ref.out[:0], p.ref.copies[:0], 0
}

// Owed returns how many bytes a write has taken that are not reported as written yet,
// since the consumer is to copy them from where they are.
func (p *Producer) Owed() int { return p.ref.owed }

// Detach makes what was written independent of the memory that it was written from: the
// references that the consumer may still follow are moved to copies. If there is no memory for
// those, the stream is aborted.
func (p *Producer) Detach() {
	if p.ref.owed == 0 || p.end != open || len(p.ref.copies) > 0 {
		return
	}
	done, first := p.c.done.Load(), p.ref.refs-uint32(len(p.ref.out))
	if done-first > uint32(len(p.ref.out)) {
		done = first // it can't be, as the next write finds
	}
	for n := done; n != p.ref.refs; n++ {
		b := p.ref.out[n-first]
		c, err := Alloc(len(b))
		if err != nil {
			p.finish(aborted)
			return
		}
		copy(c, b)
		p.ref.copies = append(p.ref.copies, c)
		at, _ := arena.offset(c)
		// What the caller does to its memory comes after a swap, for the consumer too.
		p.c.slot(n).where.Swap(at)
	}
}

// following is what a Consumer knows of references.
type following struct {
	refs   uint32 // how many it has seen
	done   uint32 // the truth about c.done
	list   []reference
	bytes  int    // of those in list, that were not taken
	taken  uint64 // bytes since the beginning
	from   *Lent  // the producer's memory
	refuse bool   // it can't be mapped
}

// A reference is what was read, once, from a slot.
type reference struct {
	pos         uint64
	size, taken int
}

// see reads the references up to the number to, but those before which the position has
// yet to be seen.
func (q *Consumer) see(to uint32) error {
	f := &q.ref
	if f.from == nil || to-f.done > refSlots {
		return ErrIndex
	}
	for ; f.refs != to; f.refs++ {
		s := q.c.slot(f.refs)
		r := reference{pos: s.pos.Load(), size: int(s.size.Load())}
		if r.pos-q.head > q.tail-q.head {
			if r.pos-q.head > uint64(len(q.data)) { // the ring may have grown since the last look
				return ErrIndex
			}
			return nil
		}
		if n := len(f.list); n > 0 && r.pos-q.head < f.list[n-1].pos-q.head || r.size <= 0 || r.size > f.from.Len() {
			return ErrIndex
		}
		f.list = append(f.list, r)
		f.bytes += r.size
	}
	return nil
}

// Apart reports whether the next bytes are in the producer's memory.
func (q *Consumer) Apart() bool { return len(q.ref.list) > 0 && q.ref.list[0].pos == q.head }

// run returns how many of the next n bytes, which are there, are in one place, and whether
// that is memory of the producer.
func (q *Consumer) run(n int) (k int, far bool) {
	if len(q.ref.list) == 0 {
		return n, false
	}
	r := &q.ref.list[0]
	if r.pos == q.head {
		return min(n, r.size-r.taken), true
	}
	return min(n, int(r.pos-q.head)), false
}

// fetch copies what is off bytes behind the front of the i-th reference.
func (q *Consumer) fetch(i, off int, b []byte) error {
	s, r := q.c.slot(q.ref.done+uint32(i)), &q.ref.list[i]
	for range refSlots { // it is moved once; a peer that moves it again and again gains nothing
		where := s.where.Load()
		from, err := q.ref.from.bytes(where, r.size)
		if err != nil {
			return err
		}
		copy(b, from[r.taken+off:])
		// A swap, since the copying comes before it.
		if s.where.CompareAndSwap(where, where) {
			if q.c.end.Load() == aborted {
				return ErrReset // before that the memory was the producer's
			}
			return nil
		}
	}
	return ErrIndex
}

// follow fills b from the first reference, which has so much.
func (q *Consumer) follow(b []byte) error {
	if err := q.fetch(0, 0, b); err != nil {
		return err
	}
	f := &q.ref
	r := &f.list[0]
	r.taken += len(b)
	f.bytes -= len(b)
	f.taken += uint64(len(b))
	if r.taken < r.size {
		return nil
	}
	f.list = f.list[:copy(f.list, f.list[1:])]
	f.done++
	q.c.done.Store(f.done)
	if len(f.list) == 0 && q.c.full.Load() == awaitsCopy && q.c.full.Swap(0) != 0 {
		q.Wake()
	}
	return nil
}

// peekFar is get where references are.
func (q *Consumer) peekFar(off int, b []byte) error {
	at := q.head
	for i := 0; len(b) > 0; i++ {
		near := q.tail - at
		if i < len(q.ref.list) {
			near = q.ref.list[i].pos - at
		}
		if off < int(near) {
			n := min(len(b), int(near)-off)
			q.get(b[:n], int(at-q.head)+off)
			b, off = b[n:], 0
		} else {
			off -= int(near)
		}
		if at += near; len(b) == 0 || i == len(q.ref.list) {
			break
		}
		r := &q.ref.list[i]
		if far := r.size - r.taken; off < far {
			n := min(len(b), far-off)
			if err := q.fetch(i, off, b[:n]); err != nil {
				return err
			}
			b, off = b[n:], 0
		} else {
			off -= far
		}
	}
	return nil
}

// Expects reports whether memory of the producer's is on the way that was not mapped yet.
func (q *Consumer) Expects() bool {
	return q.c.offer.Load() == offered && q.ref.from == nil && !q.ref.refuse
}

// Borrow maps the producer's memory, which has come. The descriptor stays the caller's.
func (q *Consumer) Borrow(fd int) {
	if q.ref.from != nil || q.ref.refuse {
		return
	}
	from, err := borrow(fd)
	if err != nil {
		q.ref.refuse = true // it goes through the ring
		return
	}
	q.ref.from = from
	q.c.lent.Store(lent)
}

// Close gives back what Borrow has mapped. Nothing uses the Consumer any more.
func (q *Consumer) Close() {
	if q.ref.from != nil {
		q.ref.from.close()
	}
}
