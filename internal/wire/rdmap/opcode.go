package rdmap

import (
	"encoding/binary"
	"fmt"

	"viaduct/internal/fault"
	"viaduct/internal/wire/ddp"
)

// Version is the RDMAP version in every message. [RDMAP-4.1-7] [MPA-C-1]
const Version = 1

// These are the queue numbers of Untagged messages. [RDMAP-3.1-2] [RDMAPX-4-3]
const (
	QueueSend           = 0 // all types of Send, and Immediate Data
	QueueReadRequest    = 1 // Read Requests and Atomic Requests
	QueueTerminate      = 2
	QueueAtomicResponse = 3
)

// An Opcode names an RDMAP message. [RDMAP 4.1] [RDMAP-4.1-5] [RDMAPX-4.1-2]
type Opcode uint8

// These are the opcodes.
const (
	Write             Opcode = 0
	ReadRequestOp     Opcode = 1
	ReadResponse      Opcode = 2
	Send              Opcode = 3
	SendInvalidate    Opcode = 4
	SendSE            Opcode = 5
	SendSEInvalidate  Opcode = 6
	TerminateOp       Opcode = 7
	Immediate         Opcode = 8  // RFC 7306
	ImmediateSE       Opcode = 9  // RFC 7306
	AtomicRequestOp   Opcode = 10 // RFC 7306
	AtomicResponseOp  Opcode = 11 // RFC 7306; 12 to 14 are unassigned, 15 is experimental [REG 3.4]
	opcodeMask               = 0x0f
	versionShift             = 6
	reservedMask      byte   = 0x30
	invalidateSTagOff        = 1
)

// messages is the table of RFC 5040 Figure 4 and RFC 7306 Figure 2.
// [RDMAP-4.1-4] [RDMAP-4.1-6] [RDMAP-4.2-1] [RDMAP-5.1-1] [RDMAP-5.2.1-1] [RDMAP-5.2.1-6]
// [RDMAP-5.2.2-1] [RDMAP-5.3-1] [RDMAP-5.4-1] [RDMAP-5.4-2] [RDMAPX-4.1-4] [RDMAPX-5-5]
// [RDMAPX-5.2-1] [RDMAPX-5.2-2] [RDMAPX-5.2.1-6] [RDMAPX-5.2.1-11] [RDMAPX-5.2.2-2]
// [RDMAPX-6.3-1] [RDMAPX-6.3-4]
var messages = [opcodeMask + 1]struct {
	name       string
	tagged     bool
	qn         uint32 // queue number; 0 if tagged
	header     int    // length in bytes of the RDMAP header in the DDP payload; such a message has no other payload [RDMAP-4.2-2] [RDMAPX-4.2-1]
	invalidate bool
	solicited  bool
	extension  bool // RFC 7306
}{
	Write:            {name: "RDMA Write", tagged: true},
	ReadRequestOp:    {name: "RDMA Read Request", qn: QueueReadRequest, header: ReadRequestLen},
	ReadResponse:     {name: "RDMA Read Response", tagged: true},
	Send:             {name: "Send", qn: QueueSend},
	SendInvalidate:   {name: "Send with Invalidate", qn: QueueSend, invalidate: true},
	SendSE:           {name: "Send with SE", qn: QueueSend, solicited: true},
	SendSEInvalidate: {name: "Send with SE and Invalidate", qn: QueueSend, invalidate: true, solicited: true},
	TerminateOp:      {name: "Terminate", qn: QueueTerminate, header: TerminateLen},
	Immediate:        {name: "Immediate Data", qn: QueueSend, header: ImmediateLen, extension: true},
	ImmediateSE: {name: "Immediate Data with SE", qn: QueueSend, header: ImmediateLen,
		solicited: true, extension: true},
	AtomicRequestOp:  {name: "Atomic Request", qn: QueueReadRequest, header: AtomicRequestLen, extension: true},
	AtomicResponseOp: {name: "Atomic Response", qn: QueueAtomicResponse, header: AtomicResponseLen, extension: true},
}

