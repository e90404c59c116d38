package roceudp

import "net/netip"

// A Tap is given every packet of a port, with its invariant CRC: those sent, and those that arrive,
// the refused ones included. Several goroutines may call it at a time. It does not keep b.
type Tap func(out bool, src, dst netip.AddrPort, b []byte)

// SetTap gives the packets from now on to tap.
func (p *Port) SetTap(tap Tap) { p.tap.Store(&tap) }

// observe gives a packet to the tap, if there is one.
func (p *Port) observe(out bool, src, dst netip.AddrPort, b []byte) {
	if tap := p.tap.Load(); tap != nil {
		(*tap)(out, src, dst, b)
	}
}
