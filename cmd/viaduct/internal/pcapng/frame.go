package pcapng

import (
	"encoding/binary"
	"net/netip"
)

// TCP flags.
const (
	fin = 0x01
	syn = 0x02
	rst = 0x04
	psh = 0x08
	ack = 0x10
)

// maxSegment is the payload of a synthetic TCP segment or datagram: the maximum for an IP packet
// with the longest headers, so that a capture has few frames.
const maxSegment = 65535 - 40 - 60

// windowScale and the window of 65535 make a window of 1 GiB, so that no synthetic sender seems to
// exceed it.
const windowScale = 14

// A segment describes a TCP frame.
type segment struct {
	src, dst netip.AddrPort
	out      bool // sent by this process
	seq, ack uint32
	flags    byte
	payload  []byte
}

// appendTCP appends an Ethernet frame with the segment.
func appendTCP(b []byte, s segment) []byte {
	hdr := 20
	if s.flags&syn != 0 {
		hdr += 8 // MSS and window scale
	}
	b, sum := appendIP(b, s.src, s.dst, s.out, 6, hdr+len(s.payload))
	at := len(b)
	b = binary.BigEndian.AppendUint16(b, s.src.Port())
	b = binary.BigEndian.AppendUint16(b, s.dst.Port())
	b = binary.BigEndian.AppendUint32(b, s.seq)
	b = binary.BigEndian.AppendUint32(b, s.ack)
	b = append(b, byte(hdr/4)<<4, s.flags, 0xff, 0xff, 0, 0, 0, 0)
	if s.flags&syn != 0 {
		b = append(b, 2, 4, 0xff, 0xd7, 3, 3, windowScale, 0) // 65495 bytes; scale; end
	}
	b = append(b, s.payload...)
	binary.BigEndian.PutUint16(b[at+16:], checksum(b[at:], sum))
	return b
}

// appendUDP appends an Ethernet frame with a datagram.
func appendUDP(b []byte, src, dst netip.AddrPort, out bool, payload []byte) []byte {
	b, sum := appendIP(b, src, dst, out, 17, 8+len(payload))
	at := len(b)
	b = binary.BigEndian.AppendUint16(b, src.Port())
	b = binary.BigEndian.AppendUint16(b, dst.Port())
	b = binary.BigEndian.AppendUint16(b, uint16(8+len(payload)))
	b = append(b, 0, 0)
	b = append(b, payload...)
	c := checksum(b[at:], sum)
	if c == 0 {
		c = 0xffff // a checksum of zero would mean that there is none
	}
	binary.BigEndian.PutUint16(b[at+6:], c)
	return b
}

// appendIP appends the Ethernet and IP headers of a packet with n bytes above
// IP, and returns the sum of the pseudo header.
func appendIP(b []byte, src, dst netip.AddrPort, out bool, proto byte, n int) ([]byte, uint32) {
	// Made-up, locally administered hardware addresses: 02-..-01 is the capturing process.
	from, to := byte(2), byte(1)
	if out {
		from, to = 1, 2
	}
	b = append(b, 2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from)
	sa, da := src.Addr().Unmap(), dst.Addr().Unmap()
	if sa.Is4() && da.Is4() {
		s4, d4 := sa.As4(), da.As4()
		b = append(b, 0x08, 0x00)
		at := len(b)
		b = append(b, 0x45, 0)
		b = binary.BigEndian.AppendUint16(b, uint16(20+n))
		b = append(b, 0, 0, 0x40, 0, 64, proto, 0, 0)
		b = append(b, s4[:]...)
		b = append(b, d4[:]...)
		binary.BigEndian.PutUint16(b[at+10:], checksum(b[at:at+20], 0))
		return b, add(add(uint32(proto)+uint32(n), s4[:]), d4[:])
	}
	s6, d6 := sa.As16(), da.As16()
	b = append(b, 0x86, 0xdd, 0x60, 0, 0, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(n))
	b = append(b, proto, 64)
	b = append(b, s6[:]...)
	b = append(b, d6[:]...)
	return b, add(add(uint32(proto)+uint32(n), s6[:]), d6[:])
}

// add adds the 16-bit words of b to a sum. add folds the sum, so that the sum cannot overflow.
func add(sum uint32, b []byte) uint32 {
	for len(b) >= 2 {
		sum += uint32(b[0])<<8 | uint32(b[1])
		if sum >= 1<<31 {
			sum = sum&0xffff + sum>>16
		}
		b = b[2:]
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	return sum&0xffff + sum>>16
}

// checksum returns the Internet checksum of b, starting from sum.
func checksum(b []byte, sum uint32) uint16 {
	sum = add(sum, b)
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
