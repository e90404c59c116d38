package iu

import "fmt"

// An Opcode is FCVI_OPCODE, the identifier of the Information Unit.
type Opcode uint8

// A kind is the purpose of an Information Unit.
type kind uint8

const (
	control  kind = iota + 1 // belongs to set-up or disconnect
	request                  // requests a message
	response                 // answers a message
)

// messages has a row for each of the twelve Information Units. Those with a short header have no
// address and no connection id. [FCVI-5.1-1] [FCVI-5.1-2]
var messages = [256]struct {
	name     string
	kind     kind
	header   int    // length of the Device_Header in bytes
	rctl     uint8  // [FCVI-5.1-4]
	data     bool   // the IU carries message data, and therefore a relative offset
	response Opcode // for a request: the opcode of its response
}{
	SendRqst:       {"SEND_RQST", request, ShortLen, rctlUnsolData, true, SendResp},
	WriteRqst:      {"WRITE_RQST", request, LongLen, rctlUnsolData, true, WriteResp},
	ReadRqst:       {"READ_RQST", request, LongLen, rctlUnsolCtl, false, ReadResp},
	SendResp:       {"SEND_RESP", response, ShortLen, rctlSolCtl, false, 0},
	WriteResp:      {"WRITE_RESP", response, ShortLen, rctlSolCtl, false, 0},
	ReadResp:       {"READ_RESP", response, ShortLen, rctlSolData, true, 0},
	ConnectRqst:    {"CONNECT_RQST", control, LongLen, rctlUnsolCtl, false, 0},
	ConnectResp1:   {"CONNECT_RESP1", control, LongLen, rctlSolCtl, false, 0},
	ConnectResp2:   {"CONNECT_RESP2", control, LongLen, rctlSolCtl, false, 0},
	ConnectResp3:   {"CONNECT_RESP3", control, LongLen, rctlSolCtl, false, 0},
	DisconnectRqst: {"DISCONNECT_RQST", control, LongLen, rctlUnsolCtl, false, 0},
	DisconnectResp: {"DISCONNECT_RESP", control, LongLen, rctlSolCtl, false, 0},
}

func (o Opcode) String() string {
	if s := messages[o].name; s != "" {
		return s
	}
	return fmt.Sprintf("FCVI_OPCODE(0x%02x)", uint8(o))
}

// Valid reports whether o is among the twelve opcodes. [FCVI-5.9.3-2]
func (o Opcode) Valid() bool { return messages[o].kind != 0 }

// IsRequest reports whether o is a message request.
func (o Opcode) IsRequest() bool { return messages[o].kind == request }

// IsResponse reports whether o is a message response.
func (o Opcode) IsResponse() bool { return messages[o].kind == response }

// HasData reports whether o carries message data, and therefore a relative offset.
func (o Opcode) HasData() bool { return messages[o].data }

// Response returns the opcode of the response to o, or 0 if o is no message request.
func (o Opcode) Response() Opcode { return messages[o].response }

// HeaderLen returns the length in bytes of o's Device_Header: 16 for Sends and message responses,
// 32 for IUs with an address or a connection id, and for unknown opcodes.
func (o Opcode) HeaderLen() int {
	if n := messages[o].header; n > 0 {
		return n
	}
	return LongLen
}

// Flags is FCVI_FLAGS. The meaning of a bit depends on the IU. Reserved bits are sent as 0 and
// ignored. [FCVI-5.9.4-1]
type Flags uint8

// A Mode is CONN_MODE, the connection model of a set-up.
type Mode uint8

func (m Mode) String() string {
	switch m {
	case ClientServer:
		return "client-server"
	case PeerToPeer:
		return "peer-to-peer"
	}
	return fmt.Sprintf("CONN_MODE(%d)", uint8(m))
}

// Mode returns the connection mode in the flags of a connect IU.
func (f Flags) Mode() Mode { return Mode(f & FlagModeMask) }

// Flags returns the bits of m at their position in the flags.
func (m Mode) Flags() Flags { return Flags(m) & FlagModeMask }

// A Reason is CONN_STS: the reason for the end of a set-up, a message or a connection.
type Reason uint8

