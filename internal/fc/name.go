package fc

import (
	"encoding/binary"
	"fmt"
)

// An Addr is a 24-bit N_Port_ID: domain, area, port (or AL_PA).
type Addr uint32

// These are well-known addresses.
const (
	AddrNone             Addr = 0x000000
	AddrMulticastServer  Addr = 0xFFFFF5
	AddrClockServer      Addr = 0xFFFFF6
	AddrSecurityKey      Addr = 0xFFFFF7
	AddrAliasServer      Addr = 0xFFFFF8
	AddrManagement       Addr = 0xFFFFFA
	AddrTimeServer       Addr = 0xFFFFFB
	AddrDirectory        Addr = 0xFFFFFC
	AddrFabricController Addr = 0xFFFFFD
	AddrFPort            Addr = 0xFFFFFE
	AddrBroadcast        Addr = 0xFFFFFF
)

// Domain returns the domain, the highest byte of a.
func (a Addr) Domain() uint8 { return uint8(a >> 16) }

// Area returns the area, the middle byte of a.
func (a Addr) Area() uint8 { return uint8(a >> 8) }

// ALPA returns the AL_PA or port, the lowest byte of a.
func (a Addr) ALPA() uint8 { return uint8(a) }

// WellKnown reports whether a belongs to a fabric service.
func (a Addr) WellKnown() bool { return a >= 0xFFFC01 }

// String returns a as six hexadecimal digits.
func (a Addr) String() string { return fmt.Sprintf("%06x", uint32(a)) }

// DomainAddr returns the address of a domain, area and port.
func DomainAddr(domain, area, port uint8) Addr {
	return Addr(domain)<<16 | Addr(area)<<8 | Addr(port)
}

// A WWN is a 64-bit Name_Identifier. Its top four bits name the naming authority. [FCFS-2.6-1]
type WWN uint64

// String returns w as eight bytes with colons.
func (w WWN) String() string {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], uint64(w))
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x:%02x:%02x",
		b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7])
}

// ParseWWN parses a name in the form of String, or as sixteen hexadecimal digits with or without
// 0x.
func ParseWWN(s string) (WWN, error) {
	var v uint64
	digits := 0
	if len(s) > 2 && s[0] == '0' && (s[1] == 'x' || s[1] == 'X') {
		s = s[2:]
	}
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		case (c == ':' || c == '-') && digits%2 == 0:
			continue
		default:
			return 0, fmt.Errorf("fc: name %q: unexpected %q", s, s[i])
		}
		v = v<<4 | uint64(c)
		digits++
	}
	if digits != 16 {
		return 0, fmt.Errorf("fc: name %q has %d hex digits, want 16", s, digits)
	}
	return WWN(v), nil
}

// NodeName returns the name of a node with the given 48-bit MAC address, in
// the IEEE extended format (NAA 2). Use a locally administered MAC for names
// that no vendor assigned.
func NodeName(mac uint64) WWN { return WWN(0x2000<<48 | mac&0xFFFFFFFFFFFF) }

// PortName returns the name of port n (1 to 4095) of the node with the given 48-bit MAC address.
// The low four bits of n follow the NAA nibble. The other bits of n come next, before the MAC
// address.
func PortName(mac uint64, n int) WWN {
	return WWN(0x2000<<48 | uint64(n&0xF)<<56 | uint64(n>>4&0xFF)<<48 | mac&0xFFFFFFFFFFFF)
}

// PutAddr writes a into the three bytes at the front of b.
func PutAddr(b []byte, a Addr) { b[0], b[1], b[2] = byte(a>>16), byte(a>>8), byte(a) }

// GetAddr reads the three bytes at the front of b.
func GetAddr(b []byte) Addr { return Addr(b[0])<<16 | Addr(b[1])<<8 | Addr(b[2]) }
