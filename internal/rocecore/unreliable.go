package rocecore

import "viaduct/internal/wire/ib"

// assemble handles a request packet of an unreliable connection. It answers nothing [ROCE-UC-1]. It
// drops a message if a packet is missing or if the message cannot be received. [ROCE-UC-2]
// [ROCE-UC-5]
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
