package vitcp

import (
	"sync/atomic"

	"viaduct/internal/wire/vitcpwire"
)

// A numbering numbers this side's messages. At a reliable level the sequence numbers of the send
// descriptors and the numbers of the messages both rise by 1 with each message.
type numbering struct {
	last   vitcpwire.Number // number of the message that began last
	whole  vitcpwire.Number // number of the last message that is completely sent or in a batch
	seqOff uint64           // difference between sequence number and message number
}

// begin numbers the message of send descriptor seq. [VIT-3.1-10]
func (n *numbering) begin(seq uint64) {
	n.last = n.last.Add(1)
	n.seqOff = seq - uint64(uint32(n.last))
}

// publishedNumbers is the numbering as the receive role sees it. The send role publishes it once
// for a batch.
type publishedNumbers struct {
	begun, whole atomic.Uint32
	seqOff       atomic.Uint64
}

// publish sets the numbers. [send role]
func (p *publishedNumbers) publish(n *numbering) {
	p.seqOff.Store(n.seqOff)
	p.begun.Store(uint32(n.last))
	p.whole.Store(uint32(n.whole))
}

// sequence returns the sequence number of the send descriptor of message n. [receive role]
func (p *publishedNumbers) sequence(n vitcpwire.Number) uint64 {
	off := p.seqOff.Load()
	// Message numbers wrap, sequence numbers do not. The result is unique because n is at most 2^31
	// before the last begun message.
	last := vitcpwire.Number(p.begun.Load())
	return off + uint64(uint32(last)) - uint64(last.Sub(n))
}
