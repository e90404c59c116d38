package vitcp

import (
	"sync/atomic"

	"viaduct/internal/counter"
	"viaduct/internal/wire/vitcpwire"
)

// maxCredits is how many receive descriptors may be outstanding: with more, a
// counter of 16 bits could not tell ahead from behind. [V-20]
const maxCredits = 1<<15 - 1

// sendCredits is what we know of the peer's receive descriptors. Messages
// that consume one wait until one is known. The send role takes, the receive
// role is told; both run at once. [VIT-2.2.1-2] [VIT-3.1-17] [V-20]
type sendCredits struct {
	posted atomic.Uint32   // Count: the peer's, as last told
	used   counter.Counter // Count: messages of ours that consume, since set-up
}

// told takes the peer's count from a segment. It reports false if that count
// went back, or is further ahead than a peer may go.
func (c *sendCredits) told(posted vitcpwire.Count) bool {
	old := vitcpwire.Count(c.posted.Load())
	if posted == old {
		return true
	}
	// What we have used is at least what the peer can know we used, so an
	// honest count lies within maxCredits of it, whatever is under way.
	if posted.Less(old) || posted.Sub(vitcpwire.Count(c.used.Load())) < 0 {
		return false
	}
	c.posted.Store(uint32(posted))
	return true
}

// available returns how many more consuming messages may be sent. [send role]
func (c *sendCredits) available() int {
	return vitcpwire.Count(c.posted.Load()).Sub(vitcpwire.Count(c.used.Load()))
}

// take uses one. It must be available. [send role]
func (c *sendCredits) take() { c.used.Set(uint64(uint16(c.used.Load() + 1))) }

// recvCredits counts our own receive descriptors and what the peer knows of
// them. Posters post, the receive role consumes, the send role tells.
// [VIT-3.1-16] [V-20] [V-21]
type recvCredits struct {
	posted   atomic.Uint64   // descriptors posted; not modulo anything
	consumed counter.Counter // of those, used up by arrived messages
	told     counter.Counter // of those, known to the peer
	high     counter.Counter // most that were unconsumed and known at one time

	// free says that nothing limits the peer by the count: descriptor flow control is
	// off, and the peer is told of what is posted all the same.
	free bool

	// threshold is below how many unused credits a NOP is due although input
	// has not drained; 0 means half of the most ever known. [VIT-3.1-NOP-4]
	threshold uint64
}

// post counts n more descriptors.
func (c *recvCredits) post(n int) { c.posted.Add(uint64(n)) }

// reach raises the count of posted descriptors to n, if it is less.
func (c *recvCredits) reach(n uint64) {
	for {
		old := c.posted.Load()
		if n <= old || c.posted.CompareAndSwap(old, n) {
			return
		}
	}
}

// ahead returns the count that may be told now.
func (c *recvCredits) ahead() uint64 {
	if c.free {
		return c.posted.Load()
	}
	return min(c.posted.Load(), c.consumed.Load()+maxCredits)
}

// tell returns the count for a segment that leaves now. [send role]
func (c *recvCredits) tell() vitcpwire.Count {
	n := c.ahead()
	if n != c.told.Load() {
		c.told.Set(n)
		if u := n - c.consumed.Load(); u > c.high.Load() {
			c.high.Set(u)
		}
	}
	return vitcpwire.Count(n)
}

// consume counts one message that uses a descriptor. It reports false if the
// peer had no right to send it. [receive role]
func (c *recvCredits) consume() bool {
	n := c.consumed.Load()
	if n == c.told.Load() {
		return false
	}
	c.consumed.Set(n + 1)
	return true
}

// news reports whether the peer does not know of all descriptors yet.
// [VIT-3.1-NOP-2]
func (c *recvCredits) news() bool { return c.ahead() != c.told.Load() }

// urgent reports whether there is news which must not wait until the input
// has drained: the peer is running out. [VIT-3.1-NOP-3] [V-21]
func (c *recvCredits) urgent() bool {
	told := c.told.Load()
	if c.ahead() == told {
		return false
	}
	unused := told - min(told, c.consumed.Load())
	limit := c.threshold
	if limit == 0 {
		limit = c.high.Load() / 2
	}
	return unused < max(1, limit)
}
