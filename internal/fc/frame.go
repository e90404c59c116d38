package fc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"viaduct/internal/fault"
)

// Errors of the frame parser.
var (
	ErrCRC    = errors.New("fc: frame check sequence does not match")
	ErrFormat = errors.New("fc: malformed frame")
)

// A Header is the frame header.
//
//	         byte 0        byte 1        byte 2        byte 3
//	 0 |    R_CTL    |                 D_ID                  |
//	 4 |   CS_CTL    |                 S_ID                  |
//	 8 |    TYPE     |                 F_CTL                 |
//	12 |   SEQ_ID    |   DF_CTL    |         SEQ_CNT         |
//	16 |          OX_ID            |          RX_ID          |
//	20 |                       Parameter                     |
type Header struct {
	RCtl   RCtl
	DID    Addr
	CSCtl  uint8
	SID    Addr
	Type   Type
	FCtl   FCtl
	SeqID  uint8
	DFCtl  uint8
	SeqCnt uint16
	OXID   uint16
	RXID   uint16 // Unassigned until the responder has chosen one
	Param  uint32
}

// Unassigned is the RX_ID or OX_ID until the side of the exchange has chosen one.
const Unassigned = 0xFFFF

// fctlEnd is the offset of the last byte of F_CTL.
const fctlEnd = 11

// Append appends the HeaderLen bytes of h to b.
// [FCFS-2.1-1]
func (h *Header) Append(b []byte) []byte {
	return append(b,
		byte(h.RCtl), byte(h.DID>>16), byte(h.DID>>8), byte(h.DID),
		h.CSCtl, byte(h.SID>>16), byte(h.SID>>8), byte(h.SID),
		byte(h.Type), byte(h.FCtl>>16), byte(h.FCtl>>8), byte(h.FCtl),
		h.SeqID, h.DFCtl, byte(h.SeqCnt>>8), byte(h.SeqCnt),
		byte(h.OXID>>8), byte(h.OXID), byte(h.RXID>>8), byte(h.RXID),
		byte(h.Param>>24), byte(h.Param>>16), byte(h.Param>>8), byte(h.Param))
}

// ParseHeader decodes the header at the front of b. It returns io.ErrUnexpectedEOF if b is too
// short.
func ParseHeader(b []byte) (h Header, n int, err error) {
	if len(b) < HeaderLen {
		return h, 0, io.ErrUnexpectedEOF
	}
	h.parse(b)
	return h, HeaderLen, nil
}

func (h *Header) parse(b []byte) {
	_ = b[HeaderLen-1]
	w0 := binary.BigEndian.Uint32(b)
	w1 := binary.BigEndian.Uint32(b[4:])
	w2 := binary.BigEndian.Uint32(b[8:])
	h.RCtl, h.DID = RCtl(w0>>24), Addr(w0&0xFFFFFF)
	h.CSCtl, h.SID = uint8(w1>>24), Addr(w1&0xFFFFFF)
	h.Type, h.FCtl = Type(w2>>24), FCtl(w2&0xFFFFFF)
	h.SeqID, h.DFCtl = b[12], b[13]
	h.SeqCnt = binary.BigEndian.Uint16(b[14:])
	h.OXID = binary.BigEndian.Uint16(b[16:])
	h.RXID = binary.BigEndian.Uint16(b[18:])
	h.Param = binary.BigEndian.Uint32(b[20:])
}

// A Frame is a frame between delimiters. Opt and Payload together are the Data_Field without fill
// bytes. On a received frame Opt and Payload point into the receiver's buffer, and are valid only
// during the call passing the frame on.
type Frame struct {
	SOF SOF
	EOF EOF
	Header
	Opt     []byte // optional headers, as DF_CTL announces them
	Payload []byte

	// Taker may be set on a received frame of class 3 by the port handling the frame. The Taker
	// then gets the frames that continue the handled frame, without a new lookup.
	Taker Taker
}

// Class returns the class of service of f.
func (f *Frame) Class() Class { return f.SOF.Class() }

// Last reports whether f ends its sequence.
func (f *Frame) Last() bool { return f.FCtl&FCtlEndSeq != 0 }

// FromResponder reports whether the exchange responder sent f.
func (f *Frame) FromResponder() bool { return f.FCtl&FCtlExchResponder != 0 }

