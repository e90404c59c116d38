package fcip

import (
	"encoding/binary"
	"fmt"
	"io"

	"viaduct/internal/fault"
	"viaduct/internal/fc"
)

// SpecialLen is the length in bytes of an FCIP Special Frame.
const SpecialLen = 19 * 4

// Connection Usage Flags: the delimiters a connection carries.
const (
	UsageSOFf   = 0x80
	UsageClass2 = 0x40
	UsageClass3 = 0x20
	UsageClass4 = 0x10
)

// DefaultKATOV is the K_A_TOV we announce, in milliseconds.
const DefaultKATOV = 60000

// A Special is an FCIP Special Frame (RFC 3821, 7.1). A Special is the first frame sent by each
// side. [FCFS-2.4-1]
type Special struct {
	Changed     bool   // in an echo: the acceptor has changed other fields
	Source      fc.WWN // Switch_Name of the initiator
	Entity      uint64 // identifies the FC/FCIP entity pair under that name
	Nonce       uint64
	UsageFlags  uint8
	UsageCode   uint16
	Destination fc.WWN // name of the acceptor as the initiator expects it; 0 if unknown
	KATOV       uint32 // milliseconds
}

// Append appends the SpecialLen bytes of s to b.
func (s *Special) Append(b []byte) []byte {
	flags := uint32(flagSF)
	if s.Changed {
		flags |= flagCh
	}
	const words = SpecialLen / 4
	b = binary.BigEndian.AppendUint32(b, word0)
	b = binary.BigEndian.AppendUint32(b, word0)
	b = binary.BigEndian.AppendUint32(b, flags<<24|(^flags&0xFF)<<8|0xFF)
	b = binary.BigEndian.AppendUint32(b, words<<16|^uint32(words)&0xFFFF)
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	b = binary.BigEndian.AppendUint32(b, 0x0000FFFF)
	b = binary.BigEndian.AppendUint64(b, uint64(s.Source))
	b = binary.BigEndian.AppendUint64(b, s.Entity)
	b = binary.BigEndian.AppendUint64(b, s.Nonce)
	b = binary.BigEndian.AppendUint32(b, uint32(s.UsageFlags)<<24|uint32(s.UsageCode))
	b = binary.BigEndian.AppendUint64(b, uint64(s.Destination))
	b = binary.BigEndian.AppendUint32(b, s.KATOV)
	return binary.BigEndian.AppendUint32(b, 0x0000FFFF)
}

// ParseSpecial decodes the Special Frame at the front of b.
func ParseSpecial(b []byte) (s Special, n int, err error) {
	if len(b) < SpecialLen {
		return s, 0, io.ErrUnexpectedEOF
	}
	w := func(i int) uint32 { return binary.BigEndian.Uint32(b[4*i:]) }
	const length = SpecialLen / 4
	flags := w(2) >> 24
	if w(0) != word0 || w(1) != word0 || w(3) != length<<16|^uint32(length)&0xFFFF || w(6) != 0 ||
		w(7) != 0x0000FFFF || w(18) != 0x0000FFFF || flags&flagSF == 0 || flags&^(flagSF|flagCh) != 0 ||
		w(2) != flags<<24|(^flags&0xFF)<<8|0xFF || b[57] != 0 {
		return s, 0, fmt.Errorf("%w: not a special frame: %x", ErrFrame, b[:16])
	}
	u64 := func(i int) uint64 { return binary.BigEndian.Uint64(b[4*i:]) }
	s = Special{
		Changed: flags&flagCh != 0, Source: fc.WWN(u64(8)), Entity: u64(10), Nonce: u64(12),
		UsageFlags: uint8(w(14) >> 24), UsageCode: uint16(w(14)), Destination: fc.WWN(u64(15)), KATOV: w(17),
	}
	return s, SpecialLen, nil
}

// answer returns the answer of an acceptor named self to s, and whether the connection may be used.
// If s names another destination or none, the answer is a changed echo that names self.
// [FCFS-2.4-2]
func (s *Special) answer(self fc.WWN) (echo Special, ok bool) {
	echo = *s
	if s.Destination != self {
		echo.Destination, echo.Changed = self, true
	}
	if s.UsageFlags&UsageClass3 == 0 {
		echo.UsageFlags |= UsageClass3
		echo.Changed = true
	}
	return echo, !echo.Changed
}

// accepts reports whether echo is the unchanged frame the initiator sent, from a destination with a
// name. [FCFS-2.4-3]
func (s *Special) accepts(echo *Special) bool {
	return *s == *echo && echo.Destination != 0 || fault.On("fcip-echo-unchecked") && !echo.Changed
}
