package shm

import (
	"errors"
	"io"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// A control is the shared state of a ring. Each side writes to separate cache lines. Lines of
// different sides are two lines apart, because processors fetch lines in pairs. Positions count the
// bytes since the beginning, in 64 bits, and do not wrap in practice.
type control struct {
	tail atomic.Uint64 // bytes published; written by the producer
	end  atomic.Uint32 // open, finished or aborted; written by the producer
	size atomic.Uint32 // size of the ring in bytes, 0 for FirstRing; written by the producer
	refs atomic.Uint32 // references published; written by the producer
	// offer is notOffered or offered: whether the producer has sent its memory. The producer writes
	// offer.
	offer atomic.Uint32
	near  near // written by the producer
	_     [64]byte
	head  atomic.Uint64 // bytes taken; written by the consumer
	left  atomic.Uint32 // 1: the consumer takes no more; written by the consumer
	done  atomic.Uint32 // references followed; written by the consumer
	lent  atomic.Uint32 // lent: the consumer has mapped the producer's memory; written by the consumer
	small atomic.Uint32 // 1: the consumer knows smallRing, unlike older versions; written by the consumer
	_     [104]byte
	// asksBell or asksPair: the next publication is to wake the consumer; written by both sides.
	asks atomic.Uint32
	_    [124]byte
	// awaitsRoom or awaitsCopy: the consumer is to wake the producer; written by both sides.
	full atomic.Uint32
	_    [124]byte
}

// How a consumer is to be woken.
const (
	asksBell = 1 // by Wake
	asksPair = 2 // by Tell
)

// The conditions a sleeping producer waits for.
const (
	awaitsRoom = 1 // half of the ring is free
	awaitsCopy = 2 // the consumer has followed the last reference
)

// States of a producer.
const (
	open     = iota
	finished // orderly end, after all published bytes
	aborted
)

// controlSize is the size of a control in the memory: one page.
const controlSize = 4096

var _ [controlSize - unsafe.Sizeof(control{})]byte

const (
	// publishEvery is the number of bytes a side copies before publishing the position. So both
	// sides copy at the same time, and the consumer reads bytes still in the cache.
	publishEvery = 32 << 10

	// A producer waiting for room is woken when 1/roomShare of the ring is free, because a wake-up
	// costs as much as a copy of tens of kilobytes.
	roomShare = 2
)

// Errors of rings. After [ErrWouldBlock] the caller should wait and try again. The others end a
// connection.
var (
	ErrWouldBlock = errors.New("shm: would block")
	ErrIndex      = errors.New("shm: the peer's index is outside the ring")
	ErrReset      = error(syscall.ECONNRESET) // the peer has aborted
	ErrPipe       = error(syscall.EPIPE)      // the peer takes no more
)

// A Producer is the writing end of a ring, with one user at a time.
type Producer struct {
	// Wake wakes a consumer after Ask, because something was published. Wake must not block.
	Wake func()

	// Tell, if not nil, replaces Wake after AskPair.
	Tell func()

	// Offer, if not nil, sends fd, the descriptor of the memory of [Alloc], to the consumer and
	// reports success. It must not block. If sent is false, again reports whether a later call may
	// succeed.
	Offer func(fd int) (sent, again bool)

	c    *control
	data []byte // memory for the ring's greatest size
	ring uint64 // current size of the ring in bytes, a power of two, or 0 before the first write
	tail uint64 // the private copy of c.tail
	head uint64 // the last value of c.head that was read and is possible
	end  uint32
	grow growth
	ref  referring
}

// A Consumer is the reading end of a ring, with one user at a time.
type Consumer struct {
	// Wake wakes a producer after Ask, because there is room. Wake must not block.
	Wake func()

	// Offered, if not nil, is called when the producer has sent its memory. The function receives
	// the descriptor and passes it to [Consumer.Borrow].
	Offered func()

	c    *control
	data []byte // memory for the ring's greatest size
	ring uint64 // current size of the ring in bytes, a power of two
	head uint64 // the private copy of c.head
	tail uint64 // the last value of c.tail that was read and is possible
	ref  following
}

func (p *Producer) init(c []byte, data []byte) {
	p.c, p.data = (*control)(unsafe.Pointer(unsafe.SliceData(c))), data
	p.grow.due = true
}

func (q *Consumer) init(c []byte, data []byte) {
	q.c, q.data, q.ring = (*control)(unsafe.Pointer(unsafe.SliceData(c))), data, firstRing(data)
	q.c.small.Store(1)
}

func firstRing(data []byte) uint64 { return uint64(min(len(data), FirstRing)) }

// room returns how many bytes can be written. It reads the peer's position only if fewer than want
// bytes are known to be free. It returns 0 while the ring is to grow and is not empty. The error is
// ErrIndex or ErrPipe.
func (p *Producer) room(want uint64) (uint64, error) {
	free := p.ring - (p.tail - p.head)
	if free >= want && !p.grow.due {
		return free, nil
	}
	head := p.c.head.Load()
	if head-p.head > p.tail-p.head { // head moves forward, and not past tail
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

// Write copies as much of b as there is room for, publishes the copied bytes and returns their
// number. If there is no room at all, the error is ErrWouldBlock. It is ErrPipe if the consumer
// takes no more, ErrIndex if the consumer's position is impossible, and io.ErrClosedPipe after
// Finish or Abort.
func (p *Producer) Write(b []byte) (n int, err error) {
	if p.end != open {
		return 0, io.ErrClosedPipe
	}
	p.grow.enter()
	defer p.grow.leave()
	p.foresee(len(b))
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

// Reserve returns n bytes of the ring for the caller to fill; [Producer.Commit] publishes them. The
// consumer can change the bytes. Reserve returns nil if there is no room for n bytes in a row,
// while bytes are owed, while the ring is larger than the initial size or due to grow, and after
// Finish or Abort.
func (p *Producer) Reserve(n int) []byte {
	if p.ring == 0 {
		p.enlarge()
	}
	at := p.tail & (p.ring - 1)
	if p.end != open || p.ref.owed > 0 || p.grow.due || p.grow.large.Load() || uint64(n) > p.ring-at {
		return nil
	}
	if free, err := p.room(uint64(n)); err != nil || free < uint64(n) {
		return nil
	}
	return p.data[at : at+uint64(n) : at+uint64(n)]
}

// Commit publishes the n bytes returned by [Producer.Reserve].
func (p *Producer) Commit(n int) {
	p.tail += uint64(n)
	p.publish(n)
}

// WriteV writes several pieces like Write. A piece from [Alloc] may be passed by reference. If
// WriteV returns fewer bytes than the pieces have, the next write must continue after the returned
// bytes, although the ring may have taken more: see [Producer.Owed].
func (p *Producer) WriteV(pieces [][]byte) (n int, err error) {
	if p.end != open {
		return 0, io.ErrClosedPipe
	}
	if p.ref.owed > 0 {
		return p.settle()
	}
	p.grow.enter()
	defer p.grow.leave()
	p.foresee(length(pieces))
	held := 0  // bytes written but not published yet
	told := -1 // number of bytes before the first reference; negative: no reference
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

// told returns the results of a write that has taken n bytes. If first is not negative, only first
// bytes are reported, and the bytes from the first reference on are owed.
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

// put copies b to the ring after the bytes written so far. The caller has checked that there is
// room.
func (p *Producer) put(b []byte) {
	at := p.tail & (p.ring - 1)
	if n := move(p.data[at:p.ring], b); n < len(b) {
		move(p.data[:p.ring], b[n:])
	}
	p.tail += uint64(len(b))
}

// publish publishes the last n written bytes, by storing the position first and then checking for a
// request by Ask. A consumer makes the request first and then reads the position, so that at least
// one side notices the other.
func (p *Producer) publish(n int) {
	if n <= nearMax && n > 0 {
		if at := (p.tail - uint64(n)) & (p.ring - 1); at+nearMax <= p.ring {
			p.c.near.put(p.data[at:at+nearMax], n, p.tail)
		}
	}
	raceRelease()
	p.c.tail.Store(p.tail)
	// The comparison saves a store, which would cost each message some nanoseconds.
	if p.ref.shown != p.ref.refs {
		p.ref.shown = p.ref.refs
		p.c.refs.Store(p.ref.refs) // after tail, because references precede a position
	}
	if p.c.asks.Load() != 0 {
		p.wake()
	}
}

// wake answers the consumer's request, if any.
func (p *Producer) wake() {
	switch how := p.c.asks.Swap(0); {
	case how == 0:
	case how == asksPair && p.Tell != nil:
		p.Tell()
	default:
		p.Wake()
	}
}

// Ask requests that the consumer call Wake when half of the ring is free or, while bytes are owed,
// when the consumer has followed the last reference. Ask reports whether the producer can wait for
// the call: not if there is room already, if the consumer takes no more, or if the consumer's index
// is impossible.
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

// due reports whether a write while bytes are owed would return without ErrWouldBlock.
func (p *Producer) due() bool {
	ok, err := p.settled()
	return ok || err != nil || p.c.left.Load() != 0
}

// Roomy reports whether a write would return without ErrWouldBlock.
func (p *Producer) Roomy() bool {
	p.grow.enter()
	defer p.grow.leave()
	if p.ref.owed > 0 {
		return p.due()
	}
	free, err := p.room(1)
	return err != nil || free > 0
}

// Finish ends the stream in an orderly way, after the bytes written so far, and wakes the peer. If
// bytes are owed, Finish aborts instead.
func (p *Producer) Finish() { p.finish(finished) }

// Abort resets the stream and wakes the peer.
func (p *Producer) Abort() { p.finish(aborted) }

func (p *Producer) finish(how uint32) {
	if p.end >= how {
		return
	}
	if p.ref.owed > 0 {
		if ok, _ := p.settled(); !ok {
			how = aborted // the stream no longer controls the memory of the references
		}
	}
	p.end = how
	p.c.end.Store(how)
	p.wake()
}

// Available returns the number of readable bytes. If the number is 0, the error is the same as for
// Read.
func (q *Consumer) Available() (int, error) {
	n, err := q.look()
	if n > 0 || err != nil {
		return int(n), err
	}
	return 0, q.ended()
}

// look reads the producer's position and references, and returns the number of bytes available. The
// error is ErrIndex if the position or a reference is impossible.
func (q *Consumer) look() (uint64, error) {
	if q.Expects() && q.Offered != nil {
		q.Offered() // first, because Offered may consume a wake-up that announces the bytes found below
	}
	tail := q.c.tail.Load()
	raceAcquire()
	if tail != q.tail && q.tail == q.head {
		// The producer found the ring empty and may have changed the size since. Another change has
		// to wait until the new bytes are taken.
		if err := q.resize(); err != nil {
			return 0, err
		}
	}
	if tail-q.tail > q.ring-(q.tail-q.head) { // tail moves forward, by at most the room there was
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

// ended returns the error of a Consumer that found no bytes: ErrWouldBlock, io.EOF or ErrReset. The
// error is nil if bytes were published meanwhile.
func (q *Consumer) ended() error {
	switch q.c.end.Load() {
	case open:
		return ErrWouldBlock
	case finished:
		// The producer published the last position before the end.
		if n, err := q.look(); n > 0 || err != nil {
			return err // nil: there are bytes after all
		}
		return io.EOF
	default:
		return ErrReset
	}
}

// Ending reports whether the producer has finished or aborted, and publishes no more.
func (q *Consumer) Ending() bool { return q.c.end.Load() != open }

// Read takes available bytes, at most len(b), and returns the number n. n may be less than the
// number of available bytes: a read from the ring stops before bytes in the producer's own memory,
// so that the next read can copy these bytes directly to their destination. The error is
// ErrWouldBlock if there is nothing, io.EOF after an orderly end, ErrReset if the producer has
// aborted, and ErrIndex if an index of the producer is impossible.
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

// readNear is Read for the two usual cases of a consumer waiting for a message: nothing, or one
// short piece in the line of the position. In all other cases ok is false, and nothing was read.
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
	if err := q.resize(); err != nil { // the producer may have changed the size while the ring was empty
		return 0, err, true
	}
	q.tail = tail
	q.take(n)
	return n, nil, true
}

// ReadV reads into several buffers, in order. It returns the total number of bytes, and the same
// errors as Read.
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
			if avail == 0 { // like a read of a socket, because more may have arrived meanwhile
				if more, err := q.look(); err == nil {
					avail = int(more) - taken
				}
			}
			q.take(taken)
		}
	}
	return n, nil
}

// Taken returns the number of bytes read since the beginning. After a fault in a destination of
// ReadV, the count includes the pieces before the faulting piece.
func (q *Consumer) Taken() uint64 { return q.head + q.ref.taken }

// some is Available, repeated while the number is 0 without an error.
func (q *Consumer) some() (int, error) {
	for {
		n, err := q.Available()
		if n > 0 || err != nil {
			return n, err
		}
	}
}

// Peek copies the bytes after the first off bytes to b, without taking any, and returns the number
// copied. The errors are the errors of Read, and ErrWouldBlock if at most off bytes are available.
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

// get fills b with the bytes at off bytes after the consumer's position. The caller has checked
// that len(b) bytes are available there.
func (q *Consumer) get(b []byte, off int) {
	at := (q.head + uint64(off)) & (q.ring - 1)
	if n := move(b, q.data[at:q.ring]); n < len(b) {
		move(b[n:], q.data[:q.ring])
	}
}

// take takes n bytes and publishes the new position. If the producer waits for room and enough is
// free, take wakes the producer.
func (q *Consumer) take(n int) {
	q.head += uint64(n)
	q.c.head.Store(q.head)
	if q.c.full.Load() == awaitsRoom && q.ring-(q.tail-q.head) >= q.ring/roomShare && q.c.full.Swap(0) != 0 {
		q.Wake()
	}
}

// Ask requests that the producer call Wake at the next publication. Earlier publications cause no
// wake-up, so before sleeping a consumer calls Ask first and then checks for bytes.
func (q *Consumer) Ask() { q.c.asks.Store(asksBell) }

// AskPair is Ask, but the producer calls Tell, if it has one.
func (q *Consumer) AskPair() { q.c.asks.Store(asksPair) }

// Leave records that the consumer takes no more, and wakes a waiting producer.
func (q *Consumer) Leave() {
	q.c.left.Store(1)
	if q.c.full.Swap(0) != 0 {
		q.Wake()
	}
}
