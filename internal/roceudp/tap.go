package roceudp

import "net/netip"

// A Tap is called with every packet of a port, including the invariant CRC: the sent packets, and
// all received packets, even dropped packets. Several goroutines may call a Tap at the same time. A
// Tap must not keep b.
type Tap func(out bool, src, dst netip.AddrPort, b []byte)

// SetTap makes tap receive all later packets.
func (p *Port) SetTap(tap Tap) { p.tap.Store(&tap) }

// observe passes a packet to the tap, if there is one.
func (p *Port) observe(out bool, src, dst netip.AddrPort, b []byte) {
	if tap := p.tap.Load(); tap != nil {
		(*tap)(out, src, dst, b)
	}
}