var reasonNames = map[Reason]string{
	Accepted: "ACCEPTED", Confirmed: "CONFIRMED", PeerYield: "PEER_YIELD", Pending: "PENDING",
	AlreadyConnected: "ALREADY_CONNECTED", NoMatch: "NO_MATCH", ULPReject: "ULP_REJECT", ULPTimeout: "ULP_TIMEOUT",
	InvalidReliability: "INVALID_RELIABILITY", InvalidMTS: "INVALID_MTS", InvalidQoS: "INVALID_QOS",
	InvalidRDMARead: "INVALID_RDMA_READ", NoResources: "NO_RESOURCES", BadState: "BAD_STATE", BadMode: "BAD_MODE",
	BadFormat: "BAD_FORMAT", Stale: "STALE", Cancelled: "CANCELLED", AddressMismatch: "ADDRESS_MISMATCH",
	NoRecvDesc: "NO_RECV_DESC", LengthError: "LENGTH", RecvProt: "RECV_PROT", RecvFormat: "RECV_FORMAT",
	RDMAWriteProt: "RDMA_WRITE_PROT", RDMAWriteOff: "RDMA_WRITE_OFF", RDMAReadProt: "RDMA_READ_PROT",
	RDMAReadOff: "RDMA_READ_OFF", TooLong: "TOO_LONG", ULPDisconnect: "ULP_DISCONNECT", MsgLost: "MSG_LOST",
	FrameLost: "FRAME_LOST", RespTimeout: "RESP_TIMEOUT", NotConnected: "NOT_CONNECTED", Protocol: "PROTOCOL",
	UnexpectedResp: "UNEXPECTED_RESP", PortInternal: "PORT_INTERNAL", PortResources: "PORT_RESOURCES",
	LoggedOut: "LOGGED_OUT", Class2Fail: "CLASS2_FAIL", DataError: "DATA_ERROR",
}

func (r Reason) String() string {
	if s, ok := reasonNames[r]; ok {
		return s
	}
	return fmt.Sprintf("CONN_STS(0x%02x)", uint8(r))
}

// A ReasonClass is one of the six ranges of reason codes. [FCVI-5.9.7-4]
type ReasonClass uint8

// These are the classes of reasons.
const (
	ConnectGood ReasonClass = iota
	ConnectError
	DescriptorError
	PortError
	ReservedReason
	VendorReason
)

// Class returns the range of r.
func (r Reason) Class() ReasonClass {
	switch {
	case r < firstConnectError:
		return ConnectGood
	case r < firstDescError:
		return ConnectError
	case r < firstPortError:
		return DescriptorError
	case r < firstReserved:
		return PortError
	case r < firstVendor:
		return ReservedReason
	}
	return VendorReason
}

// Known returns r if the code has a name here, and PORT_INTERNAL otherwise. A receiver must treat
// an unknown code as PORT_INTERNAL. [FCVI-5.9.7-9]
func (r Reason) Known() Reason {
	if _, ok := reasonNames[r]; ok {
		return r
	}
	return PortInternal
}

// A Status is FCVI_PARAMETER in connect responses, disconnects and error responses. [FCVI-5.9.7-2]
type Status struct {
	Reason    Reason
	Qualifier uint8
	Diag      uint16 // never interpreted [FCVI-5.9.7-3]
}

// Param returns s as FCVI_PARAMETER.
func (s Status) Param() uint32 {
	return uint32(s.Reason)<<reasonShift | uint32(s.Qualifier)<<qualifierShift | uint32(s.Diag)
}

// ParseStatus decodes FCVI_PARAMETER.
func ParseStatus(p uint32) Status {
	return Status{Reason(p >> reasonShift), uint8(p >> qualifierShift), uint16(p)}
}

// A MsgID is FCVI_MSG_ID. Ids are compared by serial-number arithmetic. [FCVI-5.9.6-2]
type MsgID uint32

// After reports whether a is later than b, by less than 2^31 ids.
func (a MsgID) After(b MsgID) bool { d := a - b; return d != 0 && d < 1<<31 }
