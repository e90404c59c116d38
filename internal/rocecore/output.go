package rocecore

import (
	"net/netip"

	"viaduct/internal/wire/ib"
)

// An Output collects packets to send. It stores their bytes contiguously, and leaves room for the
// invariant CRC after each packet. The zero value is empty.
type Output struct {
	bytes   []byte
	packets []outgoing
}

type outgoing struct {
	from, to int // range in bytes, including the room for the CRC
	dest     netip.Addr
}

// Reset removes all packets and keeps the memory for later packets.
func (o *Output) Reset() { o.bytes, o.packets = o.bytes[:0], o.packets[:0] }

// Len returns the number of packets.
func (o *Output) Len() int { return len(o.packets) }

// Packet returns the bytes of packet i, the last [ib.ICRCLen] of which are reserved for the
// invariant CRC, and the destination of a datagram. The bytes are valid until the next Reset.
func (o *Output) Packet(i int) ([]byte, netip.Addr) {
	p := &o.packets[i]
	return o.bytes[p.from:p.to:p.to], p.dest
}

// begin appends the headers of p, which has n bytes of payload, and returns the room for the
// payload. The caller fills the room and then calls end, which adds the packet to the output.
// Without end, the next begin overwrites the bytes.
func (o *Output) begin(p *ib.Packet, n int) []byte {
	from := 0
	if k := len(o.packets); k > 0 {
		from = o.packets[k-1].to
	}
	o.bytes = p.AppendHeaders(o.bytes[:from], n)
	at := len(o.bytes)
	var tail [3 + ib.ICRCLen]byte
	if need := at + n; need > cap(o.bytes) {
		o.bytes = append(o.bytes, make([]byte, n)...)
	} else {
		o.bytes = o.bytes[:need]
	}
	o.bytes = append(o.bytes, tail[:ib.Pad(n)+ib.ICRCLen]...)
	return o.bytes[at : at+n]
}

func (o *Output) end(to netip.Addr) {
	from := 0
	if k := len(o.packets); k > 0 {
		from = o.packets[k-1].to
	}
	o.packets = append(o.packets, outgoing{from, len(o.bytes), to})
}
