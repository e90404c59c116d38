package shm

import (
	"errors"
	"io"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// A control is the shared state of one ring. Each side writes lines of its own,
// two cache lines apart, since processors fetch lines in pairs. Positions are
// numbers of bytes since the beginning and do not wrap in practice.
type control struct {
	tail atomic.Uint64 // bytes published; the producer's
	end  atomic.Uint32 // an end; the producer's
	size atomic.Uint32 // how many bytes the ring has, 0 for the first size; the producer's
	refs atomic.Uint32 // references published; the producer's
	// offer tells that the producer's memory was sent; the producer's.
	offer atomic.Uint32
	near  near // the producer's
	_     [64]byte
	head  atomic.Uint64 // bytes taken; the consumer's
	left  atomic.Uint32 // 1: the consumer takes no more; the consumer's
	done  atomic.Uint32 // references followed; the consumer's
	lent  atomic.Uint32 // that it has mapped the producer's memory; the consumer's
	_     [108]byte
	asks  atomic.Uint32 // 1: the consumer is to be woken by what is published next; both sides'
	_     [124]byte
	full  atomic.Uint32 // 1: the producer is to be woken when there is room; both sides'
	_     [124]byte
}

// What a producer waits for.
const (
	awaitsRoom = 1 // half of the ring is free
	awaitsCopy = 2 // the last reference was followed
)

// How a producer ended.
const (
	open     = iota
	finished // in an orderly way, after all that was published
	aborted
)

// controlSize is what a control takes of the memory: a page of its own.
const controlSize = 4096

var _ [controlSize - unsafe.Sizeof(control{})]byte

const (
	// publishEvery is how many bytes a side copies before it tells the other: so
	// both copy at the same time, and what one has written is in the cache still
	// when the other reads it.
	publishEvery = 32 << 10

	// roomShare is the part of a ring that is free before a waiting producer is
	// woken. Waking costs as much as copying tens of kilobytes.
	roomShare = 2
)

// Errors of rings. [ErrWouldBlock] is a hint to wait, the others end a connection.
var (
	ErrWouldBlock = errors.New("shm: would block")
	ErrIndex      = errors.New("shm: the peer's index is outside the ring")
	ErrReset      = error(syscall.ECONNRESET) // the peer has aborted
	ErrPipe       = error(syscall.EPIPE)      // the peer takes no more
)

// A Producer is the writing end of a ring. It has one user at a time.
type Producer struct {
	// Wake tells a consumer that has asked for it that something was published. It
	// must not block.
	Wake func()

	// Offer, if it is set, sends the descriptor of the memory of [Alloc] to the consumer,
	// without blocking. again tells that it may succeed another time.
	Offer func(fd int) (sent, again bool)

	c    *control
	data []byte // as much as the ring may have
	ring uint64 // how much of it the ring has, a power of two
	tail uint64 // the truth about c.tail
	head uint64 // the last c.head that was seen and is possible
	end  uint32
	grow growth
	ref  referring
}

// A Consumer is the reading end of a ring. It has one user at a time.
type Consumer struct {
	// Wake tells a producer that has asked for it that there is room. It must not
	// block.
	Wake func()

	// Offered, if it is set, is called when the producer has sent its memory, which it
	// gives to [Consumer.Borrow].
	Offered func()

	c    *control
	data []byte // as much as the ring may have
	ring uint64 // how much of it the ring has, a power of two
	head uint64 // the truth about c.head
	tail uint64 // the last c.tail that was seen and is possible
	ref  following
}

func (p *Producer) init(c []byte, data []byte) {
	p.c, p.data, p.ring = (*control)(unsafe.Pointer(unsafe.SliceData(c))), data, firstRing(data)
}

func (q *Consumer) init(c []byte, data []byte) {
	q.c, q.data, q.ring = (*control)(unsafe.Pointer(unsafe.SliceData(c))), data, firstRing(data)
}

func firstRing(data []byte) uint64 { return uint64(min(len(data), FirstRing)) }

// room returns how many bytes can be written. It reads the peer's position only if
// fewer than want are known to be free. There is no room while the ring is to
// grow, but is not empty yet.
func (p *Producer) room(want uint64) (uint64, error) {
	free := p.ring - (p.tail - p.head)
	if free >= want && !p.grow.due {
		return free, nil
	}
	head := p.c.head.Load()
	if head-p.head > p.tail-p.head { // it goes forward, and not past what was written
		return 0, ErrIndex
	}
	p.head = head
	if p.c.left.Load() != 0 {
		return 0, ErrPipe
	}
	if p.grow.due {
		if p.tail != head {
			return 0, nil
		}
		p.enlarge()
	}
	return p.ring - (p.tail - head), nil
}

// Write copies as much of b as there is room for and tells the consumer. The
// error is ErrWouldBlock if there is no room, ErrPipe if the consumer takes no
// more, ErrIndex, or io.ErrClosedPipe after Finish or Abort.
func (p *Producer) Write(b []byte) (n int, err error) {
	if p.end != open {
		return 0, io.ErrClosedPipe
	}
	p.grow.enter()
	defer p.grow.leave()
	for n < len(b) {
		k := min(len(b)-n, publishEvery)
		free, err := p.room(uint64(k))
		if err != nil {
			return n, err
		}
		if k = min(k, int(free)); k == 0 {
			p.full()
			if n == 0 {
				return 0, ErrWouldBlock
			}
			return n, nil
		}
		p.put(b[n : n+k])
		n += k
		p.publish(k)
	}
	return n, nil
}

// Reserve returns n bytes of the ring to be written to, which [Producer.Commit] publishes;
// nil if they would not be in one piece, or there is another reason to use Write. What is
// written there the consumer may change.
func (p *Producer) Reserve(n int) []byte {
	at := p.tail & (p.ring - 1)
	if p.end != open || p.ref.owed > 0 || p.grow.due || p.grow.large.Load() || uint64(n) > p.ring-at {
		return nil
	}
	if free, err := p.room(uint64(n)); err != nil || free < uint64(n) {
		return nil
	}
	return p.data[at : at+uint64(n) : at+uint64(n)]
}

// Commit publishes the n bytes that were reserved.
func (p *Producer) Commit(n int) {
	p.tail += uint64(n)
	p.publish(n)
}

// WriteV is Write of many pieces. If it returns less than they have, the next write is of
// the rest: some of that may be taken already, see [Producer.Owed].
func (p *Producer) WriteV(pieces [][]byte) (n int, err error) {
	if p.end != open {
		return 0, io.ErrClosedPipe
	}
	if p.ref.owed > 0 {
		return p.settle()
	}
	p.grow.enter()
	defer p.grow.leave()
	held := 0  // bytes written and not yet published
	told := -1 // bytes before the first reference
	for _, b := range pieces {
		if p.refers(b) {
			p.publish(held)
			if held = 0; told < 0 {
				told = n
			}
			n += len(b)
			continue
		}
		for len(b) > 0 {
			k := min(len(b), publishEvery-held)
			free, err := p.room(uint64(k))
			if k = min(k, int(free)); err != nil || k == 0 {
				if held > 0 {
					p.publish(held)
				}
				if err == nil {
					p.full()
				}
				return p.told(n, told, err)
			}
			p.put(b[:k])
			b = b[k:]
			n += k
			if held += k; held == publishEvery {
				p.publish(held)
				held = 0
			}
		}
	}
	if held > 0 {
		p.publish(held)
	}
	if told < 0 {
		return n, nil
	}
	return p.told(n, told, nil)
}

// told is what a write returns that has taken n bytes, those from the first reference on
// only referred to, if there is one.
func (p *Producer) told(n, first int, err error) (int, error) {
	if first >= 0 {
		p.ref.owed = n - first
		n = first
	}
	if n == 0 && err == nil {
		err = ErrWouldBlock
	}
	return n, err
}

// put copies b behind what was written. There is room for it.
func (p *Producer) put(b []byte) {
	at := p.tail & (p.ring - 1)
	if n := move(p.data[at:p.ring], b); n < len(b) {
		move(p.data[:p.ring], b[n:])
	}
	p.tail += uint64(len(b))
}

// publish tells the consumer of the n bytes that were written: first the position, then a
// look whether it sleeps. A consumer does the same in the other order.
func (p *Producer) publish(n int) {
	if n <= nearMax && n > 0 {
		if at := (p.tail - uint64(n)) & (p.ring - 1); at+nearMax <= p.ring {
			p.c.near.put(p.data[at:at+nearMax], n, p.tail)
		}
	}
	raceRelease()
	p.c.tail.Store(p.tail)
	if p.ref.shown != p.ref.refs { // a store costs each message some nanoseconds
		p.ref.shown = p.ref.refs
		p.c.refs.Store(p.ref.refs) // after the position that they stand behind
	}
	if p.c.asks.Load() != 0 && p.c.asks.Swap(0) != 0 {
		p.Wake()
	}
}

// Ask has the consumer call Wake when half of the ring is free, or nothing is owed any
// more. It reports whether
// the producer can wait for that: false if there is room already, or the
// consumer takes no more, or its index is impossible.
func (p *Producer) Ask() bool {
	p.grow.enter()
	defer p.grow.leave()
	if p.ref.owed > 0 {
		p.c.full.Store(awaitsCopy)
		return !p.due()
	}
	p.c.full.Store(awaitsRoom)
	free, err := p.room(uint64(len(p.data)))
	return err == nil && free < p.ring/roomShare
}

// due reports whether a write, while bytes are owed, would not have to wait.
func (p *Producer) due() bool {
	ok, err := p.settled()
	return ok || err != nil || p.c.left.Load() != 0
}

// Roomy reports whether a write would not have to wait.
func (p *Producer) Roomy() bool {
	p.grow.enter()
	defer p.grow.leave()
	if p.ref.owed > 0 {
		return p.due()
	}
	free, err := p.room(1)
	return err != nil || free > 0
}

// Finish tells that nothing follows what was written. The peer is woken.
func (p *Producer) Finish() { p.finish(finished) }

// Abort tells that the connection was reset. The peer is woken.
func (p *Producer) Abort() { p.finish(aborted) }

func (p *Producer) finish(how uint32) {
	if p.end >= how {
		return
	}
	if p.ref.owed > 0 {
		if ok, _ := p.settled(); !ok {
			how = aborted // what is referred to is not the stream's any more
		}
	}
	p.end = how
	p.c.end.Store(how)
	if p.c.asks.Swap(0) != 0 {
		p.Wake()
	}
}

// Available returns how many bytes can be read, and the error of Read if there are
// none.
func (q *Consumer) Available() (int, error) {
	n, err := q.look()
	if n > 0 || err != nil {
		return int(n), err
	}
	return 0, q.ended()
}

// look reads the producer's position.
func (q *Consumer) look() (uint64, error) {
	if q.Expects() && q.Offered != nil {
		q.Offered() // first: it may take a ring that tells of what is found here then
	}
	tail := q.c.tail.Load()
	raceAcquire()
	if tail != q.tail && q.tail == q.head {
		// The producer found the ring empty, and may have changed its size since. It
		// does not again before what it has published is taken.
		if err := q.resize(); err != nil {
			return 0, err
		}
	}
	if tail-q.tail > q.ring-(q.tail-q.head) { // it goes forward, by what there was room for at most
		return 0, ErrIndex
	}
	q.tail = tail
	if refs := q.c.refs.Load(); refs != q.ref.refs {
		if err := q.see(refs); err != nil {
			return 0, err
		}
	}
	return tail - q.head + uint64(q.ref.bytes), nil
}

// ended is the error of a Consumer that has found nothing.
func (q *Consumer) ended() error {
	switch q.c.end.Load() {
	case open:
		return ErrWouldBlock
	case finished:
		// It was told after the last position.
		if n, err := q.look(); n > 0 || err != nil {
			return err // nil: there is something after all
		}
		return io.EOF
	default:
		return ErrReset
	}
}

// Ending reports whether the producer has told of its end: nothing is published
// any more.
func (q *Consumer) Ending() bool { return q.c.end.Load() != open }

// Read takes what there is, up to the length of b, or from the ring up to bytes of the
// producer's own memory, which may belong elsewhere. The error is ErrWouldBlock if
// there is nothing, io.EOF after an orderly end, ErrReset or ErrIndex.
func (q *Consumer) Read(b []byte) (n int, err error) {
	if n, err, ok := q.readNear(b); ok {
		return n, err
	}
	avail, err := q.some()
	if err != nil {
		return 0, err
	}
	b = b[:min(len(b), avail)]
	for here := false; n < len(b); {
		k, far := q.run(len(b) - n)
		if far {
			if here {
				break
			}
			if err := q.follow(b[n : n+k]); err != nil {
				return n, err
			}
			n += k
			continue
		}
		here = true
		k = min(k, publishEvery)
		q.get(b[n:n+k], 0)
		n += k
		q.take(k)
	}
	return n, nil
}

// readNear is Read where nothing is there, or one short piece that is in the line of the
// position: what a consumer finds that waits for a message. ok is false if that is not so.
func (q *Consumer) readNear(b []byte) (n int, err error, ok bool) {
	c := q.c
	tail := c.tail.Load()
	n = int(tail - q.head)
	if q.tail != q.head || c.refs.Load() != q.ref.refs || len(q.ref.list) > 0 || q.Expects() {
		return 0, nil, false
	}
	if n == 0 {
		return 0, ErrWouldBlock, c.end.Load() == open
	}
	if !c.near.get(b, n, tail) {
		return 0, nil, false
	}
	raceAcquire()
	if err := q.resize(); err != nil { // as look
		return 0, err, true
	}
	q.tail = tail
	q.take(n)
	return n, nil, true
}

// ReadV is Read into many places.
func (q *Consumer) ReadV(places [][]byte) (n int, err error) {
	avail, err := q.some()
	if err != nil {
		return 0, err
	}
	for _, b := range places {
		for len(b) > 0 && avail > 0 {
			k, far := q.run(min(len(b), avail))
			if far {
				if err := q.follow(b[:k]); err != nil {
					return n, err
				}
			} else {
				k = min(k, publishEvery)
				q.get(b[:k], 0)
			}
			b = b[k:]
			n += k
			avail -= k
			taken := k
			if far {
				taken = 0
			}
			if avail == 0 { // as after the read of a socket, more may have come meanwhile
				if more, err := q.look(); err == nil {
					avail = int(more) - taken
				}
			}
			q.take(taken)
		}
	}
	return n, nil
}

// Taken is how many bytes were read since the beginning. A read that a fault of the places
// has broken off has read those before the piece that it was at.
func (q *Consumer) Taken() uint64 { return q.head + q.ref.taken }

// some is Available, but there is something if the error is nil.
func (q *Consumer) some() (int, error) {
	for {
		n, err := q.Available()
		if n > 0 || err != nil {
			return n, err
		}
	}
}

// Peek copies what follows the first off bytes to b, and leaves it there. The
// errors are those of Read; ErrWouldBlock if there is nothing behind off.
func (q *Consumer) Peek(off int, b []byte) (n int, err error) {
	avail, err := q.some()
	if err != nil {
		return 0, err
	}
	if off >= avail {
		return 0, ErrWouldBlock
	}
	b = b[:min(len(b), avail-off)]
	if len(q.ref.list) > 0 {
		if err := q.peekFar(off, b); err != nil {
			return 0, err
		}
		return len(b), nil
	}
	q.get(b, off)
	return len(b), nil
}

// get copies what is off bytes behind the position to b, which was there at the
// last look.
func (q *Consumer) get(b []byte, off int) {
	at := (q.head + uint64(off)) & (q.ring - 1)
	if n := move(b, q.data[at:q.ring]); n < len(b) {
		move(b[n:], q.data[:q.ring])
	}
}

// take tells the producer that n bytes were taken.
func (q *Consumer) take(n int) {
	q.head += uint64(n)
	q.c.head.Store(q.head)
	if q.c.full.Load() == awaitsRoom && q.ring-(q.tail-q.head) >= q.ring/roomShare && q.c.full.Swap(0) != 0 {
		q.Wake()
	}
}

// Ask has the producer call Wake when it next publishes something. What was
// published before need not be told: a consumer that is going to sleep calls Ask
// first and looks after that.
func (q *Consumer) Ask() { q.c.asks.Store(1) }

// Leave tells that the consumer takes no more. A producer that waits is woken.
func (q *Consumer) Leave() {
	q.c.left.Store(1)
	if q.c.full.Swap(0) != 0 {
		q.Wake()
	}
}
