package shm

import (
	"sync/atomic"
	"unsafe"
)

// Bytes of memory from [Alloc] can bypass the ring. The producer leaves a reference to the bytes,
// and the consumer copies the bytes directly from the producer's memory, mapped for reading. A
// reference has a place in the stream, before a byte of the ring, and takes no room in the ring.
//
// Bytes passed by reference count as written when the consumer has copied them. The producer must
// not change the bytes before that. If the owner of the memory cannot wait ([Producer.Detach]), the
// reference is moved to a copy. After each copy the consumer checks whether the reference was moved
// meanwhile, and copies again if so: accepted bytes were the stream's at the time of the copy.
//
// A consumer without support for references never records a mapping of the memory.

const (
	// refMin is the least number of bytes worth the cost of a reference.
	refMin = 16 << 10

	// refSlots is the greatest number of references at a time.
	refSlots = 64
)

// A slot is a reference in shared memory, written by the producer.
type slot struct {
	where atomic.Uint64 // offset in the producer's memory; changes when the reference is moved
	pos   atomic.Uint64 // position of the ring's byte after the bytes of the reference
	size  atomic.Uint64
}

// slotsAt is the offset of the slots in the page of a control.
const slotsAt = 1024

var (
	_ [slotsAt - unsafe.Sizeof(control{})]byte
	_ [controlSize - slotsAt - refSlots*unsafe.Sizeof(slot{})]byte
)

// slot returns the slot of reference number n. Numbers begin at 0 and never restart; slots are
// reused in turn.
func (c *control) slot(n uint32) *slot {
	return (*slot)(unsafe.Add(unsafe.Pointer(c), slotsAt+uintptr(n%refSlots)*unsafe.Sizeof(slot{})))
}

// States of the offer of the producer's memory.
const (
	notOffered = iota
	offered    // the producer has sent it
	lent       // the consumer has mapped it
)

// referring is the part of a Producer's state for references.
type referring struct {
	refs   uint32   // number of references put into slots since the beginning
	shown  uint32   // the private copy of c.refs
	owed   int      // bytes that a write has taken but not yet reported, from its first reference on
	out    [][]byte // the bytes of the references of this write
	copies [][]byte // copies to which Detach has moved references
	never  bool     // the memory cannot be offered
}

