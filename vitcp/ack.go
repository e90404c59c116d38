package vitcp

import (
	"sync/atomic"

	"viaduct/internal/wire/vitcpwire"
)

// How much may be left unacknowledged while more input is at hand. [V-12]
const (
	ackMessages = 32
	ackBytes    = 1 << 20
)

// An acker decides when a Message ACK must be sent. There is no timer: the
// number rides on whatever segment leaves next, and if none does a NOP carries
// it at the moment the input has drained, or when too much is unacknowledged.
// The receive role notes messages, the send role tells. [V-11] [V-12]
// [VIT-3.1-ACK-1] [VIT-3.1-ACK-2] [VIT-3.1-ACK-3]
type acker struct {
	last  atomic.Uint32 // Number: of the last message received well
	told  atomic.Uint32 // Number: as last sent
	bytes atomic.Uint64 // payload received up to last
	sent  atomic.Uint64 // of those, acknowledged

	// free says that acknowledgements mean nothing: they are told, and what of
	// them was told is not kept.
	free bool
}

// begin sets the number that stands for "none yet": the one before the peer's
// first. [V-09]
func (a *acker) begin(n vitcpwire.Number) {
	a.last.Store(uint32(n))
	a.told.Store(uint32(n))
}

// received notes that message n, of the given payload, is in place and its
// completion made. [receive role]
func (a *acker) received(n vitcpwire.Number, payload int) {
	if !a.free {
		a.bytes.Store(a.bytes.Load() + uint64(payload))
	}
	a.last.Store(uint32(n))
}

// pending reports whether there is anything to acknowledge.
func (a *acker) pending() bool { return a.last.Load() != a.told.Load() }

// urgent reports whether the acknowledgement must not wait until the input has
// drained.
func (a *acker) urgent() bool {
	return a.last.Load()-a.told.Load() >= ackMessages || a.bytes.Load()-a.sent.Load() >= ackBytes
}

// tell returns the number for a segment that leaves now. [send role]
func (a *acker) tell() vitcpwire.Number {
	if a.free {
		return vitcpwire.Number(a.last.Load())
	}
	// In this order, a message that arrives in between is at worst counted
	// as acknowledged in bytes only, and still pending by number.
	b := a.bytes.Load()
	n := a.last.Load()
	if n != a.told.Load() {
		a.sent.Store(b)
		a.told.Store(n)
	}
	return vitcpwire.Number(n)
}
