package sdpwire

import (
	"encoding/binary"
	"fmt"
	"log/slog"
)

// An extended identifies the header after the BSDH. The methods return the header's length, and
// encode, decode and print the fields.
type extended uint8

const (
	noHeader       extended = iota
	helloHeader             // HH, see Hello
	helloAckHeader          // HAH, see HelloAck
	sizeHeader              // RWCH, RRCH, CRBH and CRBAH: one number [SDP-6.3.6-1] [SDP-6.3.7-1] [SDP-6.4.1-2] [SDP-6.4.2-2]
	srcHeader               // SrcAH
	sinkHeader              // SinkAH
	modeHeader              // MCH
	suspHeader              // SuspCH
)

// len returns the length of the header in bytes.
func (e extended) len() int {
	switch e {
	case helloHeader:
		return HelloLen - BSDHLen
	case helloAckHeader:
		return HelloAckLen - BSDHLen
	case sizeHeader, modeHeader:
		return 4
	case srcHeader:
		return SrcAvailLen - BSDHLen
	case sinkHeader:
		return SinkAvailLen - BSDHLen
	case suspHeader:
		return 8 // [SDP-6.5.1-1]
	}
	return 0
}

// append appends the header of m in layout l.
func (e extended) append(b []byte, m *Message, l Layout) []byte {
	switch e {
	case srcHeader: // [SDP-6.3.2-3]
		return appendBuffer(b, m)
	case sinkHeader: // [SDP-6.3.3-2]
		return binary.BigEndian.AppendUint32(appendBuffer(b, m), m.NonDiscards)
	case sizeHeader:
		return binary.BigEndian.AppendUint32(b, m.Size)
	case modeHeader:
		return appendMode(b, m, l)
	case suspHeader:
		return appendSusp(b, m, l)
	}
	return b
}

// parse decodes the header x into m. Its errors are ErrSize, ErrMode and ErrConst.
func (e extended) parse(m *Message, x []byte, l Layout) error {
	switch e {
	case srcHeader, sinkHeader:
		m.Size = binary.BigEndian.Uint32(x)
		m.STag = binary.BigEndian.Uint32(x[4:])
		m.VA = binary.BigEndian.Uint64(x[8:])
		if e == sinkHeader {
			m.NonDiscards = binary.BigEndian.Uint32(x[16:])
		}
		if m.Size == 0 || m.Size > MaxSize {
			return ErrSize
		}
	case sizeHeader:
		m.Size = binary.BigEndian.Uint32(x)
	case modeHeader: // reserved bits are ignored [SDP-6.3.8.3-2]
		if l == IBTA {
			m.S, m.Mode = x[0]&0x80 != 0, Mode(x[0]>>4&7)
		} else {
			m.S, m.Mode = x[3]&1 != 0, Mode(x[3]>>1&7)
		}
		if m.Mode > Pipelined {
			return ErrMode
		}
	case suspHeader:
		c1, p, c2 := binary.BigEndian.Uint32(x), binary.BigEndian.Uint16(x[4:]), binary.BigEndian.Uint16(x[6:])
		if l == IBTA {
			p, c2 = c2, p
		}
		if c1 != 0 || c2 != 1 {
			return ErrConst
		}
		m.Port = p
	}
	return nil
}

// string returns the fields of the header for String, each after a space.
func (e extended) string(m *Message) string {
	switch e {
	case srcHeader:
		return fmt.Sprintf(" size=%d stag=%#x va=%#x", m.Size, m.STag>>8, m.VA)
	case sinkHeader:
		return fmt.Sprintf(" size=%d stag=%#x va=%#x nondiscards=%d", m.Size, m.STag>>8, m.VA, m.NonDiscards)
	case sizeHeader:
		return fmt.Sprintf(" size=%d", m.Size)
	case modeHeader:
		return fmt.Sprintf(" %v s=%t", m.Mode, m.S)
	case suspHeader:
		return fmt.Sprintf(" port=%d", m.Port)
	}
	return ""
}

// attrs appends the fields of the header for LogValue.
func (e extended) attrs(a []slog.Attr, m *Message) []slog.Attr {
	switch e {
	case srcHeader, sinkHeader:
		a = append(a, slog.Uint64("size", uint64(m.Size)), slog.Uint64("stag", uint64(m.STag>>8)),
			slog.Uint64("to", m.VA))
		if e == sinkHeader {
			a = append(a, slog.Uint64("nondiscards", uint64(m.NonDiscards)))
		}
	case sizeHeader:
		a = append(a, slog.Uint64("size", uint64(m.Size)))
	case modeHeader:
		a = append(a, slog.String("mode", m.Mode.String()), slog.Bool("s", m.S))
	case suspHeader:
		a = append(a, slog.Int("port", int(m.Port)))
	}
	return a
}

// appendBuffer appends Len, STag and VA. The high word of VA comes first. [SDP-6.3.2-3]
func appendBuffer(b []byte, m *Message) []byte {
	b = binary.BigEndian.AppendUint32(b, m.Size)
	b = binary.BigEndian.AppendUint32(b, m.STag)
	return binary.BigEndian.AppendUint64(b, m.VA)
}

// appendMode appends an MCH. [SDP-6.3.8-1]
//
//	Figure: |              Rsvd (28 bits)              | Mode |S|
//	IBTA:   |S| Mode |              Rsvd (28 bits)              |
func appendMode(b []byte, m *Message, l Layout) []byte {
	s := byte(0)
	if m.S {
		s = 1
	}
	if l == IBTA {
		return append(b, s<<7|byte(m.Mode)<<4, 0, 0, 0)
	}
	return append(b, 0, 0, 0, byte(m.Mode)<<1|s)
}

// appendSusp appends a SuspCH. [SDP-6.5.1-2] Constant1 is 0 and Constant2 is 1.
// [SDP-6.5.1.2-1] [SDP-6.5.1.3-1]
func appendSusp(b []byte, m *Message, l Layout) []byte {
	b = append(b, 0, 0, 0, 0)
	if l == IBTA {
		b = append(b, 0, 1)
		return binary.BigEndian.AppendUint16(b, m.Port)
	}
	b = binary.BigEndian.AppendUint16(b, m.Port)
	return append(b, 0, 1)
}
