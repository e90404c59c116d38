package rocecore

import (
	"net/netip"

	"viaduct/internal/wire/ib"
)

// A response is a queued acknowledgement, the unsent packets of a Read Response, or the result of
// an atomic operation. Responses are sent in the order of the requests. [ROCE-RESP-15]
type response struct {
	kind     ib.Kind // Ack, ReadResponse or AtomicAck
	psn      ib.PSN  // number of its next packet
	msn      uint32
	syndrome ib.Syndrome

	first, last ib.PSN // range of the request when it was first received
	from        Place  // next byte to read
	left        int
	value       uint64 // result of an atomic operation
}

// transmitResponse appends the next packet of a response to out, and reports whether there was one.
func (c *Connection) transmitResponse(out *Output) bool {
	r := &c.resp
	if r.responses.len() == 0 {
		return false
	}
	re := r.responses.at(0)
	p := ib.Packet{BTH: ib.BTH{Opcode: ib.Acknowledge, PKey: c.cfg.PKey, QPN: c.cfg.PeerQPN, PSN: re.psn},
		AETH: ib.AETH{Syndrome: re.syndrome, MSN: re.msn}}
	n := 0
	switch re.kind {
	case ib.ReadResponse:
		n = min(c.cfg.MTU, re.left)
		p.Opcode = re.opcode()
	case ib.AtomicAck:
		p.Opcode, p.AtomicAck = ib.AtomicAcknowledge, ib.AtomicAckETH(re.value)
	}
	room := out.begin(&p, n)
	if n > 0 && c.host.Read(re.from, room) != Allowed { // the memory is gone since the check
		re.kind, re.syndrome, re.left = ib.Ack, ib.NAKRemoteAccess, 0
		c.host.Refused(re.syndrome)
		c.fail(Flushed)
		return c.transmitResponse(out)
	}
	out.end(netip.Addr{})
	c.count.SentPackets++
	re.from.VA += uint64(n)
	re.left -= n
	re.psn = re.psn.Add(1)
	if re.left > 0 {
		return true
	}
	r.responses.pop()
	return true
}

// opcode returns the opcode of the next packet of a Read Response. A repeated response has the same
// opcodes as the first one.
func (re *response) opcode() ib.Opcode {
	switch {
	case re.psn == re.first && re.psn == re.last:
		return ib.ReadResponseOnly
	case re.psn == re.first:
		return ib.ReadResponseFirst
	case re.psn == re.last:
		return ib.ReadResponseLast
	}
	return ib.ReadResponseMiddle
}
