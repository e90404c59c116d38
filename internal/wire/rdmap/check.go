package rdmap

import (
	"viaduct/internal/wire/ddp"

	"viaduct/internal/fault"
)

// An Extensions value lists the messages of RFC 7306 accepted by a stream. Without agreement of
// both ULPs none is accepted. [RDMAPX-1.1-1] [I-63]
type Extensions struct {
	Immediate bool
	Atomic    bool
}

func (e Extensions) enabled(o Opcode) bool {
	switch o {
	case Immediate, ImmediateSE:
		return e.Immediate
	case AtomicRequestOp, AtomicResponseOp:
		return e.Atomic
	}
	return true
}

// CheckQueue checks the queue number of an Untagged segment. ext selects the queues of RFC 7306.
// [DDP-7.1-1] [I-47]
func CheckQueue(qn uint32, ext Extensions) ddp.Fault {
	if fault.On("ddp-queue-code") && qn > QueueTerminate {
		return ddp.InvalidMO
	}
	if qn <= QueueTerminate || qn == QueueAtomicResponse && ext.Atomic {
		return ddp.OK
	}
	return ddp.InvalidQN
}

// CheckTagged checks the control octet of a Tagged segment: first the version, then whether a
// message with the opcode may be Tagged. [RDMAP-7.2-2] [RDMAP-7.2-3] [RDMAP-4.1-4] [I-47]
func CheckTagged(c byte) (Opcode, Fault) {
	rv, o := ParseControl(c)
	switch {
	case rv != Version: // [RDMAP-7.2-3]
		return o, InvalidVersion
	case !o.Tagged(): // [RDMAP-7.2-2]
		return o, UnexpectedOpcode
	}
	return o, OK
}

// CheckUntagged checks an Untagged segment of n bytes of payload that has passed CheckQueue: first
// the version, then whether the opcode belongs to the queue. A message of fixed length must have
// the fixed length and be a single segment. [RDMAP-7.2-2] [RDMAP-7.2-3] [RDMAP-7.2-6]
// [RDMAP-4.1-11] [RDMAPX-8.2-1] [I-47]
func CheckUntagged(h ddp.Untagged, n int, ext Extensions) (Opcode, Fault) {
	rv, o := ParseControl(h.RsvdULP[0])
	switch {
	case rv != Version && !fault.On("rdmap-version-unchecked"): // [RDMAPX-4.1-1]
		return o, InvalidVersion
	case !o.Assigned(), o.Tagged(), o.Queue() != h.QN, !ext.enabled(o): // [RDMAPX-1.1-3]
		return o, UnexpectedOpcode
	}
	switch want := messages[o].header; {
	case want == 0:
	case o == TerminateOp:
		if !h.Last || n < TerminateLen || n > MaxTerminateLen {
			return o, Unspecified
		}
	case !h.Last, n != want: // [RDMAPX-6.3-7] [I-67]
		return o, Unspecified
	}
	return o, OK
}
