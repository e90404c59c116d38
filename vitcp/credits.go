package vitcp

import (
	"sync/atomic"

	"viaduct/internal/counter"
	"viaduct/internal/wire/vitcpwire"
)

// maxCredits is the most receive descriptors that may be outstanding. With more, a counter of 16
// bits could not tell a newer count from an older one. [V-20]
const maxCredits = 1<<15 - 1

// sendCredits counts the peer's receive descriptors that we know of. A message that consumes one
// waits until one is known. The send role uses credits and the receive role updates them; both run
// at the same time. [VIT-2.2.1-2] [VIT-3.1-17] [V-20]
type sendCredits struct {
	posted atomic.Uint32   // Count: the peer's, as last received
	used   counter.Counter // Count: messages of ours that consume, since set-up
}

// update records the peer's count from a segment. It returns false if the count went back, or is
// further ahead than a peer may go.
func (c *sendCredits) update(posted vitcpwire.Count) bool {
	old := vitcpwire.Count(c.posted.Load())
	if posted == old {
		return true
	}
	// The peer knows at most as many uses as we have made, so an honest count lies within
	// maxCredits of the used one, whatever is in flight.
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

// recvCredits counts our own receive descriptors and how many the peer knows. Posters post, the
// receive role consumes and the send role advertises. [VIT-3.1-16] [V-20] [V-21]
type recvCredits struct {
	posted     atomic.Uint64   // descriptors posted; not modulo anything
	consumed   counter.Counter // of those, used up by arrived messages
	advertised counter.Counter // of those, advertised to the peer
	high       counter.Counter // largest number that was unconsumed and advertised at one time

	// free means that descriptor flow control is off: the count does not limit the peer, but is
	// advertised all the same.
	free bool

	// threshold is the number of unused credits below which a NOP is due although input has not
	// drained; 0 means half of the largest number ever advertised. [VIT-3.1-NOP-4]
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

// ahead returns the count that may be advertised.
func (c *recvCredits) ahead() uint64 {
	if c.free {
		return c.posted.Load()
	}
	return min(c.posted.Load(), c.consumed.Load()+maxCredits)
}

// advertise returns the count for the segment that leaves next and records it. [send role]
func (c *recvCredits) advertise() vitcpwire.Count {
	n := c.ahead()
	if n != c.advertised.Load() {
		c.advertised.Set(n)
		if u := n - c.consumed.Load(); u > c.high.Load() {
			c.high.Set(u)
		}
	}
	return vitcpwire.Count(n)
}

// consume counts one message that uses a descriptor. It returns false if the peer sent the message
// without a credit. [receive role]
func (c *recvCredits) consume() bool {
	n := c.consumed.Load()
	if n == c.advertised.Load() {
		return false
	}
	c.consumed.Set(n + 1)
	return true
}

// unadvertised reports whether the peer does not know all descriptors yet. [VIT-3.1-NOP-2]
func (c *recvCredits) unadvertised() bool { return c.ahead() != c.advertised.Load() }

// urgent reports whether new descriptors must be advertised before the input has drained, because
// the peer is running out. [VIT-3.1-NOP-3] [V-21]
func (c *recvCredits) urgent() bool {
	known := c.advertised.Load()
	if c.ahead() == known {
		return false
	}
	unused := known - min(known, c.consumed.Load())
	limit := c.threshold
	if limit == 0 {
		limit = c.high.Load() / 2
	}
	return unused < max(1, limit)
}
