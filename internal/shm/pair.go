package shm

import (
	"math/bits"
	"sync/atomic"
	"unsafe"
)

// A Pair is memory that two processes share for all their connections, besides the rings of each
// connection. It has a list for each process: a word that says whether the process's goroutine for
// the pair sleeps, and a bit for each connection with an arrival. A producer whose consumer has
// called [Consumer.AskPair] sets the bit of the connection. It wakes the other process only if
// the goroutine there sleeps. So the messages of many connections cost one wake-up together.
//
// No wake-up is lost, by two handshakes, one above the other. Below, a producer publishes its
// position and then checks for the consumer's request; a consumer makes the request and then reads
// the position. Above, a producer sets the bit and then checks the word asleep; the goroutine sets
// asleep and then reads the bits.
//
// The other process can write anything anywhere. A bit is not more than a hint that a connection
// should be read: nothing from this memory is a position, a length or an address.
type Pair struct {
	b            []byte // the mapping
	mine, theirs *list
	at           int    // index of the word that rest is of
	rest         uint64 // bits taken from the list and not returned by Next
}

const (
	pairWords = 16

	// PairSlots is the number of connections of a Pair.
	PairSlots = 64 * pairWords

	pairSize = 4096
)

// A list is written by both processes: one sets bits, the other one takes them and sleeps.
type list struct {
	asleep atomic.Uint32 // 1: the goroutine of the process sleeps
	_      [124]byte
	ready  [pairWords]atomic.Uint64 // a bit for each connection
	_      [128]byte
}

var _ [pairSize/2 - unsafe.Sizeof(list{})]byte

// newPair returns the Pair in b. first is true for the process that created the memory.
func newPair(b []byte, first bool) *Pair {
	p := &Pair{
		b:      b,
		mine:   (*list)(unsafe.Pointer(&b[0])),
		theirs: (*list)(unsafe.Pointer(&b[pairSize/2])),
		at:     -1,
	}
	if !first {
		p.mine, p.theirs = p.theirs, p.mine
	}
	return p
}

// Tell tells the peer that the connection of slot has an arrival. The result is true if the caller
// must wake the goroutine of the peer. Tell is safe for concurrent use.
func (p *Pair) Tell(slot int) (wake bool) {
	p.theirs.ready[slot/64].Or(1 << (slot % 64))
	return p.theirs.asleep.Load() != 0 && p.theirs.asleep.Swap(0) != 0
}

// Next returns the slot of a connection with an arrival. ok is false if there is none, and once
// after every slot was looked at, so that each connection has a turn before another has two.
// Next has one user at a time.
func (p *Pair) Next() (slot int, ok bool) {
	for p.rest == 0 {
		if p.at++; p.at == pairWords {
			p.at = -1
			return 0, false
		}
		if w := &p.mine.ready[p.at]; w.Load() != 0 {
			p.rest = w.Swap(0)
		}
	}
	slot = p.at*64 + bits.TrailingZeros64(p.rest)
	p.rest &= p.rest - 1
	return slot, true
}

// Sleep reports whether the goroutine may sleep: the next Tell of the peer wakes it, and no
// connection has an arrival so far.
func (p *Pair) Sleep() bool {
	p.mine.asleep.Store(1)
	for i := range p.mine.ready {
		if p.mine.ready[i].Load() != 0 {
			p.mine.asleep.Store(0)
			return false
		}
	}
	return true
}

// Wake ends the effect of Sleep.
func (p *Pair) Wake() { p.mine.asleep.Store(0) }
