package ib

import (
	"encoding/binary"
	"io"
	"net/netip"
)

// GRHLen is the length in bytes of a GRH. [ROCE-OP-11]
const GRHLen = 40

const (
	ipv4Len  = 20
	udpLen   = 8
	udpProto = 17
)

// A GRH precedes a received datagram in the buffer: the IPv6 header of the packet, or 20 unused
// bytes and the packet's IPv4 header. Source and Destination are of the same family. [ROCE-OP-11]
type GRH struct {
	Source, Destination netip.Addr
	TrafficClass        uint8  // or type of service
	HopLimit            uint8  // or time to live
	Length              uint16 // bytes after an IPv6 header, or of the whole IPv4 packet
}

// Append appends the GRHLen bytes of h to b. Fields missing in h are zero.
func (h GRH) Append(b []byte) []byte {
	var g [GRHLen]byte
	if h.Source.Is4() {
		ip := g[GRHLen-ipv4Len:]
		ip[0], ip[1], ip[8], ip[9] = 0x45, h.TrafficClass, h.HopLimit, udpProto
		binary.BigEndian.PutUint16(ip[2:], h.Length)
		s, d := h.Source.As4(), h.Destination.As4()
		copy(ip[12:], s[:])
		copy(ip[16:], d[:])
		return append(b, g[:]...)
	}
	binary.BigEndian.PutUint32(g[:], 6<<28|uint32(h.TrafficClass)<<20)
	binary.BigEndian.PutUint16(g[4:], h.Length)
	g[6], g[7] = udpProto, h.HopLimit
	s, d := h.Source.As16(), h.Destination.As16()
	copy(g[8:], s[:])
	copy(g[24:], d[:])
	return append(b, g[:]...)
}

// ParseGRH decodes the header at the front of b and reports its length. The error is
// io.ErrUnexpectedEOF if b is short. A header whose version is not 6 is decoded as IPv4.
func ParseGRH(b []byte) (h GRH, n int, err error) {
	if len(b) < GRHLen {
		return GRH{}, 0, io.ErrUnexpectedEOF
	}
	if b[0]>>4 == 6 {
		return GRH{
			Source:       netip.AddrFrom16([16]byte(b[8:])),
			Destination:  netip.AddrFrom16([16]byte(b[24:])),
			TrafficClass: uint8(binary.BigEndian.Uint32(b) >> 20),
			HopLimit:     b[7],
			Length:       binary.BigEndian.Uint16(b[4:]),
		}, GRHLen, nil
	}
	ip := b[GRHLen-ipv4Len:]
	return GRH{
		Source:       netip.AddrFrom4([4]byte(ip[12:])),
		Destination:  netip.AddrFrom4([4]byte(ip[16:])),
		TrafficClass: ip[1],
		HopLimit:     ip[8],
		Length:       binary.BigEndian.Uint16(ip[2:]),
	}, GRHLen, nil
}
