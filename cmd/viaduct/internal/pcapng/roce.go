package pcapng

import (
	"encoding/binary"
	"net/netip"

	"viaduct/internal/wire/ib"
)

// RoCE records a packet of RoCEv2 with the invariant CRC. out is true for a packet sent by this
// process. The CRC covers the identification in the IPv4 header, but a socket does not report the
// identification. The recorded frame therefore gets the identification fitting the CRC, so that the
// CRC of an undamaged packet is right in the capture too.
func (c *Capture) RoCE(out bool, src, dst netip.AddrPort, packet []byte) {
	src = netip.AddrPortFrom(src.Addr().Unmap(), src.Port())
	dst = netip.AddrPortFrom(dst.Addr().Unmap(), dst.Port())
	c.mu.Lock()
	defer c.mu.Unlock()
	c.frame = appendUDP(c.frame[:0], src, dst, out, packet[:min(len(packet), maxSegment)])
	if src.Addr().Is4() && dst.Addr().Is4() {
		flow := ib.Flow{Source: src, Destination: dst}
		if id, err := flow.Identification(packet); err == nil {
			setIdentification(c.frame, id)
		}
	}
	c.writeLocked()
}

// setIdentification sets the identification in the IPv4 header of an Ethernet frame, and corrects
// the header's checksum.
func setIdentification(frame []byte, id uint16) {
	ip := frame[14:34]
	binary.BigEndian.PutUint16(ip[4:], id)
	ip[10], ip[11] = 0, 0
	binary.BigEndian.PutUint16(ip[10:], checksum(ip, 0))
}
