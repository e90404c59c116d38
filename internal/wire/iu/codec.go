package iu

import (
	"errors"

	"viaduct/internal/fault"
)

// These are errors of the parsers. For short input the error is io.ErrUnexpectedEOF.
var (
	ErrVersion = errors.New("iu: unknown codec version")
	ErrFormat  = errors.New("iu: malformed payload")
)

// A Codec is an assignment of values to the fields of FC-VI. The state machines use only the Codec
// interface and the names of the package.
type Codec interface {
	// Name identifies the codec in tests and logs.
	Name() string

	AppendHeader(b []byte, h *Header) []byte
	// ParseHeader is Header.Parse.
	ParseHeader(b []byte, h *Header) (int, error)
	AppendConnectRqst(b []byte, p *ConnectPayload) []byte
	ParseConnectRqst(b []byte) (ConnectPayload, int, error)
	AppendConnectResp1(b []byte, p *AcceptPayload) []byte
	ParseConnectResp1(b []byte) (AcceptPayload, int, error)

	// RCtl returns the R_CTL of an IU.
	RCtl(o Opcode) uint8
	// FCtl returns the F_CTL of a frame, without fill bytes and ACK form.
	FCtl(o Opcode, u Use) uint32
	// DFCtl returns the DF_CTL of an IU.
	DFCtl(o Opcode) uint8

	// Beats reports whether request a wins over request b, of two matching peer requests. The
	// arguments are the Port_Name, discriminator and handle of each requester.
	Beats(aName, bName uint64, aDisc, bDisc []byte, aHandle, bHandle uint32) bool
}

// A Use holds the properties of a frame that determine F_CTL.
type Use struct {
	Last     bool // the frame is the last of its sequence
	Answered bool // the message request expects a response
	Stream   StreamPos
	Pending  bool // RESP1: a final RESP1 follows
	End      bool // RESP1: the request is rejected or yielded; RESP2: the set-up is cancelled
}

// A StreamPos is the position of a one-way request in a stream Exchange. [FCVI-5.2.1-5]
type StreamPos uint8

// These are positions in a stream Exchange.
const (
	NoStream    StreamPos = iota // the message has an Exchange of its own
	StreamFirst                  // first of several messages
	StreamNext
	StreamLast // last message, which closes the Exchange
)

// ProjectV1 is the project's codec.
type ProjectV1 struct{}

var _ Codec = ProjectV1{}

// Name returns "ProjectV1".
func (ProjectV1) Name() string { return "ProjectV1" }

// AppendHeader appends h in the form of Header.Append.
func (ProjectV1) AppendHeader(b []byte, h *Header) []byte {
	at := len(b)
	b = h.Append(b)
	if fault.On("fcvi-reserved") {
		b[at+7] = 1
	}
	return b
}

// ParseHeader decodes a Device_Header.
func (ProjectV1) ParseHeader(b []byte, h *Header) (int, error) { return h.Parse(b) }

// AppendConnectRqst sets p.Version to the codec's and appends p.
func (ProjectV1) AppendConnectRqst(b []byte, p *ConnectPayload) []byte {
	p.Version = ProjectVersion
	return p.Append(b)
}

// ParseConnectRqst decodes the payload of a CONNECT_RQST.
func (ProjectV1) ParseConnectRqst(b []byte) (ConnectPayload, int, error) { return ParseConnectRqst(b) }

// AppendConnectResp1 sets p.Version to the codec's and appends p.
func (ProjectV1) AppendConnectResp1(b []byte, p *AcceptPayload) []byte {
	p.Version = ProjectVersion
	if fault.On("fcvi-handle") {
		p.Handle = 0
	}
	return p.Append(b)
}

// ParseConnectResp1 decodes the payload of an accepting CONNECT_RESP1.
func (ProjectV1) ParseConnectResp1(b []byte) (AcceptPayload, int, error) { return ParseConnectResp1(b) }

// RCtl returns the R_CTL of o.
func (ProjectV1) RCtl(o Opcode) uint8 {
	if fault.On("fcvi-r-ctl") && o == SendResp {
		return rctlSolData
	}
	return messages[o].rctl
}

// DFCtl returns the DF_CTL of o. It announces the Device_Header of o and no other optional header.
// [FCVI-5.8-4]
func (ProjectV1) DFCtl(o Opcode) uint8 { return uint8(o.HeaderLen() / ShortLen) }

// FCtl returns the F_CTL of a frame of o. [FCVI-5.8-7] [FCVI-5.8-8] [FCVI-5.8-9]
// [FCVI-5.1-8] [FCVI-5.2.1-2] [FCVI-5.2.1-3] [FCFS-2.10-2]
func (ProjectV1) FCtl(o Opcode, u Use) uint32 {
	switch o {
	case SendRqst, WriteRqst:
		switch {
		case u.Stream >= StreamNext && !u.Last:
			return fctlStreamMore
		case u.Stream == StreamLast:
			return fctlStreamLast
		case u.Stream == StreamNext:
			return fctlStreamEnd
		case !u.Last:
			return fctlRqstMore
		case u.Stream == StreamFirst:
			return fctlStreamFirst
		case u.Answered:
			return fctlRqstAnswered
		}
		return fctlRqstOneWay
	case ReadRqst, ConnectRqst, DisconnectRqst:
		return fctlControlRqst
	case ReadResp:
		if u.Last {
			return fctlReadLast
		}
		return fctlReadMore
	case ConnectResp1:
		switch {
		case u.Pending:
			return fctlResp1Pending
		case !u.End:
			return fctlResp1Accept
		}
	case ConnectResp3:
		if fault.On("fcvi-last-sequence") {
			return fctlResp1Accept
		}
	case ConnectResp2:
		if u.End {
			return fctlResp2Cancel
		}
		return fctlResp2Confirm
	}
	return fctlLastResp
}