// String returns the name of the message. For an unassigned opcode String returns the number in
// hexadecimal.
func (o Opcode) String() string {
	if o.Assigned() {
		return messages[o].name
	}
	return fmt.Sprintf("opcode 0x%02x", uint8(o))
}

// Assigned reports whether the opcode names a message.
func (o Opcode) Assigned() bool { return o <= opcodeMask && messages[o].name != "" }

// Tagged reports whether the message uses the Tagged Buffer Model.
func (o Opcode) Tagged() bool { return o <= opcodeMask && messages[o].tagged }

// Queue returns the queue number of an Untagged message, and 0 for any other opcode.
func (o Opcode) Queue() uint32 {
	if !o.Assigned() {
		return 0
	}
	return messages[o].qn
}

// IsSend reports whether o is one of the four Send types. [RDMAP-5.3-8]
func (o Opcode) IsSend() bool { return o >= Send && o <= SendSEInvalidate }

// IsImmediate reports whether o carries Immediate Data.
func (o Opcode) IsImmediate() bool { return o == Immediate || o == ImmediateSE }

// Invalidates reports whether the message names an STag to invalidate.
// [RDMAP-4.1-3] [RDMAP-5.3-12]
func (o Opcode) Invalidates() bool { return o <= opcodeMask && messages[o].invalidate }

// Solicited reports whether delivery of the message may raise an event.
// [RDMAP-5.3-6]
func (o Opcode) Solicited() bool { return o <= opcodeMask && messages[o].solicited }

// Extension reports whether the message is of RFC 7306.
func (o Opcode) Extension() bool { return o <= opcodeMask && messages[o].extension }

// Control returns the RDMAP control octet of the message: the first octet of
// RsvdULP. Reserved bits are zero. [RDMAP-4.1-1] [RDMAP-4.1-2] [RDMAP-4.1-8]
// [RDMAPX-4.1-1]
//
//	 0 1 2 3 4 5 6 7
//	+---+---+-------+
//	|RV |Rsv|Opcode |
//	+---+---+-------+
func (o Opcode) Control() byte { return Version<<versionShift | byte(o)&opcodeMask }

// ParseControl splits a control octet. Reserved bits are ignored. [RDMAP-4.1-8]
func ParseControl(c byte) (version uint8, o Opcode) {
	return c >> versionShift, Opcode(c & opcodeMask)
}

// TaggedHeader returns the DDP header of a segment of a Tagged message.
func (o Opcode) TaggedHeader(stag uint32, to uint64, last bool) ddp.Tagged {
	return ddp.Tagged{Last: last, RsvdULP: o.Control(), STag: stag, TO: to}
}

// UntaggedHeader returns the DDP header of a segment of an Untagged message. The two Send types
// with an STag use invalidate. In all other messages the field is sent as zero and ignored on
// receipt. [RDMAP-4.1-3] [RDMAP-4.1-9] [RDMAP-4.1-10] [RDMAPX-4.1-3]
func (o Opcode) UntaggedHeader(msn ddp.MSN, mo uint32, last bool, invalidate uint32) ddp.Untagged {
	h := ddp.Untagged{Last: last, QN: o.Queue(), MSN: msn, MO: mo}
	h.RsvdULP[0] = o.Control()
	if fault.On("rdmap-invalidate-field") {
		h.RsvdULP[invalidateSTagOff] = 1
	}
	if o.Invalidates() {
		binary.BigEndian.PutUint32(h.RsvdULP[invalidateSTagOff:], invalidate)
	}
	return h
}

// InvalidateSTag returns the STag the message with header h invalidates. ok is false if messages
// with this opcode invalidate no STag, whatever value the field has. [RDMAP-4.1-10] [RDMAPX-4.1-3]
func InvalidateSTag(h ddp.Untagged) (stag uint32, ok bool) {
	_, o := ParseControl(h.RsvdULP[0])
	if !o.Invalidates() {
		return 0, false
	}
	return binary.BigEndian.Uint32(h.RsvdULP[invalidateSTagOff:]), true
}
