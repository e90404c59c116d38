package rocecore

import "viaduct/internal/wire/ib"

// assemble handles a packet of an unreliable connection: nothing is answered [ROCE-UC-1], and a message
// of which a packet is missing, or which can't be received, is dropped. [ROCE-UC-2] [ROCE-UC-5]
func (c *Connection) assemble(p *ib.Packet) {
	r := &c.resp
	in := &r.in
	if p.PSN != r.expected || !p.Opcode.Follows(in.prev) {
		in.prev = none
		if !p.Opcode.Begins() {
			r.expected = p.PSN.Add(1)
			return
		}
	}
	r.expected = p.PSN.Add(1)
	v := accepted
	if p.Opcode.Kind() == ib.Send {
		v = c.placeSend(p)
	} else {
		v = c.placeWrite(p)
	}
	if v != accepted {
		in.prev = none
		return
	}
	in.prev = int(p.Opcode)
}
