package vitcp

import (
	"sync/atomic"

	"viaduct/internal/wire/vitcpwire"
)

// While more input is available, acknowledgements are delayed until this many messages or payload
// bytes are unacknowledged. [V-12]
const (
	ackMessages = 32
	ackBytes    = 1 << 20
)

// An acker decides when a Message ACK must be sent. The acknowledgement number travels with the
// next segment of any kind. Without such a segment, a NOP carries the number when the input has
// drained, or earlier if too much is unacknowledged; an acker needs no timer. The receive role
// records messages, and the send role takes the number for each segment. [V-11] [V-12]
// [VIT-3.1-ACK-1] [VIT-3.1-ACK-2] [VIT-3.1-ACK-3]
type acker struct {
	last  atomic.Uint32 // Number of the last message that was received without error
	acked atomic.Uint32 // acknowledgement number that was sent last
	bytes atomic.Uint64 // payload bytes received up to message last
	sent  atomic.Uint64 // payload bytes acknowledged

	// free is set at levels other than Reliable Reception, where acknowledgements complete nothing.
	// Segments still carry the number, but neither sent numbers nor received bytes are recorded.
	free bool
}

// begin sets both numbers to n, the number before the peer's first message, because no message was
// received yet and none is unacknowledged. [V-09]
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

// pending reports whether the peer waits for an acknowledgement.
func (a *acker) pending() bool { return !a.free && a.last.Load() != a.acked.Load() }

// urgent reports whether an acknowledgement must be sent although more input is available.
func (a *acker) urgent() bool {
	return !a.free && (a.last.Load()-a.acked.Load() >= ackMessages || a.bytes.Load()-a.sent.Load() >= ackBytes)
}

// acknowledge returns the acknowledgement number for the next segment and, unless free is set,
// records the number as sent. [send role]
func (a *acker) acknowledge() vitcpwire.Number {
	if a.free {
		return vitcpwire.Number(a.last.Load())
	}
	// received raises the byte count before the number. So the bytes of a message that arrives
	// meanwhile may count as acknowledged, but the message stays pending.
	b := a.bytes.Load()
	n := a.last.Load()
	if n != a.acked.Load() {
		a.sent.Store(b)
		a.acked.Store(n)
	}
	return vitcpwire.Number(n)
}
