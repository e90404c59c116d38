package rocecore

import "viaduct/internal/wire/ib"

// A responder executes the requests of a peer in the order of their numbers.
type responder struct {
	expected ib.PSN
	msn      uint32 // messages completed [ROCE-RESP-13]
	silent   bool   // a NAK went out: nothing more is answered until the expected packet comes

	in inbound

	served []served // the last Reads and atomic operations, a ring
	oldest int      // in served: the next to be forgotten

	responses fifo[response]
}

// respond handles a request of a reliable connection.
func (c *Connection) respond(p *ib.Packet) {
	r := &c.resp
	switch d := p.PSN.Sub(r.expected); {
	case d > 0:
		if !r.silent { // [ROCE-RESP-2]
			r.silent = true
			c.count.SentNAKs++
			c.answer(r.expected, ib.NAKSequence)
		}
		return
	case d < 0:
		c.count.Duplicates++
		c.repeat(p)
		return
	}
	if !p.Opcode.Follows(r.in.prev) { // [ROCE-RESP-7]
		c.refuse(ib.NAKInvalidRequest)
		return
	}
	if !c.execute(p) {
		return
	}
	r.silent = false
}

// execute executes the expected packet. [ROCE-RESP-1]
func (c *Connection) execute(p *ib.Packet) bool {
	r := &c.resp
	v := accepted
	switch p.Opcode.Kind() {
	case ib.Send:
		v = c.placeSend(p)
	case ib.Write:
		v = c.placeWrite(p)
	case ib.Read:
		return c.startRead(p)
	case ib.Atomic:
		return c.performAtomic(p)
	}
	if v != accepted {
		c.reject(v)
		return false
	}
	r.in.prev = int(p.Opcode)
	r.expected = p.PSN.Add(1)
	if p.Opcode.Ends() {
		c.completedMessage()
	}
	if p.AckReq { // [ROCE-RESP-14]
		c.answer(p.PSN, ib.ACK)
	}
	return true
}

func (c *Connection) completedMessage() { c.resp.msn = (c.resp.msn + 1) & (1<<24 - 1) }

// reject answers a packet that was not executed.
func (c *Connection) reject(v outcome) {
	switch v {
	case notReady: // [ROCE-RESP-9]
		c.resp.silent = true
		c.count.SentRNR++
		c.answer(c.resp.expected, ib.RNR(c.cfg.RNRTimer))
	case invalid:
		c.refuse(ib.NAKInvalidRequest)
	case refused:
		c.refuse(ib.NAKRemoteAccess)
	case broken:
		c.refuse(ib.NAKRemoteOp)
	}
}

// refuse ends the connection with a NAK for the expected packet. A receive that the message took ends
// with the cause. [ROCE-RESP-16]
func (c *Connection) refuse(s ib.Syndrome) {
	c.answer(c.resp.expected, s)
	c.host.Refused(s)
	c.resp.in.giveBack(c.host, refusedStatus(s))
	c.fail(Flushed)
}

// refusedStatus returns the status of a receive whose message was answered with a NAK.
func refusedStatus(nak ib.Syndrome) Status {
	switch nak {
	case ib.NAKRemoteAccess:
		return RemoteAccess
	case ib.NAKRemoteOp:
		return RemoteOperation
	}
	return RemoteInvalidRequest
}

// answer queues an acknowledgement. One that is still to go is made to serve this packet as well.
// [ROCE-RESP-14] [ROCE-RESP-15]
func (c *Connection) answer(psn ib.PSN, s ib.Syndrome) {
	r := &c.resp
	if n := r.responses.len(); n > 0 {
		if last := r.responses.at(n - 1); last.kind == ib.Ack && last.syndrome == s {
			last.psn, last.msn = psn, r.msn
			return
		}
	}
	r.responses.push(response{kind: ib.Ack, psn: psn, syndrome: s, msn: r.msn})
}

// repeat answers a request that was executed before. [ROCE-RESP-3]
func (c *Connection) repeat(p *ib.Packet) {
	switch p.Opcode.Kind() {
	case ib.Send, ib.Write:
		c.answer(c.resp.expected.Add(-1), ib.ACK)
	case ib.Read:
		c.repeatRead(p)
	case ib.Atomic:
		c.repeatAtomic(p)
	}
}
