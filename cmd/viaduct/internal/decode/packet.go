package decode

import (
	"encoding/binary"
	"net/netip"

	"github.com/gopacket/gopacket/layers"
)

// A packet holds the transport header and payload of a frame.
type packet struct {
	src, dst netip.AddrPort
	proto    uint8
	seq, ack uint32
	flags    uint8
	payload  []byte // the captured part
	missing  int    // number of bytes after payload that were not captured
	ipv4     ipv4Facts
}

// ipv4Facts are the fields of an IPv4 header relevant to RoCEv2. All are zero for IPv6.
type ipv4Facts struct {
	id          uint16 // identification
	options     bool
	mayFragment bool // DF is not set
}

const (
	protoTCP = 6
	protoUDP = 17
)

const (
	finFlag = 0x01
	synFlag = 0x02
	rstFlag = 0x04
	ackFlag = 0x10
)

// skipped is the reason for skipping a packet.
type skipped string

const (
	notIP     skipped = "not IP"
	otherIP   skipped = "neither TCP nor UDP"
	fragment  skipped = "fragments of IP packets"
	malformed skipped = "malformed or cut short"
	otherLink skipped = "unknown link type"
)

// parsePacket parses a frame. p is valid if the result is "".
func parsePacket(link layers.LinkType, b []byte, p *packet) skipped {
	const (
		ipv4 = 0x0800
		ipv6 = 0x86dd
	)
	var kind uint16
	switch link {
	case layers.LinkTypeEthernet:
		if len(b) < 14 {
			return malformed
		}
		kind, b = binary.BigEndian.Uint16(b[12:]), b[14:]
		for range 2 { // VLAN tags
			if (kind == 0x8100 || kind == 0x88a8) && len(b) >= 4 {
				kind, b = binary.BigEndian.Uint16(b[2:]), b[4:]
			}
		}
	case layers.LinkTypeLinuxSLL:
		if len(b) < 16 {
			return malformed
		}
		kind, b = binary.BigEndian.Uint16(b[14:]), b[16:]
	case layers.LinkTypeLinuxSLL2:
		if len(b) < 20 {
			return malformed
		}
		kind, b = binary.BigEndian.Uint16(b), b[20:]
	case layers.LinkTypeNull, layers.LinkTypeLoop:
		if len(b) < 4 {
			return malformed
		}
		b = b[4:]
	case layers.LinkTypeRaw, linkRawBSD, layers.LinkTypeIPv4, layers.LinkTypeIPv6:
	default:
		return otherLink
	}
	if kind == 0 && len(b) > 0 {
		switch b[0] >> 4 {
		case 4:
			kind = ipv4
		case 6:
			kind = ipv6
		}
	}
	switch kind {
	case ipv4:
		return parseIPv4(b, p)
	case ipv6:
		return parseIPv6(b, p)
	}
	return notIP
}

// linkRawBSD is BSD's link type of packets without a link header.
const linkRawBSD layers.LinkType = 12

func parseIPv4(b []byte, p *packet) skipped {
	if len(b) < 20 || b[0]>>4 != 4 {
		return malformed
	}
	hdr, total := int(b[0]&15)*4, int(binary.BigEndian.Uint16(b[2:]))
	if total == 0 { // the adapter fills the length in later
		total = len(b)
	}
	if hdr < 20 || total < hdr || len(b) < hdr {
		return malformed
	}
	if binary.BigEndian.Uint16(b[6:])&0x3fff != 0 {
		return fragment
	}
	src, dst := netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
	const dontFragment = 0x4000
	facts := ipv4Facts{
		id: binary.BigEndian.Uint16(b[4:]), options: hdr > 20,
		mayFragment: binary.BigEndian.Uint16(b[6:])&dontFragment == 0,
	}
	why := parseTransport(b[9], src, dst, b[hdr:min(total, len(b))], max(0, total-len(b)), p)
	p.ipv4 = facts
	return why
}

func parseIPv6(b []byte, p *packet) skipped {
	if len(b) < 40 || b[0]>>4 != 6 {
		return malformed
	}
	total := 40 + int(binary.BigEndian.Uint16(b[4:]))
	if total == 40 {
		total = len(b)
	}
	src, dst := netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
	missing := max(0, total-len(b))
	next, rest := b[6], b[40:max(40, min(total, len(b)))]
	for range 8 { // extension headers
		switch next {
		case 0, 43, 60:
			if len(rest) < 8 || len(rest) < 8+int(rest[1])*8 {
				return malformed
			}
			next, rest = rest[0], rest[8+int(rest[1])*8:]
		case 44:
			return fragment
		default:
			return parseTransport(next, src, dst, rest, missing, p)
		}
	}
	return malformed
}

func parseTransport(proto uint8, src, dst netip.Addr, b []byte, missing int, p *packet) skipped {
	switch {
	case proto != protoTCP && proto != protoUDP:
		return otherIP
	case proto == protoUDP && len(b) < 8, proto == protoTCP && len(b) < 20:
		return malformed
	}
	*p = packet{
		src:   netip.AddrPortFrom(src, binary.BigEndian.Uint16(b)),
		dst:   netip.AddrPortFrom(dst, binary.BigEndian.Uint16(b[2:])),
		proto: proto, missing: missing,
	}
	if proto == protoUDP {
		n := int(binary.BigEndian.Uint16(b[4:]))
		if n < 8 {
			return malformed
		}
		p.payload = b[8:max(8, min(n, len(b)))]
		return ""
	}
	hdr := int(b[12]>>4) * 4
	if hdr < 20 || hdr > len(b) {
		return malformed
	}
	p.seq, p.ack, p.flags = binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint32(b[8:]), b[13]
	p.payload = b[hdr:]
	return ""
}
