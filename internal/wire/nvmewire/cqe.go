package nvmewire

import "fmt"

// A CQE is a completion queue entry: the response to a command.
type CQE struct { // [NVME-CQE-1]
	Result uint64
	SQHead uint16
	CID    uint16 // identifier of the command
	Status Status
}

// ParseCQE decodes a response capsule. The error is ErrShort if b is too short.
func ParseCQE(b []byte) (c CQE, err error) {
	if len(b) < CQELen {
		return c, ErrShort
	}
	return CQE{Result: le.Uint64(b), SQHead: le.Uint16(b[8:]), CID: le.Uint16(b[12:]), Status: Status(le.Uint16(b[14:]) >> 1)}, nil
}

// Append appends the CQELen bytes of the entry to b. The phase bit is 0, because fabrics does not
// use the phase bit.
func (c *CQE) Append(b []byte) []byte {
	b = le.AppendUint64(b, c.Result)
	b = le.AppendUint16(b, c.SQHead)
	b = le.AppendUint16(b, 0)
	b = le.AppendUint16(b, c.CID)
	return le.AppendUint16(b, uint16(c.Status)<<1)
}

// A Status is the status field of a response without the phase bit: SC in bits 7:0, SCT in
// bits 10:8, DNR in bit 14.
type Status uint16

// DNR (do not retry) means that the same command would fail again.
const DNR Status = 1 << 14

// The statuses used by the module.
const (
	OK                  Status = 0
	InvalidOpcode              = 0x001 | DNR
	InvalidField               = 0x002 | DNR
	DataTransferError   Status = 0x004
	InternalError       Status = 0x006
	InvalidNamespace           = 0x00b | DNR
	SequenceError              = 0x00c | DNR
	SGLLengthInvalid           = 0x00f | DNR
	SGLTypeInvalid             = 0x011 | DNR
	SGLOffsetInvalid           = 0x016 | DNR
	LBAOutOfRange              = 0x080 | DNR
	EventLimitExceeded         = 0x105 | DNR
	InvalidLogPage             = 0x109 | DNR
	IncompatibleFormat         = 0x180 | DNR
	ControllerBusy      Status = 0x181
	InvalidConnectParam        = 0x182 | DNR
	CompareFailure             = 0x285 | DNR
	NamespaceReadOnly          = 0x020 | DNR
)

var statusNames = map[Status]string{
	OK: "success", InvalidOpcode: "invalid opcode", InvalidField: "invalid field",
	DataTransferError: "data transfer error",
	InternalError:     "internal error", InvalidNamespace: "invalid namespace", SequenceError: "command sequence error",
	SGLLengthInvalid: "SGL length invalid", SGLTypeInvalid: "SGL type invalid", SGLOffsetInvalid: "SGL offset invalid",
	LBAOutOfRange: "LBA out of range", EventLimitExceeded: "event limit exceeded", InvalidLogPage: "invalid log page",
	IncompatibleFormat: "incompatible format", ControllerBusy: "controller busy",
	InvalidConnectParam: "invalid connect parameters",
	CompareFailure:      "compare failure", NamespaceReadOnly: "namespace is write protected",
}

// String returns the name of the status, or the number in hex.
func (s Status) String() string {
	for _, k := range []Status{s, s | DNR} {
		if n, ok := statusNames[k]; ok {
			return n
		}
	}
	return fmt.Sprintf("status %#03x", uint16(s&^DNR))
}
