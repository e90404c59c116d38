package rocecore

import "viaduct/internal/wire/ib"

// An inbound is the message that is being received.
type inbound struct {
	prev int // opcode of the last packet, none before the first

	// A Send has a receive from its first packet on. That of a message which an unreliable
	// connection has lost serves the next. [ROCE-UC-3]
	recv   Receive
	has    bool
	filled int

	// An RDMA Write has a place.
	to     Place
	length int
	left   int
}

// An outcome is what became of a packet.
type outcome uint8

const (
	accepted outcome = iota
	notReady         // no receive
	invalid          // the packet is not as it should be
	refused          // memory of the peer's choice
	broken           // memory of our own
)

// giveBack ends the receive of an unfinished message.
func (in *inbound) giveBack(h Host, s Status) {
	if in.has {
		in.has = false
		h.Received(in.recv, Arrival{Status: s})
	}
}

// takeReceive makes sure that there is a receive.
func (in *inbound) takeReceive(h Host) bool {
	if !in.has {
		in.recv, in.has = h.NextReceive()
	}
	return in.has
}

// payloadFits reports whether the length of a payload is what its place in the message asks for.
// [ROCE-RESP-8]
func (c *Connection) payloadFits(p *ib.Packet) bool {
	n := len(p.Payload)
	switch {
	case !p.Opcode.Ends():
		return n == c.cfg.MTU
	case !p.Opcode.Begins():
		return n > 0 && n <= c.cfg.MTU
	}
	return n <= c.cfg.MTU
}

// placeSend places a packet of a Send, and delivers the message with the last one.
func (c *Connection) placeSend(p *ib.Packet) outcome {
	in := &c.resp.in
	if p.Opcode.Begins() {
		if !in.takeReceive(c.host) {
			return notReady
		}
		in.filled = 0
	}
	if !c.payloadFits(p) {
		return invalid
	}
	if n := len(p.Payload); n > 0 {
		room := 0
		if in.recv.Buf != nil {
			room = in.recv.Buf.Len()
		}
		if n > room-in.filled { // [ROCE-RESP-12]
			return c.spoiled(LocalLength, invalid)
		}
		if err := in.recv.Buf.WriteAt(p.Payload, in.filled); err != nil {
			return c.spoiled(LocalProtection, broken)
		}
		in.filled += n
	}
	if !p.Opcode.Ends() {
		return accepted
	}
	a := Arrival{Len: in.filled, Solicited: p.Solicited, HasImm: p.Opcode.HasImm(), Imm: p.Imm}
	if p.Opcode.HasInv() { // [ROCE-RESP-19]
		if c.host.Invalidate(uint32(p.Inv)) != Allowed {
			return c.spoiled(RemoteInvalidRequest, refused)
		}
		a.HasInv, a.Key = true, uint32(p.Inv)
	}
	in.has = false
	c.host.Received(in.recv, a)
	return accepted
}

// spoiled gives the receive of a message back that can't be received. An unreliable connection keeps
// one that was only too short for the next message.
func (c *Connection) spoiled(s Status, o outcome) outcome {
	if c.reliable() || s == LocalProtection {
		c.resp.in.has = false
		c.host.Received(c.resp.in.recv, Arrival{Status: s})
	}
	return o
}

// placeWrite places a packet of an RDMA Write.
func (c *Connection) placeWrite(p *ib.Packet) outcome {
	in := &c.resp.in
	if p.Opcode.Begins() {
		if c.cfg.Access&RemoteWrite == 0 {
			return invalid
		}
		if p.RETH.Length > MaxMessage {
			return invalid
		}
		to := Place{p.RETH.VA, p.RETH.RKey}
		if n := p.RETH.Length; n > 0 && c.host.Check(to, uint64(n), RemoteWrite) != Allowed { // [ROCE-RESP-10] [ROCE-RESP-11]
			return refused
		}
		in.to, in.length, in.left = to, int(p.RETH.Length), int(p.RETH.Length)
	}
	n := len(p.Payload)
	if !c.payloadFits(p) || n > in.left || p.Opcode.Ends() != (n == in.left) {
		return invalid
	}
	if p.Opcode.HasImm() && !in.takeReceive(c.host) { // before anything is placed [ROCE-RESP-18]
		return notReady
	}
	if n > 0 {
		if c.host.Write(in.to, p.Payload) != Allowed {
			return refused
		}
		in.to.VA += uint64(n)
		in.left -= n
	}
	if p.Opcode.HasImm() {
		in.has = false
		c.host.Received(in.recv, Arrival{Len: in.length, Write: true, HasImm: true, Imm: p.Imm, Solicited: p.Solicited})
	}
	return accepted
}
