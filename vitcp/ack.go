package vitcp

import (
	"sync/atomic"

	"viaduct/internal/wire/vitcpwire"
)

// Limits of unacknowledged input while more input is available. [V-12]
const (
	ackMessages = 32
	ackBytes    = 1 << 20
)

// An acker decides when a Message ACK must be sent. It has no timer: the number travels with the
// next segment of any kind. If there is none, a NOP carries it when the input has drained, or when
// too much is unacknowledged. The receive role records messages and the send role sends the
// acknowledgement. [V-11] [V-12] [VIT-3.1-ACK-1] [VIT-3.1-ACK-2] [VIT-3.1-ACK-3]
type acker struct {
	last  atomic.Uint32 // Number: of the last message received well
	acked atomic.Uint32 // Number: as last sent
	bytes atomic.Uint64 // payload received up to last
	sent  atomic.Uint64 // of those, acknowledged

	// free means that acknowledgements have no effect on this connection: they are sent, but not
	// recorded.
	free bool
}

// begin sets the number before the peer's first one, which means "none yet". [V-09]
func (a *acker) begin(n vitcpwire.Number) {
	a.last.Store(uint32(n))
	a.acked.Store(uint32(n))
}

// received records that message n, with the given payload length, is in place and completed.
// [receive role]
func (a *acker) received(n vitcpwire.Number, payload int) {
	if !a.free {
		a.bytes.Store(a.bytes.Load() + uint64(payload))
	}
	a.last.Store(uint32(n))
}

// pending reports whether there is anything to acknowledge.
func (a *acker) pending() bool { return a.last.Load() != a.acked.Load() }

// urgent reports whether the acknowledgement must not wait until the input has
// drained.
func (a *acker) urgent() bool {
	return a.last.Load()-a.acked.Load() >= ackMessages || a.bytes.Load()-a.sent.Load() >= ackBytes
}

// acknowledge returns the number for the segment that leaves next and records it. [send role]
func (a *acker) acknowledge() vitcpwire.Number {
	if a.free {
		return vitcpwire.Number(a.last.Load())
	}
	// In this order, a message that arrives in between is at worst counted
	// as acknowledged in bytes only, and still pending by number.
	b := a.bytes.Load()
	n := a.last.Load()
	if n != a.acked.Load() {
		a.sent.Store(b)
		a.acked.Store(n)
	}
	return vitcpwire.Number(n)
}
