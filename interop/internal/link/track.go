package link

import (
	"encoding/binary"
	"net/netip"
)

// A segment holds the needed fields of a TCP segment over IPv4.
type segment struct {
	src, dst         netip.AddrPort
	seq, ack         uint32
	syn, rst, hasAck bool
	length           int // number of sequence numbers that the segment takes
}

const (
	protocolTCP = 6
	tcpLen      = 20
)

// parseTCP decodes a packet. ok is false if the packet is not TCP over IPv4, is incomplete, or is a
// fragment other than the first.
func parseTCP(p []byte) (s segment, ok bool) {
	if len(p) < headerEnd+tcpLen || p[0]>>4 != 4 || p[9] != protocolTCP || binary.BigEndian.Uint16(p[6:])&0x1fff != 0 {
		return s, false
	}
	head := int(p[0]&15) * 4
	if head < headerEnd || len(p) < head+tcpLen {
		return s, false
	}
	t := p[head:]
	port := func(b []byte, at int) netip.AddrPort {
		a, _ := netip.AddrFromSlice(b)
		return netip.AddrPortFrom(a, binary.BigEndian.Uint16(t[at:]))
	}
	s = segment{src: port(p[12:16], 0), dst: port(p[16:20], 2), seq: binary.BigEndian.Uint32(t[4:]), ack: binary.BigEndian.Uint32(t[8:]),
		syn: t[13]&2 != 0, rst: t[13]&4 != 0, hasAck: t[13]&16 != 0}
	s.length = max(0, len(t)-int(t[12]>>4)*4)
	for _, f := range []byte{1, 2} { // FIN and SYN take a sequence number
		if t[13]&f != 0 {
			s.length++
		}
	}
	return s, true
}

// reset returns the reset answering s, as RFC 9293 specifies for a host without the connection.
func (s segment) reset() []byte {
	p := make([]byte, headerEnd+tcpLen)
	p[0], p[8], p[9] = 0x45, 64, protocolTCP
	binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
	src, dst := s.dst.Addr().As4(), s.src.Addr().As4()
	copy(p[12:], src[:])
	copy(p[16:], dst[:])
	t := p[headerEnd:]
	binary.BigEndian.PutUint16(t, s.dst.Port())
	binary.BigEndian.PutUint16(t[2:], s.src.Port())
	t[12], t[13] = 5<<4, 4
	if s.hasAck {
		binary.BigEndian.PutUint32(t[4:], s.ack)
	} else {
		t[13] |= 16
		binary.BigEndian.PutUint32(t[8:], s.seq+uint32(s.length))
	}
	binary.BigEndian.PutUint16(p[10:], checksum(p[:headerEnd], 0))
	pseudo := sum(p[12:20], 0) + protocolTCP + tcpLen
	binary.BigEndian.PutUint16(t[16:], checksum(t, pseudo))
	return p
}

func sum(b []byte, s uint32) uint32 {
	for ; len(b) >= 2; b = b[2:] {
		s += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		s += uint32(b[0]) << 8
	}
	return s
}

func checksum(b []byte, s uint32) uint16 {
	for s = sum(b, s); s > 0xffff; {
		s = s>>16 + s&0xffff
	}
	return ^uint16(s)
}

// A tracker records the connections whose first packet was seen, like the connection tracking of a
// firewall. One goroutine at a time may use a tracker.
type tracker struct{ flows map[[2]netip.AddrPort]bool }

func (t *tracker) key(s segment) [2]netip.AddrPort {
	if s.src.Compare(s.dst) < 0 {
		return [2]netip.AddrPort{s.src, s.dst}
	}
	return [2]netip.AddrPort{s.dst, s.src}
}

// allow reports whether packet p may pass. For a refused packet, reset is the answer to the sender
// of p, or nil if p gets no answer.
func (t *tracker) allow(p []byte) (pass bool, reset []byte) {
	s, ok := parseTCP(p)
	if !ok {
		return true, nil
	}
	k := t.key(s)
	switch {
	case s.syn && !s.hasAck:
		t.flows[k] = true
		return true, nil
	case t.flows[k]:
		return true, nil
	case s.rst:
		return false, nil
	}
	return false, s.reset()
}

// forget removes all connections: the next packet of each is answered by a reset.
func (t *tracker) forget() { clear(t.flows) }
