package rocecore

import "viaduct/internal/wire/ib"

// A responder executes the requests of a peer in the order of their sequence numbers.
type responder struct {
	expected ib.PSN
	msn      uint32 // number of completed messages [ROCE-RESP-13]
	silent   bool   // a NAK was sent: do not answer until the expected packet arrives

	in inbound

	served []served // ring of the last Reads and atomic operations
	oldest int      // index in served of the oldest entry

	responses fifo[response]
}

// respond handles a request packet of a reliable connection.
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

// execute executes the expected packet. It returns false if the packet was refused. [ROCE-RESP-1]
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
	// Linux's rxe ignores a NAK unless an acknowledgement has arrived since the previous one. So the
	// packet that a NAK has asked for is always acknowledged.
	if p.AckReq || r.silent { // [ROCE-RESP-14]
		c.answer(p.PSN, ib.ACK)
	}
	return true
}

func (c *Connection) completedMessage() { c.resp.msn = (c.resp.msn + 1) & (1<<24 - 1) }

// reject answers a packet that was not executed, with an RNR NAK or a NAK that ends the connection.
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

// refuse ends the connection with a NAK for the expected packet. If the message has taken a
// receive, the receive completes with the corresponding status. [ROCE-RESP-16]
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

// answer queues an acknowledgement. If the last queued response is an acknowledgement with the same
// syndrome, answer changes the queued response instead, so that one packet acknowledges both.
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

// repeat answers a request that was already executed. It does not execute the request again.
// [ROCE-RESP-3]
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
