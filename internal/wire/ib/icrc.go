package ib

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"net/netip"
)

// ICRCLen is the length in bytes of the invariant CRC at the end of every packet. [ROCE-ICRC-1]
const ICRCLen = 4

// Port is the UDP port of RoCEv2. [ROCE-NET-1]
const Port = 4791

// ErrICRC reports a packet that was damaged, or whose headers were changed, on the way.
var ErrICRC = errors.New("ib: wrong invariant CRC")

// A Flow holds the fields of the IP and UDP headers the invariant CRC covers. The addresses are of
// the same family, and none is an IPv4 address mapped into IPv6. [ROCE-ICRC-2]
type Flow struct {
	Source, Destination netip.AddrPort
	ID                  uint16 // identification of the IPv4 header; IPv6 has none
}

// maxPrefix is the greatest length of the headers the CRC covers before the BTH: 8 bytes of ones
// instead of the link header of InfiniBand, an IPv6 header, and a UDP header.
const maxPrefix = 8 + GRHLen + udpLen

// prefix writes the headers of a packet with n bytes after UDP to h, with ones for the fields that
// may change on the way, and returns the length of the headers. [ROCE-ICRC-2]
func (f *Flow) prefix(h *[maxPrefix]byte, n int) int {
	for i := range 8 {
		h[i] = 0xff
	}
	at := 8
	if s := f.Source.Addr(); s.Is4() {
		ip := h[at : at+ipv4Len]
		ip[0], ip[1] = 0x45, 0xff // type of service
		binary.BigEndian.PutUint16(ip[2:], uint16(ipv4Len+udpLen+n))
		binary.BigEndian.PutUint16(ip[4:], f.ID)
		ip[6], ip[7] = 0x40, 0                                    // do not fragment
		ip[8], ip[9], ip[10], ip[11] = 0xff, udpProto, 0xff, 0xff // time to live, checksum
		a, b := s.As4(), f.Destination.Addr().As4()
		copy(ip[12:], a[:])
		copy(ip[16:], b[:])
		at += ipv4Len
	} else {
		ip := h[at : at+GRHLen]
		ip[0], ip[1], ip[2], ip[3] = 0x6f, 0xff, 0xff, 0xff // traffic class, flow label
		binary.BigEndian.PutUint16(ip[4:], uint16(udpLen+n))
		ip[6], ip[7] = udpProto, 0xff // hop limit
		a, b := s.As16(), f.Destination.Addr().As16()
		copy(ip[8:], a[:])
		copy(ip[24:], b[:])
		at += GRHLen
	}
	u := h[at : at+udpLen]
	binary.BigEndian.PutUint16(u, f.Source.Port())
	binary.BigEndian.PutUint16(u[2:], f.Destination.Port())
	binary.BigEndian.PutUint16(u[4:], uint16(udpLen+n))
	u[6], u[7] = 0xff, 0xff // checksum
	return at + udpLen
}

const masked8a = 4 // offset in the BTH of the reserved byte that routers may change [ROCE-ICRC-2]

// icrc returns the invariant CRC of a packet p without the ICRCLen bytes of the CRC. [ROCE-ICRC-1]
func (f *Flow) icrc(p []byte) uint32 {
	var h [maxPrefix]byte
	c := updateShort(0, h[:f.prefix(&h, len(p)+ICRCLen)])
	c = updateShort(c, p[:masked8a])
	c = updateShort(c, []byte{0xff})
	return crc32.Update(c, crc32.IEEETable, p[masked8a+1:])
}

// updateShort is crc32.Update for a few bytes. It exists because the argument of crc32.Update does
// not stay on the stack: package crc32 calls a function chosen for the processor.
func updateShort(c uint32, p []byte) uint32 {
	c = ^c
	for _, b := range p {
		c = crc32.IEEETable[byte(c)^b] ^ c>>8
	}
	return ^c
}

// Seal appends the invariant CRC to a packet of at least a BTH. [ROCE-ICRC-1]
func (f *Flow) Seal(p []byte) []byte { return binary.LittleEndian.AppendUint32(p, f.icrc(p)) }

// Check checks the invariant CRC at the end of a packet. The CRC covers the identification of an
// IPv4 header, invisible to a UDP socket. If the CRC does not match with f.ID, Check computes a
// matching identification, and the packet passes if there is one. Thereby 16 of the 32 bits are
// checked. The errors are io.ErrUnexpectedEOF and ErrICRC. [ROCE-ICRC-3] [ROCE-ICRC-4 deviates]
// a socket does not report the identification.
func (f *Flow) Check(p []byte) error {
	_, err := f.Identification(p)
	return err
}

// Identification returns the IPv4 identification that matches the invariant CRC at the end of a
// packet. For IPv6 it returns f.ID. The errors are the same as for Check.
func (f *Flow) Identification(p []byte) (id uint16, err error) {
	if len(p) < BTHLen+ICRCLen {
		return 0, io.ErrUnexpectedEOF
	}
	body := p[:len(p)-ICRCLen]
	d := f.icrc(body) ^ binary.LittleEndian.Uint32(p[len(body):])
	if d == 0 {
		return f.ID, nil
	}
	if !f.Source.Addr().Is4() {
		return 0, ErrICRC
	}
	if differs, ok := identification(d, len(body)); ok {
		return f.ID ^ differs, nil
	}
	return 0, ErrICRC
}

// identification returns the bits in which the identification of an IPv4 header differs from the
// identification a CRC was computed with. d is the error of the CRC, and n bytes follow the UDP
// header. The CRC is linear: feeding the difference and a zero for each later byte into a register
// of zeros gives d. Undoing the zeros and the two bytes of the identification leaves the difference
// in the lower half of the register, and zeros in the upper half.
func identification(d uint32, n int) (id uint16, ok bool) {
	const behind = ipv4Len - 6 + udpLen // bytes between the identification and the end of the UDP header
	d = rewind(d, n+behind+2)
	if d>>16 != 0 {
		return 0, false
	}
	return uint16(d)<<8 | uint16(d)>>8, true
}
