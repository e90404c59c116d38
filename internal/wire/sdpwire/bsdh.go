package sdpwire

import (
	"encoding/binary"
	"fmt"
	"io"
	"strings"

	"viaduct/internal/fault"
)

// These sizes, in bytes, are fixed by the draft.
const (
	BSDHLen      = 16 // Base Sockets Direct Header [SDP-6.1-1]
	HelloLen     = 32 // BSDH and HH [SDP-6.2.1-1]
	HelloAckLen  = 28 // BSDH and HAH [SDP-6.2.2-1]
	SrcAvailLen  = 32 // BSDH and SrcAH [SDP-6.3.2-1]
	SinkAvailLen = 36 // BSDH and SinkAH: the longest header [SDP-6.3.3-1]

	MaxHeaderLen  = SinkAvailLen
	MinBufferSize = MaxHeaderLen + 1 // minimum size of a Private Buffer [SDP-10-5]
	MaxSize       = 1 << 31          // maximum size of a buffer or an advertisement [SDP-6.3.2.1-2]
	MinBuffers    = 3                // minimum number of Private Buffers [SDP-10-2]
)

// A MID names the type of a message. [SDP-6.1.1-1]
type MID uint8

// These are the message types of Figure 3. [SDP-6.1.1-2]
const (
	HelloMID        MID = 0x00
	HelloAckMID     MID = 0x01
	DisConn         MID = 0x02
	AbortConn       MID = 0x03
	SendSm          MID = 0x04
	RdmaWrCompl     MID = 0x05
	RdmaRdCompl     MID = 0x06
	ModeChange      MID = 0x07
	SrcAvailCancel  MID = 0x08
	SinkAvailCancel MID = 0x09
	SinkCancelAck   MID = 0x0A
	ChRcvBuf        MID = 0x0B
	ChRcvBufAck     MID = 0x0C
	SuspComm        MID = 0x0D
	SuspCommAck     MID = 0x0E
	SinkAvail       MID = 0xFD
	SrcAvail        MID = 0xFE
	Data            MID = 0xFF
)

// messages has a row for each MID. [SDP-6.2.3-1] [SDP-6.2.4-1] [SDP-6.3.1-1] [SDP-6.3.5-2]
// [SDP-6.3.6-2] [SDP-6.3.7-2] [SDP-6.3.8-2] [SDP-6.3.9-1] [SDP-6.3.10-1] [SDP-6.3.11-2]
// [SDP-6.4.1-1] [SDP-6.4.2-1] [SDP-6.5.2-1]
var messages = [256]struct {
	name    string
	ext     extended // the header after the BSDH
	payload bool     // ULP bytes may follow [SDP-6.3.1-4] [SDP-6.3.1-2] [SDP-6.3.2-2]

	// solicited selects Send with Solicited Event. For Data, Solicited also checks the flags,
	// because urgent Data needs the event. [SDP-14.2-1]
	solicited bool
}{
	HelloMID:        {name: "Hello", ext: helloHeader},
	HelloAckMID:     {name: "HelloAck", ext: helloAckHeader, solicited: true},
	DisConn:         {name: "DisConn"},
	AbortConn:       {name: "AbortConn", solicited: true},
	SendSm:          {name: "SendSm", solicited: true},
	RdmaWrCompl:     {name: "RdmaWrCompl", ext: sizeHeader, solicited: true},
	RdmaRdCompl:     {name: "RdmaRdCompl", ext: sizeHeader, solicited: true},
	ModeChange:      {name: "ModeChange", ext: modeHeader},
	SrcAvailCancel:  {name: "SrcAvailCancel", solicited: true},
	SinkAvailCancel: {name: "SinkAvailCancel", solicited: true},
	SinkCancelAck:   {name: "SinkCancelAck", solicited: true},
	ChRcvBuf:        {name: "ChRcvBuf", ext: sizeHeader},
	ChRcvBufAck:     {name: "ChRcvBufAck", ext: sizeHeader},
	SuspComm:        {name: "SuspComm", ext: suspHeader, solicited: true},
	SuspCommAck:     {name: "SuspCommAck", solicited: true},
	SinkAvail:       {name: "SinkAvail", ext: sinkHeader, payload: true},
	SrcAvail:        {name: "SrcAvail", ext: srcHeader, payload: true},
	Data:            {name: "Data", payload: true},
}

// String returns the draft's name of the type. For an unassigned value String returns the number in
// hexadecimal.
func (m MID) String() string {
	if s := messages[m].name; s != "" {
		return s
	}
	return fmt.Sprintf("MID(%#02x)", uint8(m))
}

