package rocecore

import "viaduct/internal/wire/ib"

// An inbound holds the state of the message being received.
type inbound struct {
	prev int // opcode of the last packet; none before the first

	// If has is set, recv is the receive of the message, and filled the number of bytes placed there.
	// A Send takes its receive at its first packet. If an unreliable connection loses a message, the
	// next message uses the receive. [ROCE-UC-3]
	recv   Receive
	has    bool
	filled int

	// Of an RDMA Write: the place of the next byte, the length, and the bytes to come.
	to     Place
	length int
	left   int
}

// An outcome is the result of handling a request packet.
type outcome uint8

const (
	accepted outcome = iota
	notReady         // no receive is posted
	invalid          // the packet violates the protocol
	refused          // the peer may not access the memory that it named
	broken           // the memory of the receive is gone
)

// giveBack completes the receive of an unfinished message with s. It does nothing if there is no
// receive.
func (in *inbound) giveBack(h Host, s Status) {
	if in.has {
		in.has = false
		h.Received(in.recv, Arrival{Status: s})
	}
}

// takeReceive takes a posted receive unless the message has one. It returns false if none is
// posted.
func (in *inbound) takeReceive(h Host) bool {
	if !in.has {
		in.recv, in.has = h.NextReceive()
	}
	return in.has
}

// payloadFits reports whether the payload has a length allowed at its position in the message.
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

// placeSend stores the payload of a packet of a Send, and completes the receive at the last packet.
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

// spoiled ends a message that cannot be received, and returns o. It completes the receive with s,
// except on an unreliable connection whose receive was only too short: there the next message uses
// the receive.
func (c *Connection) spoiled(s Status, o outcome) outcome {
	if c.reliable() || s == LocalProtection {
		c.resp.in.has = false
		c.host.Received(c.resp.in.recv, Arrival{Status: s})
	}
	return o
}

// placeWrite stores the payload of a packet of an RDMA Write.
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
	if p.Opcode.HasImm() && !in.takeReceive(c.host) { // checked before any byte is placed [ROCE-RESP-18]
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
