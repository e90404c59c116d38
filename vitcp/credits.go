package vitcp

import (
	"sync/atomic"

	"viaduct/internal/counter"
	"viaduct/internal/wire/vitcpwire"
	"viaduct/vi"
)

// maxCredits is the maximum number of outstanding receive descriptors. With more, a 16-bit counter
// could not tell a newer count from an older count. [V-20]
const maxCredits = 1<<15 - 1

// A flowControl counts the receive descriptors each side grants the other.
type flowControl struct {
	on        bool        // descriptor flow control is on
	overdrawn bool        // the peer's connect message advertised more than maxCredits descriptors
	credits   sendCredits // the peer's receive descriptors
	mine      recvCredits // this side's receive descriptors
	blocked   atomic.Bool // the send role waits for a credit, or for a Read to be answered
}

func (f *flowControl) init(on bool, t linkTerms, threshold uint64) {
	f.on, f.mine.free, f.mine.threshold = on, !on, threshold
	f.mine.posted.Store(uint64(t.advertised))
	f.mine.advertise()
	f.overdrawn = on && !f.credits.update(t.peerPosted)
}

// needs reports whether the message of send descriptor d consumes a receive descriptor that the
// peer must have granted.
func (f *flowControl) needs(d *vi.Descriptor) bool {
	return f.on && (d.Control.Op() == vi.OpSendReceive || d.Control&vi.Immediate != 0)
}

// sendCredits counts the receive descriptors the peer has advertised. A message consuming a
// descriptor waits until a credit is available. The send role uses credits while the receive role
// updates them. [VIT-2.2.1-2] [VIT-3.1-17] [V-20]
type sendCredits struct {
	posted atomic.Uint32   // the peer's Count, as received last
	used   counter.Counter // messages since set-up that consume a descriptor, modulo 2^16
}

// update records the peer's count from a segment. It returns false, and records nothing, if the
// count is below the previous one or more than maxCredits above the used count.
func (c *sendCredits) update(posted vitcpwire.Count) bool {
	old := vitcpwire.Count(c.posted.Load())
	if posted == old {
		return true
	}
	// The peer has seen at most as many uses as were made. So a correct count is at most maxCredits
	// above the used count, whatever is in flight.
	if posted.Less(old) || posted.Sub(vitcpwire.Count(c.used.Load())) < 0 {
		return false
	}
	c.posted.Store(uint32(posted))
	return true
}

// available returns how many descriptor-consuming messages may still be sent. [send role]
func (c *sendCredits) available() int {
	return vitcpwire.Count(c.posted.Load()).Sub(vitcpwire.Count(c.used.Load()))
}

// take uses a credit; available must be above 0. [send role]
func (c *sendCredits) take() { c.used.Set(uint64(uint16(c.used.Load() + 1))) }

// recvCredits counts the local receive descriptors, posted and advertised. Posting goroutines raise
// posted, the receive role calls consume, and the send role calls advertise. [VIT-3.1-16] [V-20]
// [V-21]
type recvCredits struct {
	posted     atomic.Uint64   // number of posted descriptors, which does not wrap
	consumed   counter.Counter // number of them that arrived messages have consumed
	advertised counter.Counter // number of them that were advertised to the peer
	high       counter.Counter // largest number that was advertised and not consumed at one time

	// free means descriptor flow control is off: the count is advertised, but does not limit the
	// peer, and consumed descriptors are not counted.
	free bool

	// threshold is the number of unused credits below which a NOP is due although more input is
	// available. 0 means half of high. [VIT-3.1-NOP-4]
	threshold uint64
}

// post counts n more posted descriptors.
func (c *recvCredits) post(n int) { c.posted.Add(uint64(n)) }

// reach raises the count of posted descriptors to n, if the count is smaller.
func (c *recvCredits) reach(n uint64) {
	for {
		old := c.posted.Load()
		if n <= old || c.posted.CompareAndSwap(old, n) {
			return
		}
	}
}

// ahead returns the count to advertise: all posted descriptors, but with flow control at most
// maxCredits more than were consumed.
func (c *recvCredits) ahead() uint64 {
	if c.free {
		return c.posted.Load()
	}
	return min(c.posted.Load(), c.consumed.Load()+maxCredits)
}

// advertise returns the count for the next segment and records the count as advertised. [send role]
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

// consume counts a message consuming a descriptor. It returns false, and counts nothing, if the
// peer sent the message without a credit. [receive role]
func (c *recvCredits) consume() bool {
	if c.free {
		return true
	}
	n := c.consumed.Load()
	if n == c.advertised.Load() {
		return false
	}
	c.consumed.Set(n + 1)
	return true
}

// unadvertised reports whether there are descriptors the peer does not know of. [VIT-3.1-NOP-2]
func (c *recvCredits) unadvertised() bool { return c.ahead() != c.advertised.Load() }

// urgent reports whether new descriptors must be advertised although more input is available,
// because the peer has few credits left. [VIT-3.1-NOP-3] [V-21]
func (c *recvCredits) urgent() bool {
	known := c.advertised.Load()
	if c.free || c.ahead() == known {
		return false
	}
	unused := known - min(known, c.consumed.Load())
	limit := c.threshold
	if limit == 0 {
		limit = c.high.Load() / 2
	}
	return unused < max(1, limit)
}