// DataLen returns the length of the Data_Field without fill bytes.
func (f *Frame) DataLen() int { return len(f.Opt) + len(f.Payload) }

// WireLen returns the number of bytes from the header to the CRC, including fill bytes.
func (f *Frame) WireLen() int { return HeaderLen + (f.DataLen()+3)&^3 + CRCLen }

// Append appends f to b, from header to CRC. It adds fill bytes up to a multiple of a word, counts
// them in F_CTL, and computes the CRC. The link adds the delimiters.
func (f *Frame) Append(b []byte) []byte {
	start := len(b)
	fill := -f.DataLen() & 3 // [FCVI-5.8-10]
	b = f.Header.Append(b)
	if low := &b[start+fctlEnd]; f.FCtl&FCtlFill != FCtl(fill) {
		*low = *low&^byte(FCtlFill) | byte(fill)
	}
	b = append(b, f.Opt...)
	b = append(b, f.Payload...)
	b = append(b, zeros[:fill]...)
	if fault.On("fc-crc") {
		return append(b, 1, 2, 3, 4)
	}
	return binary.LittleEndian.AppendUint32(b, checksum(b[start:])) // [FCFS-2.1-4]
}

var zeros [4]byte

// ParseFrame decodes b, which holds exactly one frame from header to CRC. The delimiters of the
// result are zero. The result refers to b. Errors: io.ErrUnexpectedEOF if b is too short to be a
// frame, ErrFormat if the lengths contradict each other, ErrCRC.
func ParseFrame(b []byte) (f Frame, err error) {
	return f, f.Parse(b)
}

// Parse is ParseFrame into an existing Frame. It does not change the delimiters.
func (f *Frame) Parse(b []byte) error {
	if len(b) < HeaderLen+CRCLen {
		return io.ErrUnexpectedEOF
	}
	if len(b)&3 != 0 || len(b) > HeaderLen+MaxData+CRCLen { // [FCFS-2.1-7]
		return fmt.Errorf("%w: length %d", ErrFormat, len(b))
	}
	if !Sound(b) { // [FCVI-3-1]
		return ErrCRC
	}
	end := len(b) - CRCLen
	f.parse(b)
	opt, fill := OptionalLen(f.DFCtl), int(f.FCtl&FCtlFill)
	data := b[HeaderLen:end]
	if len(data) < opt+fill || f.DFCtl&DFCtlESP != 0 {
		return fmt.Errorf("%w: DF_CTL 0x%02x and %d fill bytes in a Data_Field of %d",
			ErrFormat, f.DFCtl, fill, len(data))
	}
	data = data[:len(data)-fill]
	f.Opt, f.Payload = data[:opt:opt], data[opt:]
	return nil
}

// CloneTo makes dst a copy of f with its own bytes. It stores the bytes in buf, or in a new buffer
// if buf is too small, and returns the buffer for reuse. dst has no Taker.
func (f *Frame) CloneTo(dst *Frame, buf []byte) []byte {
	*dst = *f
	dst.Taker = nil
	buf = append(buf[:0], f.Opt...)
	buf = append(buf, f.Payload...)
	dst.Opt, dst.Payload = buf[:len(f.Opt):len(f.Opt)], buf[len(f.Opt):]
	return buf
}

// String describes f in one line, for logs and failing tests.
func (f *Frame) String() string {
	return fmt.Sprintf("%v %v>%v %v %v ox=%04x rx=%04x seq=%02x cnt=%d f_ctl=%06x param=%08x df=%02x len=%d %v",
		f.SOF, f.SID, f.DID, f.Type, f.RCtl, f.OXID, f.RXID, f.SeqID, f.SeqCnt, uint32(f.FCtl),
		f.Param, f.DFCtl, f.DataLen(), f.EOF)
}

// LogValue describes f for structured logs.
func (f *Frame) LogValue() slog.Value {
	return slog.GroupValue(
		slog.String("sof", f.SOF.String()), slog.String("s_id", f.SID.String()), slog.String("d_id", f.DID.String()),
		slog.String("type", f.Type.String()), slog.String("r_ctl", f.RCtl.String()),
		slog.Int("ox_id", int(f.OXID)), slog.Int("rx_id", int(f.RXID)), slog.Int("seq_id", int(f.SeqID)),
		slog.Int("seq_cnt", int(f.SeqCnt)), slog.Int("len", f.DataLen()), slog.String("eof", f.EOF.String()))
}
