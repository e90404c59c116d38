package ddp

import "fmt"

// TerminateLayer is the number of the layer DDP in a Terminate message.
const TerminateLayer = 1

// An ErrorType groups the errors of DDP. [DDP 7.2]
type ErrorType uint8

// These are the error types of DDP.
const (
	TypeCatastrophic ErrorType = 0 // local catastrophic
	TypeTagged       ErrorType = 1 // Tagged Buffer error
	TypeUntagged     ErrorType = 2 // Untagged Buffer error
	TypeLLP          ErrorType = 3 // reserved for the layer below
)

// String returns the name of the type.
func (t ErrorType) String() string {
	switch t {
	case TypeCatastrophic:
		return "local catastrophic"
	case TypeTagged:
		return "tagged buffer"
	case TypeUntagged:
		return "untagged buffer"
	case TypeLLP:
		return "reserved for LLP"
	}
	return fmt.Sprintf("type 0x%x", uint8(t))
}

// A Fault is the error of a received segment, or OK.
type Fault uint8

// These are the faults. The numbers are the error type and code in the table of RFC 5041.
// [DDP-7.2-1]
const (
	OK                 Fault = iota
	Catastrophic             // 0/00
	InvalidSTag              // 1/00 not known, not enabled, or its buffer does not allow the placement [DDP-7.1-9] [DDP-7.1-10]
	OutOfBounds              // 1/01 [DDP-7.1-11] [DDP-7.1-12]
	NotAssociated            // 1/02 other Protection Domain or stream [DDP-8.2-1] [DDP-8.2-2]
	Wrap                     // 1/03 TO plus length passes 2^64 [DDP-7.1-13]
	TaggedVersion            // 1/04
	InvalidQN                // 2/01 [DDP-7.1-1]
	InvalidMSNNoBuffer       // 2/02
	InvalidMSNRange          // 2/03
	InvalidMO                // 2/04
	MessageTooLong           // 2/05
	UntaggedVersion          // 2/06
	numFaults          = iota
)

var faults = [numFaults]struct {
	typ  ErrorType
	code uint8
	text string
}{
	OK:                 {0, 0, "no error"},
	Catastrophic:       {TypeCatastrophic, 0x00, "local catastrophic error"},
	InvalidSTag:        {TypeTagged, 0x00, "invalid STag"},
	OutOfBounds:        {TypeTagged, 0x01, "base or bounds violation"},
	NotAssociated:      {TypeTagged, 0x02, "STag not associated with the stream"},
	Wrap:               {TypeTagged, 0x03, "TO wrap"},
	TaggedVersion:      {TypeTagged, 0x04, "invalid DDP version"},
	InvalidQN:          {TypeUntagged, 0x01, "invalid queue number"},
	InvalidMSNNoBuffer: {TypeUntagged, 0x02, "invalid MSN, no buffer available"},
	InvalidMSNRange:    {TypeUntagged, 0x03, "invalid MSN, out of range"},
	InvalidMO:          {TypeUntagged, 0x04, "invalid MO"},
	MessageTooLong:     {TypeUntagged, 0x05, "message too long for the buffer"},
	UntaggedVersion:    {TypeUntagged, 0x06, "invalid DDP version"},
}

// Code returns the error type and code of the fault on the wire.
func (f Fault) Code() (ErrorType, uint8) {
	if int(f) >= len(faults) {
		return TypeCatastrophic, 0
	}
	return faults[f].typ, faults[f].code
}

// String returns a short description.
func (f Fault) String() string {
	if int(f) >= len(faults) {
		return fmt.Sprintf("fault 0x%02x", uint8(f))
	}
	return faults[f].text
}

// FaultOf returns the fault of t and code. ok is false for a fault missing in the table.
func FaultOf(t ErrorType, code uint8) (f Fault, ok bool) {
	if t == TypeCatastrophic { // all codes of this type mean the same fault
		return Catastrophic, true
	}
	for i := InvalidSTag; i < numFaults; i++ {
		if faults[i].typ == t && faults[i].code == code {
			return i, true
		}
	}
	return OK, false
}

// VersionFault returns the fault for a segment of unknown version whose control octet is c. [I-44]
func VersionFault(c byte) Fault {
	if IsTagged(c) {
		return TaggedVersion
	}
	return UntaggedVersion
}
