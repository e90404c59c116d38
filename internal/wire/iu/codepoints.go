package iu

// The standard's text is not public, so the project assigned values, all of them in this file.
// Replace the values, or add another codec, once the text is available.

// ProjectVersion is the codec version in the set-up payloads. [FCVI-6.8-1]
const ProjectVersion = 1

// These are the opcodes. [FCVI-5.9.3-1]
const (
	SendRqst       Opcode = 0x01
	WriteRqst      Opcode = 0x02
	ReadRqst       Opcode = 0x03
	SendResp       Opcode = 0x11
	WriteResp      Opcode = 0x12
	ReadResp       Opcode = 0x13
	ConnectRqst    Opcode = 0x20
	ConnectResp1   Opcode = 0x21
	ConnectResp2   Opcode = 0x22
	ConnectResp3   Opcode = 0x23
	DisconnectRqst Opcode = 0x30
	DisconnectResp Opcode = 0x31
)

// These are flags of message requests. [FCVI-5.9.4-2]
const (
	FlagImm     Flags = 0x01 // FCVI_PARAMETER is immediate data
	FlagRspRqd  Flags = 0x02 // the request requires a response
	FlagRR      Flags = 0x04 // the message is sent at Reliable Reception
	FlagLastMsg Flags = 0x80 // the stream Exchange ends with the message
)

// These are flags of message responses. [FCVI-5.9.4-6]
const (
	FlagErr Flags = 0x01 // the message failed, and FCVI_PARAMETER has the reason; also used on disconnects
	FlagCum Flags = 0x02 // the response answers all earlier Sends and Writes too
)

// These are flags of connect IUs. The mode is in the two low bits. [FCVI-5.9.4-7] [FCVI-5.9.4-8]
const (
	FlagModeMask Flags = 0x03
	FlagRetry    Flags = 0x04 // also used on disconnects
	FlagPos      Flags = 0x08
	FlagPend     Flags = 0x10
)

// FlagMsgID marks a disconnect whose FCVI_MSG_ID names a message. [FCVI-5.9.4-9]
const FlagMsgID Flags = 0x02

// These are connection modes. [FCVI-5.9.4-7]
const (
	ClientServer Mode = 1
	PeerToPeer   Mode = 2
)

// These are reason codes. [FCVI-5.9.7-5] [FCVI-5.9.7-6] [FCVI-5.9.7-7] [FCVI-5.9.7-8]
const (
	Accepted         Reason = 0x00
	Confirmed        Reason = 0x01
	PeerYield        Reason = 0x02
	Pending          Reason = 0x03
	AlreadyConnected Reason = 0x04

	NoMatch            Reason = 0x10
	ULPReject          Reason = 0x11
	ULPTimeout         Reason = 0x12
	InvalidReliability Reason = 0x13
	InvalidMTS         Reason = 0x14
	InvalidQoS         Reason = 0x15
	InvalidRDMARead    Reason = 0x16
	NoResources        Reason = 0x17
	BadState           Reason = 0x18
	BadMode            Reason = 0x19
	BadFormat          Reason = 0x1A
	Stale              Reason = 0x1B
	Cancelled          Reason = 0x1C
	AddressMismatch    Reason = 0x1D

	NoRecvDesc    Reason = 0x40
	LengthError   Reason = 0x41
	RecvProt      Reason = 0x42
	RecvFormat    Reason = 0x43
	RDMAWriteProt Reason = 0x44
	RDMAWriteOff  Reason = 0x45
	RDMAReadProt  Reason = 0x46
	RDMAReadOff   Reason = 0x47
	TooLong       Reason = 0x48

	ULPDisconnect  Reason = 0x60
	MsgLost        Reason = 0x61
	FrameLost      Reason = 0x62
	RespTimeout    Reason = 0x63
	NotConnected   Reason = 0x64
	Protocol       Reason = 0x65
	UnexpectedResp Reason = 0x66
	PortInternal   Reason = 0x67
	PortResources  Reason = 0x68
	LoggedOut      Reason = 0x69
	Class2Fail     Reason = 0x6A
	DataError      Reason = 0x6B
)