// refers leaves a reference to b after the bytes written so far, and returns true. It returns false
// if b is too short or is not memory of Alloc, if all slots are in use, or if the consumer has not
// mapped the memory. In the last case refers offers the memory.
func (p *Producer) refers(b []byte) bool {
	if len(b) < refMin {
		return false
	}
	at, ok := process.arena.offset(b)
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

// offer sends the memory of Alloc to the consumer, unless an earlier call has done so or has failed
// for good.
func (p *Producer) offer() {
	if p.ref.never || p.Offer == nil || process.arena.fd < 0 || p.c.offer.Load() != notOffered {
		return
	}
	sent, again := p.Offer(process.arena.fd)
	if sent {
		p.c.offer.Store(offered)
	}
	p.ref.never = !sent && !again
}

// settled reports whether the consumer has copied all referred bytes. The error is ErrIndex if the
// consumer's count is impossible.
func (p *Producer) settled() (bool, error) {
	done := p.c.done.Load()
	if int(p.ref.refs-done) > len(p.ref.out) {
		return false, ErrIndex
	}
	return done == p.ref.refs, nil
}

// settle is the part of a write for owed bytes. n is the number of owed bytes once the consumer has
// copied all of them. Before that, the error is ErrWouldBlock, or ErrPipe if the consumer takes no
// more.
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

// forgive forgets the references of a write and frees their copies.
func (p *Producer) forgive() {
	for _, b := range p.ref.copies {
		_ = Free(b)
	}
	clear(p.ref.copies)
	clear(p.ref.out)
	p.ref.out, p.ref.copies, p.ref.owed = p.ref.out[:0], p.ref.copies[:0], 0
}

// Owed returns the number of bytes a write has taken but not yet reported as written, because the
// consumer has still to copy them from the writer's memory.
func (p *Producer) Owed() int { return p.ref.owed }

// Detach makes the stream independent of the writer's memory: references the consumer may still
// follow are moved to copies. If there is no memory for the copies, Detach aborts the stream.
// Detach does nothing if no bytes are owed, or after Finish or Abort.
func (p *Producer) Detach() {
	if p.ref.owed == 0 || p.end != open || len(p.ref.copies) > 0 {
		return
	}
	done, first := p.c.done.Load(), p.ref.refs-uint32(len(p.ref.out))
	if done-first > uint32(len(p.ref.out)) {
		done = first // an impossible count; the next write reports it
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
		at, _ := process.arena.offset(c)
		// Swap orders the store before the caller's later changes to the memory, in the view of the
		// consumer too.
		p.c.slot(n).where.Swap(at)
	}
}

// following is the part of a Consumer's state for references.
type following struct {
	refs   uint32 // number of references seen since the beginning
	done   uint32 // the private copy of c.done
	list   []reference
	bytes  int    // bytes of the references in list that were not taken yet
	taken  uint64 // bytes taken by reference since the beginning
	from   *Lent  // the producer's memory; nil: not mapped
	refuse bool   // the producer's memory cannot be mapped
}

// A reference is the private copy of a slot, read once.
type reference struct {
	pos         uint64
	size, taken int
}

// see reads the references up to number to, except references after the last seen position. The
// error is ErrIndex for an impossible reference.
func (q *Consumer) see(to uint32) error {
	f := &q.ref
	if f.from == nil || to-f.done > refSlots {
		return ErrIndex
	}
	for ; f.refs != to; f.refs++ {
		s := q.c.slot(f.refs)
		r := reference{pos: s.pos.Load(), size: int(s.size.Load())}
		if r.pos-q.head > q.tail-q.head {
			// The bound is not q.ring, because the ring may have grown since the last look.
			if r.pos-q.head > uint64(len(q.data)) {
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

// run returns how many of the next n bytes are in the same place, and whether the place is the
// producer's memory. The n bytes are available.
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

// fetch copies bytes of the i-th reference of the list to b. fetch skips off bytes after the bytes
// already taken. The error is ErrIndex if the reference is outside the producer's memory, and
// ErrReset if the stream was aborted.
func (q *Consumer) fetch(i, off int, b []byte) error {
	s, r := q.c.slot(q.ref.done+uint32(i)), &q.ref.list[i]
	for range refSlots { // a reference is moved once; the limit is for a peer that moves it forever
		where := s.where.Load()
		from, err := q.ref.from.bytes(where, r.size)
		if err != nil {
			return err
		}
		copy(b, from[r.taken+off:])
		// The atomic operation orders the copy before the comparison.
		if s.where.CompareAndSwap(where, where) {
			if q.c.end.Load() == aborted {
				return ErrReset // without an abort, the memory was the stream's until here
			}
			return nil
		}
	}
	return ErrIndex
}

// follow fills b from the first reference and takes the bytes. At least len(b) bytes of the
// reference are left. The errors are the errors of fetch.
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

// peekFar is get for a stream with references. It returns the errors of fetch.
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

// Expects reports whether the producer has sent its memory and the consumer has neither mapped nor
// refused it.
func (q *Consumer) Expects() bool {
	return q.c.offer.Load() == offered && q.ref.from == nil && !q.ref.refuse
}

// Borrow maps the producer's memory, whose descriptor fd has arrived. If the mapping fails, all
// bytes keep passing through the ring. The caller still owns fd.
func (q *Consumer) Borrow(fd int) {
	if q.ref.from != nil || q.ref.refuse {
		return
	}
	from, err := borrow(fd)
	if err != nil {
		q.ref.refuse = true // all bytes pass through the ring
		return
	}
	q.ref.from = from
	q.c.lent.Store(lent)
}

// Close releases the memory Borrow mapped. The Consumer must not be used any more.
func (q *Consumer) Close() {
	if q.ref.from != nil {
		q.ref.from.close()
	}
}
