package decode

import (
	"viaduct/internal/wire/ib"
	"viaduct/portmap"
)

// datagram decodes a UDP datagram from or to a Port Mapper, or a packet of RoCEv2.
func (d *Decoder) datagram(p *packet) {
	if d.opt.Stream > 0 {
		return
	}
	as := d.forced(p.src, p.dst)
	switch {
	case as != "":
	case p.src.Port() == portmap.Port, p.dst.Port() == portmap.Port:
		as = "portmap"
	case p.dst.Port() == ib.Port: // the port of the sender may be any [ROCE-NET-1]
		as = "roce"
	}
	switch as {
	case "portmap":
		d.portmap(p)
	case "roce":
		d.roce.packet(d, p)
	}
}
