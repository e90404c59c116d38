package mpa

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"viaduct/internal/fault"
)

// FrameLen is the length in bytes of a Request or Reply Frame without private data. [MPA 7.1.1]
const FrameLen = 20

// MaxPrivate is the maximum length in bytes of a frame's private data, including the enhanced
// block. [MPA-7.1.1-22]
const MaxPrivate = 512

// These are the keys at the start of the two frames. [MPA-7.1.1-1] [MPA-7.1.1-3]
const (
	requestKey = "MPA ID Req Frame"
	replyKey   = "MPA ID Rep Frame"
	keyLen     = 16
)

const (
	flagM = 0x80
	flagC = 0x40
	flagR = 0x20
	flagS = 0x10 // RFC 6581; a reserved bit in revision 1
)

// These are errors of ParseFrame; use errors.Is.
var (
	ErrKey      = errors.New("mpa: key is neither that of a Request nor that of a Reply")
	ErrRevision = errors.New("mpa: unsupported revision")
	ErrPrivate  = errors.New("mpa: bad private data length")
)

// A Kind distinguishes the two start-up frames.
type Kind uint8

// These are the kinds of frame.
const (
	Request Kind = iota + 1 // sent by the Initiator
	Reply                   // sent by the Responder
)

// String returns "Request" or "Reply".
func (k Kind) String() string {
	switch k {
	case Request:
		return "Request"
	case Reply:
		return "Reply"
	}
	return fmt.Sprintf("kind 0x%02x", uint8(k))
}

// A Frame is a Request or Reply Frame of start-up. It carries neither CRC nor
// markers. [MPA-7.1-5]
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------------------------------------------------------+
//	|                                                               |
//	+                      Key (16 bytes)                           +
//	|                                                               |
//	+-+-+-+-+-------+---------------+-------------------------------+
//	|M|C|R|S|  Res  |      Rev      |           PD_Length           |
//	+-+-+-+-+-------+---------------+-------------------------------+
//	|     private data; the 4 bytes of Enhanced first if S is set   |
//	+---------------------------------------------------------------+
type Frame struct {
	Kind     Kind
	Markers  bool // M: the sender wants markers in the FPDUs that it receives
	CRC      bool // C: the sender requests CRCs, which are then used in both directions
	Reject   bool // R: in a Reply, the Responder's ULP refuses the connection
	Enhanced bool // S: Conn is present; only with Rev 2 [MPA2-6-5]
	Rev      uint8
	Conn     Enhanced // depths and RTR kinds if Enhanced
	Private  []byte   // private data of the ULP, without the enhanced block
}

// PDLength returns the value of the PD_Length field. [MPA-7.1.1-19] [MPA2-6-8]
func (f Frame) PDLength() int {
	if f.Enhanced {
		return EnhancedLen + len(f.Private)
	}
	return len(f.Private)
}

// Append appends the frame to b: FrameLen bytes and the private data. Reserved bits are zero.
// PDLength must be at most MaxPrivate; otherwise Append panics.
func (f Frame) Append(b []byte) []byte {
	if f.PDLength() > MaxPrivate {
		panic(fmt.Sprintf("mpa: private data of %d bytes", f.PDLength()))
	}
	if f.Kind == Reply && !fault.On("mpa-reply-key") {
		b = append(b, replyKey...)
	} else {
		b = append(b, requestKey...)
	}
	var flags byte // reserved bits stay 0 [MPA-7.1.1-13] [MPA2-6-2]
	if f.Markers {
		flags |= flagM
	}
	if f.CRC {
		flags |= flagC
	}
	if f.Reject {
		flags |= flagR
	}
	if f.Enhanced {
		flags |= flagS // [MPA2-6-1]
	}
	if fault.On("mpa-reserved-bits") {
		flags |= 0x02
	}
	if fault.On("mpa-reply-revision") && f.Kind == Reply {
		f.Rev = 2
	}
	b = append(b, flags, f.Rev)
	b = binary.BigEndian.AppendUint16(b, uint16(f.PDLength()))
	if f.Enhanced {
		b = f.Conn.Append(b) // [MPA2-6-9]
	}
	return append(b, f.Private...)
}

// ParseFrame decodes the frame at the front of b and reports its length. Private aliases b.
//
// The error is io.ErrUnexpectedEOF if b is the beginning of a frame, and wraps ErrKey, ErrRevision
// or ErrPrivate as soon as b cannot become a valid frame: even a part of the key is checked, and
// the length is checked before any private data arrives. With ErrRevision and ErrPrivate the fixed
// fields of f are set for the log.
//
// Reserved bits are ignored, in revision 1 also the S bit. R of a Request is returned but has no
// meaning.
func ParseFrame(b []byte) (f Frame, n int, err error) {
	key := string(b[:min(len(b), keyLen)]) // [MPA-7.1.1-20]
	switch {
	case key == requestKey[:len(key)]:
		f.Kind = Request
	case key == replyKey[:len(key)]:
		f.Kind = Reply
	case fault.On("mpa-key-unchecked"):
		f.Kind = Request
	default:
		return Frame{}, 0, fmt.Errorf("%w: %q", ErrKey, key)
	}
	if len(b) < FrameLen {
		return Frame{}, 0, io.ErrUnexpectedEOF
	}
	flags := b[16] // [MPA-7.1.1-14] [MPA2-6-3]
	f.Rev = b[17]
	f.Markers = flags&flagM != 0
	f.CRC = flags&flagC != 0
	f.Reject = flags&flagR != 0
	if f.Rev < 1 || f.Rev > 2 { // [MPA-7.1.1-16] [I-03] [MPA-C-2]
		return f, 0, fmt.Errorf("%w %d", ErrRevision, f.Rev)
	}
	f.Enhanced = flags&flagS != 0 && f.Rev >= 2 // otherwise the frame has the form of RFC 5044 [MPA2-6-4] [I-03]
	pd := int(binary.BigEndian.Uint16(b[18:]))
	if pd > MaxPrivate && !fault.On("mpa-private-unchecked") { // [MPA-7.1.1-22] [MPA-7.1.2-22]
		return f, 0, fmt.Errorf("%w: %d, at most %d", ErrPrivate, pd, MaxPrivate)
	}
	if f.Enhanced && pd < EnhancedLen { // [I-13]
		return f, 0, fmt.Errorf("%w: %d, too short for the enhanced block", ErrPrivate, pd)
	}
	n = FrameLen + pd
	if len(b) < n {
		return f, 0, io.ErrUnexpectedEOF
	}
	f.Private = b[FrameLen:n:n]
	if f.Enhanced {
		f.Conn, _, _ = ParseEnhanced(f.Private)
		f.Private = f.Private[EnhancedLen:]
	}
	if len(f.Private) == 0 {
		f.Private = nil
	}
	return f, n, nil
}

// LogValue describes the frame. Only the length of private data is shown.
func (f Frame) LogValue() slog.Value {
	a := []slog.Attr{
		slog.String("frame", f.Kind.String()),
		slog.Int("rev", int(f.Rev)),
		slog.Bool("markers", f.Markers),
		slog.Bool("crc", f.CRC),
		slog.Bool("reject", f.Reject),
		slog.Int("private", len(f.Private)),
	}
	if f.Enhanced {
		a = append(a, slog.Any("enhanced", f.Conn))
	}
	return slog.GroupValue(a...)
}
