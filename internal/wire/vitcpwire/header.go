package vitcpwire

import (
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"

	"viaduct/internal/fault"
)

// HeaderLen is the length in bytes of a segment header. [VIT-3.1-1]
const HeaderLen = 24

// MaxSegment is the maximum length of a segment in bytes, including headers. [VIT-3.1-7]
const MaxSegment = 65535

// A Header is the segment header at the start of every segment. Multi-byte fields are big-endian.
// [VIT 3.1] [VIT-3-1] [VIT-3-2]
//
//	 0               1               2               3
//	+---------------+---------+-----+-------------------------------+
//	|    Version    |  Type   |Flags|        Segment Length         |
//	+---------------+---------+-----+-------------------------------+
//	|                          Data Offset                          |
//	+---------------------------------------------------------------+
//	|                        Immediate Data                         |
//	+---------------------------------------------------------------+
//	|                        Message Number                         |
//	+---------------------------------------------------------------+
//	|                          Message ACK                          |
//	+-------------------------------+---------------+---------------+
//	|     Rx Descriptors Posted     | VI Error Type | IS Error Code |
//	+-------------------------------+---------------+---------------+
type Header struct {
	Type      Type
	Flags     Flags
	Length    uint16      // length of the segment in bytes, including headers [VIT-3.1-7]
	Offset    uint32      // number of payload bytes of the message in earlier segments [VIT-3.1-8]
	Immediate uint32      // the consumer's value, if ImmediateValid is set [VIT-3.1-9]
	Number    Number      // number of the message [VIT-3.1-10]
	Ack       Number      // number of the last message received without error, or of the failed one [VIT-3.1-ACK-1]
	Posted    Count       // number of receive descriptors posted so far [VIT-3.1-16]
	Error     RemoteError // error of the message that Ack names [VIT-3.1-ERR-1]
}

// AppendHeader appends the HeaderLen bytes of h to b.
func (d Dialect) AppendHeader(b []byte, h Header) []byte {
	switch {
	case fault.On("vitcp-offset") && h.Type == Send:
		h.Offset++
	case fault.On("vitcp-length") && h.Type == Send:
		h.Length -= HeaderLen
	case fault.On("vitcp-immediate"):
		h.Flags &^= ImmediateValid
	case fault.On("vitcp-error-type") && h.Error.VI() == ProtectionError:
		h.Error = MakeRemoteError(DescriptorError, h.Error.IS())
	}
	b = append(b, Version, d.encodeType(h.Type)<<3|uint8(h.Flags)&7)
	b = binary.BigEndian.AppendUint16(b, h.Length)
	b = binary.BigEndian.AppendUint32(b, h.Offset)
	b = binary.BigEndian.AppendUint32(b, h.Immediate)
	b = binary.BigEndian.AppendUint32(b, uint32(h.Number))
	b = binary.BigEndian.AppendUint32(b, uint32(h.Ack))
	b = binary.BigEndian.AppendUint16(b, uint16(h.Posted))
	return binary.BigEndian.AppendUint16(b, uint16(h.Error))
}

// ParseHeader decodes the header at the front of b and reports its length. The error is
// io.ErrUnexpectedEOF if b is short, ErrVersion, ErrType, or ErrLength if the Segment Length is
// less than the headers of the type. Except for a short b, h then holds the valid fields.
func (d Dialect) ParseHeader(b []byte) (h Header, n int, err error) {
	if len(b) < HeaderLen {
		return Header{}, 0, io.ErrUnexpectedEOF
	}
	b = b[:HeaderLen]
	t, ok := d.decodeType(b[1] >> 3)
	h = Header{
		Type:      t,
		Flags:     Flags(b[1] & 7),
		Length:    binary.BigEndian.Uint16(b[2:]),
		Offset:    binary.BigEndian.Uint32(b[4:]),
		Immediate: binary.BigEndian.Uint32(b[8:]),
		Number:    Number(binary.BigEndian.Uint32(b[12:])),
		Ack:       Number(binary.BigEndian.Uint32(b[16:])),
		Posted:    Count(binary.BigEndian.Uint16(b[20:])),
		Error:     RemoteError(binary.BigEndian.Uint16(b[22:])),
	}
	switch {
	case b[0] != Version && !fault.On("vitcp-version-unchecked"):
		return h, HeaderLen, ErrVersion // [V-01]
	case !ok:
		return h, HeaderLen, ErrType // [V-02]
	case int(h.Length) < d.HeaderLen(t):
		return h, HeaderLen, ErrLength // [V-07]
	}
	return h, HeaderLen, nil
}

// String describes h in one line.
func (h Header) String() string {
	s := fmt.Sprintf("%v n=%d off=%d len=%d ack=%d posted=%d", h.Type, uint32(h.Number), h.Offset,
		h.Length, uint32(h.Ack), uint16(h.Posted))
	if h.Flags != 0 {
		s += " " + h.Flags.String()
	}
	if h.Flags&ImmediateValid != 0 {
		s += fmt.Sprintf(" imm=%#x", h.Immediate)
	}
	if h.Error != 0 {
		s += " error=" + h.Error.String()
	}
	return s
}

// LogValue describes h for logs, without fields its flags declare void.
func (h Header) LogValue() slog.Value {
	a := []slog.Attr{
		slog.String("type", h.Type.String()),
		slog.String("flags", h.Flags.String()),
		slog.Int("length", int(h.Length)),
		slog.Uint64("offset", uint64(h.Offset)),
		slog.Uint64("number", uint64(h.Number)),
		slog.Uint64("ack", uint64(h.Ack)),
		slog.Uint64("posted", uint64(h.Posted)),
	}
	if h.Flags&ImmediateValid != 0 {
		a = append(a, slog.Uint64("immediate", uint64(h.Immediate)))
	}
	if h.Error != 0 {
		a = append(a, slog.String("error", h.Error.String()))
	}
	return slog.GroupValue(a...)
}