// These are the ranges of the reason codes. [FCVI-5.9.7-4]
const (
	firstConnectError Reason = 0x10
	firstDescError    Reason = 0x40
	firstPortError    Reason = 0x60
	firstReserved     Reason = 0x80
	firstVendor       Reason = 0xF0
)

// These are the fields of CONN_STS in FCVI_PARAMETER. [FCVI-5.9.7-2]
const (
	reasonShift    = 24
	qualifierShift = 16
)

// These are byte offsets in the Device_Header. [FCVI-5.9.1-1]
const (
	offHandle  = 0
	offOpcode  = 4
	offFlags   = 5
	offMsgID   = 8
	offParam   = 12
	offRmtVA   = 16
	offRmtHdl  = 24
	offTotalID = 28
)

// These are bits of FCVI_ATTR_FLAGS. [FCVI-7.3-2]
const (
	attrReliability = 0x07
	attrWrite       = 0x08
	attrRead        = 0x10
	attrInOrder     = 0x20
	attrStreaming   = 0x40
	attrClass2      = 0x80
	attrHolds       = 0x100
	attrProves      = 0x200
)

// QoSStrict is the flag of FCVI_QOS that forbids a lesser service.
const QoSStrict = 0x0001

// These are offsets and lengths in the payloads. [FCVI-6.8-1] [FCVI-6.9-1] [FCVI-7.2-1]
// [FCVI-7.3-1]
const (
	NetAddressLen   = 84
	AttributesLen   = 32
	ConnectRqstLen  = 216 // [FCVI-6.8-4]
	ConnectResp1Len = 132

	hostIP   = 16 // HostAddressLen for an IP address
	hostName = 8  // HostAddressLen for a Port_Name

	// MaxDiscriminator is the maximum length of a discriminator in bytes. [FCVI-7.2-4]
	MaxDiscriminator = 64
)

// These are the values of R_CTL for each IU. [FCVI-5.1-4]
const (
	rctlSolData   = 0x01
	rctlUnsolCtl  = 0x02
	rctlSolCtl    = 0x03
	rctlUnsolData = 0x04
)

// These are the values of F_CTL for each IU. FC-FS defines the bits, and the project chose the
// combinations. The port adds fill bytes and the class 2 ACK form. [FCVI-5.8-7] [FCVI-5.8-8]
// [FCVI-5.8-9]
const (
	fctlRqstMore     = 0x200008 // any frame of a data request except the last
	fctlRqstOneWay   = 0x380008 // last frame, without an answer
	fctlRqstAnswered = 0x290008 // last frame; Sequence Initiative passes to the responder
	fctlControlRqst  = 0x290000
	fctlLastResp     = 0x980000
	fctlReadMore     = 0x800008
	fctlReadLast     = 0x980008
	fctlResp1Accept  = 0x890000
	fctlResp1Pending = 0x880000
	fctlResp2Confirm = 0x090000
	fctlResp2Cancel  = 0x180000
	fctlStreamMore   = 0x000008 // stream Exchange: any frame but the last, in any sequence except the first
	fctlStreamEnd    = 0x080008
	fctlStreamFirst  = 0x280008 // stream Exchange: last frame of the first sequence
	fctlStreamLast   = 0x180008
)

// FC-VI uses the lower half of the exchange ids. [FCVI-5.4-1]
const (
	FirstOXID = 0x0000
	LastOXID  = 0x7FFF
)

// Beats decides between two matching peer requests. The higher Port_Name wins. If both are equal,
// the higher discriminator wins, and then the higher handle. [FCVI-5.3.4-1]
func (ProjectV1) Beats(aName, bName uint64, aDisc, bDisc []byte, aHandle, bHandle uint32) bool {
	if aName != bName {
		return aName > bName
	}
	if a, b := string(aDisc), string(bDisc); a != b {
		return a > b
	}
	return aHandle > bHandle
}
