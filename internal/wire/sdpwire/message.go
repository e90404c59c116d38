package sdpwire

import (
	"errors"
	"fmt"
	"log/slog"
)

// Errors of Parse, ParseHello and ParseHelloAck beside io.ErrUnexpectedEOF.
var (
	ErrMID    = errors.New("sdpwire: unknown or unexpected message type")
	ErrLen    = errors.New("sdpwire: Len does not match the message")
	ErrMode   = errors.New("sdpwire: reserved mode")
	ErrSize   = errors.New("sdpwire: advertised size out of range")
	ErrConst  = errors.New("sdpwire: wrong constant in SuspComm")
	ErrFlags  = errors.New("sdpwire: urgent mark on a message that cannot hold one")
	ErrLayout = errors.New("sdpwire: neither layout of a Hello")
)

// A Mode is a flow control mode of a half-connection. [SDP-6.3.8.2-1]
type Mode uint8

const (
	Buffered  Mode = 0 // BUFF_MODE
	Combined  Mode = 1 // COMB_MODE, the mode a connection begins in
	Pipelined Mode = 2 // PIPE_MODE
)

// String returns the name of the mode, or the number.
func (m Mode) String() string {
	switch m {
	case Buffered:
		return "Buffered"
	case Combined:
		return "Combined"
	case Pipelined:
		return "Pipelined"
	}
	return fmt.Sprintf("Mode(%d)", uint8(m))
}

// A Message is any message of a running connection: the BSDH, and the fields
// of the extended header that its MID calls for. Other fields are zero.
type Message struct {
	MID     MID
	Flags   Flags
	Bufs    uint16 // Private Buffers the sender has posted
	Len     uint32 // bytes of headers and payload together
	MSeq    uint32 // number of this message
	MSeqAck uint32 // number of the last message the sender has received

	Size        uint32 // SrcAvail, SinkAvail: bytes advertised; RdmaRdCompl, RdmaWrCompl: bytes moved; ChRcvBuf: DesSz; ChRcvBufAck: ActSz
	STag        uint32 // SrcAvail, SinkAvail
	VA          uint64 // SrcAvail, SinkAvail: Tagged Offset of the first byte
	NonDiscards uint32 // SinkAvail
	Mode        Mode   // ModeChange: the new mode
	S           bool   // ModeChange: the receiver's sending half (true) or receiving half changes [SDP-6.3.8.1-1]
	Port        uint16 // SuspComm: Destination TCP Port
}

// PayloadLen returns the bytes of ULP payload that Len leaves room for.
func (m *Message) PayloadLen() int { return int(m.Len) - m.MID.HeaderLen() }

// Append appends the headers of m in layout l: the BSDH, and right after it
// the extended header, so that payload can follow at once. [SDP-6-1] [SDP-6-2]
// [SDP-6-3] All reserved bits are zero. [SDP-6.3.8.3-1] Len is written as it
// stands in m.
func (m *Message) Append(b []byte, l Layout) []byte {
	b = bsdh{mid: m.MID, flags: m.Flags, bufs: m.Bufs, len: m.Len, seq: m.MSeq, ack: m.MSeqAck}.append(b, l)
	return messages[m.MID].ext.append(b, m, l)
}

// Parse decodes the message that is b, all of it: headers, and n is where the
// payload begins. It keeps no reference to b and allocates nothing. The errors
// are io.ErrUnexpectedEOF for a b shorter than its headers, ErrMID for a type
// that is not assigned and for Hello and HelloAck, which have no place on a
// running connection [D-75], ErrLen where Len is not len(b) [SDP-6.1.4-1] or a
// type without payload is followed by bytes, ErrSize for an advertisement of
// nothing or of more than MaxSize bytes [SDP-6.3.2.1-2] [SDP-6.3.3.1-2],
// ErrMode, ErrConst, and ErrFlags for OOB_PRES where no urgent byte can be
// [D-28].
func Parse(b []byte, l Layout) (m Message, n int, err error) { return ParseHead(b, len(b), l) }

// ParseHead is Parse for a message of total bytes whose payload is elsewhere: b
// holds its headers, and perhaps more.
func ParseHead(b []byte, total int, l Layout) (m Message, n int, err error) {
	h, err := parseBSDH(b, l)
	if err != nil {
		return m, 0, err
	}
	m = Message{MID: h.mid, Flags: h.flags, Bufs: h.bufs, Len: h.len, MSeq: h.seq, MSeqAck: h.ack}
	n = h.mid.HeaderLen()
	switch {
	case n == 0 || h.mid == HelloMID || h.mid == HelloAckMID:
		return m, 0, ErrMID
	case uint64(h.len) != uint64(total):
		return m, 0, ErrLen
	case len(b) < n || total < n:
		return m, 0, ErrLen
	case total > n && !h.mid.MayCarryPayload():
		return m, 0, ErrLen
	case h.flags&OOBPres != 0 && (h.mid != Data || total == n):
		return m, 0, ErrFlags // [SDP-6.1.2-5]
	}
	if err = messages[h.mid].ext.parse(&m, b[BSDHLen:n], l); err != nil {
		return m, 0, err
	}
	return m, n, nil
}

// String returns the message on one line, for ladders and test failures. The
// key part of an STag is left out.
func (m *Message) String() string {
	s := fmt.Sprintf("%v seq=%d ack=%d bufs=%d", m.MID, m.MSeq, m.MSeqAck, m.Bufs)
	if m.Flags != 0 {
		s += " " + m.Flags.String()
	}
	s += messages[m.MID].ext.string(m)
	if m.MID.MayCarryPayload() {
		s += fmt.Sprintf(" payload=%d", m.PayloadLen())
	}
	return s
}

// LogValue gives the fields as attributes. An STag appears without its low
// byte, which is the key part.
func (m *Message) LogValue() slog.Value {
	a := make([]slog.Attr, 0, 10)
	a = append(a, slog.String("mid", m.MID.String()), slog.Uint64("mseq", uint64(m.MSeq)),
		slog.Uint64("mseqack", uint64(m.MSeqAck)), slog.Int("bufs", int(m.Bufs)), slog.Uint64("len", uint64(m.Len)))
	if m.Flags != 0 {
		a = append(a, slog.String("flags", m.Flags.String()))
	}
	return slog.GroupValue(messages[m.MID].ext.attrs(a, m)...)
}
