package sdpcore

// A serial is a 32-bit number that wraps from all ones to zero: MSeq, MSeqAck, NonDiscards,
// PotentialNonDiscards. Two serials are compared by their distance, which must be below 2^31.
// [SDP-5-3]
type serial uint32

// sub returns a - b as a signed distance. This is WrapSubtract of the draft, but with the sign
// kept, so that a number from the future is detected. [D-09]
func (a serial) sub(b serial) int32 { return int32(a - b) }

// less reports whether a comes before b.
func (a serial) less(b serial) bool { return a.sub(b) < 0 }
