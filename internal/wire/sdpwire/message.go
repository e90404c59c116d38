package sdpwire

import (
	"errors"
	"fmt"
	"log/slog"
)

// These are errors of Parse, ParseHello and ParseHelloAck. For input too short for a BSDH, or for a
// Hello or HelloAck, all three functions return io.ErrUnexpectedEOF.
var (
	ErrMID   = errors.New("sdpwire: unknown or unexpected message type")
	ErrLen   = errors.New("sdpwire: Len does not match the message")
	ErrMode  = errors.New("sdpwire: reserved mode")
	ErrSize  = errors.New("sdpwire: advertised size out of range")
	ErrConst = errors.New("sdpwire: wrong constant in SuspComm")
	ErrFlags = errors.New("sdpwire: urgent mark on a message that cannot hold one")
)

// A Mode is a flow control mode of a half-connection. [SDP-6.3.8.2-1]
type Mode uint8

const (
	Buffered  Mode = 0 // BUFF_MODE
	Combined  Mode = 1 // COMB_MODE, the initial mode of a connection
	Pipelined Mode = 2 // PIPE_MODE
)

// String returns the name of the mode, or the number of an unknown mode.
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

// A Message is any message of a running connection: the BSDH, and the fields of the extended header
// its MID requires. Other fields are zero.
type Message struct {
	MID     MID
	Flags   Flags
	Bufs    uint16 // number of Private Buffers that the sender has posted
	Len     uint32 // length of headers and payload in bytes
	MSeq    uint32 // number of this message
	MSeqAck uint32 // number of the last message that the sender has received

	Size        uint32 // SrcAvail, SinkAvail: advertised bytes; RdmaRdCompl, RdmaWrCompl: moved bytes; ChRcvBuf: DesSz; ChRcvBufAck: ActSz
	STag        uint32 // SrcAvail, SinkAvail
	VA          uint64 // SrcAvail, SinkAvail: Tagged Offset of the first byte
	NonDiscards uint32 // SinkAvail
	Mode        Mode   // ModeChange: the new mode
	S           bool   // ModeChange: the receiver's sending half (true) or receiving half changes [SDP-6.3.8.1-1]
	Port        uint16 // SuspComm: Destination TCP Port
}

// PayloadLen returns the length of the ULP payload: Len without the headers.
func (m *Message) PayloadLen() int { return int(m.Len) - m.MID.HeaderLen() }

// Append appends the headers of m in layout l: the BSDH, and next the extended header, so that
// payload can follow directly. [SDP-6-1] [SDP-6-2] [SDP-6-3] All reserved bits are zero.
// [SDP-6.3.8.3-1] Len is not computed: the caller sets it.
func (m *Message) Append(b []byte, l Layout) []byte {
	b = bsdh{mid: m.MID, flags: m.Flags, bufs: m.Bufs, len: m.Len, seq: m.MSeq, ack: m.MSeqAck}.append(b, l)
	return messages[m.MID].ext.append(b, m, l)
}

// Parse decodes the message b; the payload begins at n. Parse keeps no reference to b and allocates
// nothing. The errors are
//
//   - io.ErrUnexpectedEOF if b is shorter than a BSDH,
//   - ErrMID for an unassigned type, and for Hello and HelloAck, which must not occur on a running
//     connection [D-75],
//   - ErrLen if Len is not len(b) [SDP-6.1.4-1], if b is shorter than the headers, or if bytes
//     follow a type without payload,
//   - ErrSize for an advertisement of zero bytes or of more than MaxSize bytes [SDP-6.3.2.1-2]
//     [SDP-6.3.3.1-2],
//   - ErrMode and ErrConst for invalid fields,
//   - ErrFlags for OOB_PRES on a message without an urgent byte [D-28].
func Parse(b []byte, l Layout) (m Message, n int, err error) { return ParseHead(b, len(b), l) }

// ParseHead is Parse for a message of total bytes; b holds at least the headers.
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

// String returns the message in a single line, for ladders and test failures. The key part of an
// STag is left out.
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

// LogValue returns the fields as attributes. An STag appears without the low byte, the key part.
func (m *Message) LogValue() slog.Value {
	a := make([]slog.Attr, 0, 10)
	a = append(a, slog.String("mid", m.MID.String()), slog.Uint64("mseq", uint64(m.MSeq)),
		slog.Uint64("mseqack", uint64(m.MSeqAck)), slog.Int("bufs", int(m.Bufs)), slog.Uint64("len", uint64(m.Len)))
	if m.Flags != 0 {
		a = append(a, slog.String("flags", m.Flags.String()))
	}
	return slog.GroupValue(messages[m.MID].ext.attrs(a, m)...)
}