// Reserved reports whether m is reserved for later versions of the protocol. Such values are never
// sent. [SDP-6.1.1-3]
func (m MID) Reserved() bool { return m >= 0x0F && m <= 0x3F || m >= 0x80 && m <= 0xFC }

// Experimental reports whether m is in the range for experiments. The package assigns no meaning to
// experimental values, and receiving such a value is an error. [SDP-6.1.1-4] [D-76]
func (m MID) Experimental() bool { return m >= 0x40 && m <= 0x7F }

// HeaderLen returns the length in bytes of the BSDH and the extended header of m, or 0 if m is not
// assigned.
func (m MID) HeaderLen() int {
	if messages[m].name == "" {
		return 0
	}
	return BSDHLen + messages[m].ext.len()
}

// MayCarryPayload reports whether ULP bytes may follow the headers of m.
func (m MID) MayCarryPayload() bool { return messages[m].payload }

// Solicited reports whether a message of type m with the given flags travels by Send with Solicited
// Event. [SDP-14.2-2] A receiver does not check which Send type carried a message. [D-73]
func Solicited(m MID, f Flags) bool {
	return messages[m].solicited || m == Data && f&(OOBPres|OOBPend) != 0
}

// Flags are the flag bits of a BSDH. [SDP-6.1.2-1]
//
//	 7   6   5   4   3      2          1          0
//	|    reserved    | REQ_PIPE | OOB_PEND | OOB_PRES |
type Flags uint8

const (
	OOBPres Flags = 1 << iota // the last payload byte of this Data is urgent
	OOBPend                   // urgent data was sent by the peer's ULP
	ReqPipe                   // the Mode Slave prefers Pipelined Mode

	flagsKnown = OOBPres | OOBPend | ReqPipe
)

// String returns the names of the flags joined by "|". Reserved bits appear in hexadecimal.
func (f Flags) String() string {
	if f == 0 {
		return "0"
	}
	var s []string
	for _, x := range [...]struct {
		f Flags
		s string
	}{{OOBPres, "OOB_PRES"}, {OOBPend, "OOB_PEND"}, {ReqPipe, "REQ_PIPE"}} {
		if f&x.f != 0 {
			s = append(s, x.s)
		}
	}
	if r := f &^ flagsKnown; r != 0 {
		s = append(s, fmt.Sprintf("%#x", uint8(r)))
	}
	return strings.Join(s, "|")
}

// A bsdh is a Base Sockets Direct Header.
type bsdh struct {
	mid           MID
	flags         Flags
	bufs          uint16
	len, seq, ack uint32
}

// append appends h in layout l. Integers are big-endian in both layouts. [SDP-6-4] [SDP-6.1-1]
// Reserved flag bits are sent as zero. [SDP-6.1.2-2]
func (h bsdh) append(b []byte, l Layout) []byte {
	f := uint8(h.flags & flagsKnown)
	switch {
	case fault.On("sdp-flags"):
		f |= 0x80
	case fault.On("sdp-mseq") && h.mid == Data:
		h.seq++
	case fault.On("sdp-len") && h.mid == Data:
		h.len++
	}
	if l == IBTA {
		b = append(b, byte(h.mid), f)
		b = binary.BigEndian.AppendUint16(b, h.bufs)
	} else {
		b = binary.BigEndian.AppendUint16(b, h.bufs)
		b = append(b, f, byte(h.mid))
	}
	b = binary.BigEndian.AppendUint32(b, h.len)
	b = binary.BigEndian.AppendUint32(b, h.seq)
	return binary.BigEndian.AppendUint32(b, h.ack)
}

// Peek returns the type, flags and length of a message from the BSDHLen bytes at the front of b. It
// checks nothing. If b is shorter, all results are zero.
func Peek(b []byte, l Layout) (mid MID, f Flags, length uint32) {
	h, _ := parseBSDH(b, l)
	return h.mid, h.flags, h.len
}

func parseBSDH(b []byte, l Layout) (h bsdh, err error) {
	if len(b) < BSDHLen {
		return h, io.ErrUnexpectedEOF
	}
	if l == IBTA {
		h.mid, h.flags, h.bufs = MID(b[0]), Flags(b[1]), binary.BigEndian.Uint16(b[2:])
	} else {
		h.bufs, h.flags, h.mid = binary.BigEndian.Uint16(b), Flags(b[2]), MID(b[3])
	}
	h.flags &= flagsKnown // bits 3-7 are ignored [SDP-6.1.2-3]
	h.len = binary.BigEndian.Uint32(b[4:])
	h.seq = binary.BigEndian.Uint32(b[8:])
	h.ack = binary.BigEndian.Uint32(b[12:])
	return h, nil
}
