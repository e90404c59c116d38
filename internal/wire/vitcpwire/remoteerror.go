package vitcpwire

import "fmt"

// A RemoteError is the Remote Error Code of a segment. Its high byte is the VI Error Type, its low
// byte an implementation-specific code. Both concern the message the Message ACK field names.
// [VIT-3.1-ERR-1] [V-13]
type RemoteError uint16

// These are the VI Error Types. [VIT-3.1-ERR-3]
const (
	NoError         uint8 = 0
	ProtectionError uint8 = 1 // RDMA memory protection error
	DescriptorError uint8 = 2 // VI descriptor error
)

// These are the implementation-specific codes of a Connect Reject. Another implementation may leave
// the field zero. [V-46]
const (
	RejectAttributes  uint8 = 1 // the attributes of the two sides do not match
	RejectApplication uint8 = 2 // the VI consumer refused
	RejectResources   uint8 = 3 // too many connections, or no memory
	RejectVersion     uint8 = 4 // unknown version of the protocol
	RejectCrossed     uint8 = 5 // peer-to-peer: two connections crossed, and the other one is kept [V-33]
)

// MakeRemoteError returns the code for a VI Error Type and an implementation-specific code.
func MakeRemoteError(vi, is uint8) RemoteError {
	return RemoteError(vi)<<8 | RemoteError(is)
}

// VI returns the VI Error Type.
func (e RemoteError) VI() uint8 { return uint8(e >> 8) }

// IS returns the implementation-specific code.
func (e RemoteError) IS() uint8 { return uint8(e) }

// String returns the name of the VI Error Type. An implementation-specific code other than 0
// follows in hexadecimal.
func (e RemoteError) String() string {
	var s string
	switch e.VI() {
	case NoError:
		s = "no error"
	case ProtectionError:
		s = "RDMA memory protection error"
	case DescriptorError:
		s = "VI descriptor error"
	default:
		s = fmt.Sprintf("VI error %#x", e.VI())
	}
	if e.IS() != 0 {
		s += fmt.Sprintf(" (%#x)", e.IS())
	}
	return s
}

// RejectReason returns the meaning of the code in a Connect Reject.
func (e RemoteError) RejectReason() string {
	switch e.IS() {
	case 0:
		return "no reason given"
	case RejectAttributes:
		return "attributes do not match"
	case RejectApplication:
		return "refused by the VI consumer"
	case RejectResources:
		return "out of resources"
	case RejectVersion:
		return "unknown version"
	case RejectCrossed:
		return "crossed by the kept connection"
	}
	return fmt.Sprintf("reason %#x", e.IS())
}
