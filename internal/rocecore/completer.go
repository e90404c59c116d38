package rocecore

import (
	"encoding/binary"

	"viaduct/internal/wire/ib"
)

// complete handles a response. It ignores a response to a packet that is not outstanding.
func (c *Connection) complete(now Time, p *ib.Packet) {
	q := &c.req
	if !q.started || p.PSN.Less(q.oldest) || !p.PSN.Less(q.sent) { // [ROCE-COMP-3]
		return
	}
	switch p.Opcode.Kind() {
	case ib.Ack:
		c.completeAck(now, p)
	case ib.ReadResponse:
		c.completeRead(now, p)
	case ib.AtomicAck:
		c.completeAtomic(now, p)
	}
}

// acknowledge marks all packets up to psn as acknowledged, as advance does, and restores the
// retries if that was progress. It returns false if advance does, or if the connection has failed.
func (c *Connection) acknowledge(now Time, psn ib.PSN) bool {
	before := c.req.oldest
	complete := c.advance(psn)
	c.progressed(now, before)
	return complete && !c.failed
}

// progressed restores the retries and restarts the timer if the oldest unacknowledged packet is
// later than before. [ROCE-REQ-10]
func (c *Connection) progressed(now Time, before ib.PSN) {
	q := &c.req
	n := q.oldest.Sub(before)
	if n == 0 {
		return
	}
	q.window.acknowledged(n, q.oldest)
	q.timer.arrived(now, q.oldest)
	q.timer.restore(q.cfg)
	if q.timer.running {
		q.timer.stop()
		if q.oldest != q.next {
			q.timer.run(now)
		}
	}
	c.failBroken()
}

// advance marks all packets up to psn as acknowledged, and completes the requests that end there.
// It stops at a Read or atomic operation whose response is missing, and returns false; that request
// is then the oldest. [ROCE-COMP-1] [ROCE-COMP-2] [ROCE-REQ-15]
func (c *Connection) advance(psn ib.PSN) bool {
	q := &c.req
	complete := true
	for q.items.len() > 0 {
		it := q.items.at(0)
		if psn.Less(it.first) {
			break
		}
		if it.awaitsResponse() {
			complete = false
			break
		}
		if psn.Less(it.last) {
			if q.oldest.Less(psn.Add(1)) {
				q.oldest = psn.Add(1)
			}
			break
		}
		q.oldest = it.last.Add(1)
		done := q.items.pop()
		q.cursor--
		if done.counted {
			q.reads--
		}
		c.host.RequestDone(done.r, Completion{Value: done.value})
	}
	// Packets that were acknowledged since goBack need not be retransmitted.
	if q.next.Less(q.oldest) {
		q.next = q.oldest
	}
	q.cursor = max(q.cursor, 0)
	return complete
}

func (c *Connection) completeAck(now Time, p *ib.Packet) {
	s := p.AETH.Syndrome
	switch s.Type() {
	case ib.TypeACK: // credits are ignored
		if !c.acknowledge(now, p.PSN) {
			c.missing()
		}
	case ib.TypeRNR:
		c.count.ReceivedRNR++
		c.notReady(now, p)
	case ib.TypeNAK:
		if !c.acknowledge(now, p.PSN.Add(-1)) {
			c.missing()
			return
		}
		switch s {
		case ib.NAKSequence: // [ROCE-REQ-11]
			c.count.ReceivedNAKs++
			c.missing()
		case ib.NAKInvalidRequest:
			c.fail(RemoteInvalidRequest)
		case ib.NAKRemoteAccess:
			c.fail(RemoteAccess)
		default:
			c.fail(RemoteOperation)
		}
	}
}

// missing retransmits from the oldest unacknowledged packet on, because the packet or its response
// was lost. It does nothing if the packets were retransmitted since the last progress, because the
// peer's report may concern the earlier transmission.
func (c *Connection) missing() {
	q := &c.req
	if c.failed || q.window.losing && q.oldest.Less(q.window.recovered) && q.timer.retries < q.cfg.Retries {
		return
	}
	c.retry(RetryExceeded)
}

// notReady handles the RNR NAK of a peer that has no receive. The requester waits for the time in
// the NAK, and then retransmits from the refused packet on. [ROCE-REQ-12]
func (c *Connection) notReady(now Time, p *ib.Packet) {
	q := &c.req
	if q.timer.waiting {
		return
	}
	if !c.acknowledge(now, p.PSN.Add(-1)) {
		c.missing()
		return
	}
	if q.timer.rnrRetries == 0 {
		c.fail(RNRRetryExceeded)
		return
	}
	left := q.timer.rnrRetries
	if q.cfg.RNRRetry != RNRForever {
		left--
	}
	q.goBack()
	q.timer.restore(q.cfg) // the peer has answered
	q.timer.rnrRetries = left
	q.timer.waiting = true
	q.timer.until = now + ib.RNRTime(uint8(p.AETH.Syndrome))
}

// completeRead stores the payload of a packet of a Read Response. If an earlier packet of the
// response is missing, it repeats the request instead. [ROCE-COMP-4] [ROCE-COMP-6]
func (c *Connection) completeRead(now Time, p *ib.Packet) {
	q := &c.req
	if !c.acknowledge(now, p.PSN.Add(-1)) && (c.failed || q.items.at(0).last.Less(p.PSN)) {
		c.missing()
		return
	}
	it := q.items.at(0)
	if it.kind != ib.Read {
		c.fail(BadResponse)
		return
	}
	if p.PSN != q.oldest {
		c.missing()
		return
	}
	if !it.fits(p, c.cfg.MTU) {
		c.fail(BadResponse)
		return
	}
	if len(p.Payload) > 0 {
		if err := it.r.Buf.WriteAt(p.Payload, it.placed); err != nil {
			c.fail(LocalProtection)
			return
		}
	}
	it.placed += len(p.Payload)
	it.answered = p.PSN == it.last
	q.oldest = p.PSN.Add(1)
	c.advance(p.PSN)
	c.progressed(now, p.PSN)
}

// fits reports whether a packet of a Read Response has the opcode and length its sequence number
// requires. The response to a repeated request may begin in the middle of a Read with the opcode of
// a first packet.
func (it *item) fits(p *ib.Packet, mtu int) bool {
	last := p.PSN == it.last
	want := mtu
	if last {
		want = it.length - it.placed
	}
	if len(p.Payload) != want || p.Opcode.Ends() != last {
		return false
	}
	if p.Opcode != ib.ReadResponseMiddle && p.AETH.Syndrome.Type() != ib.TypeACK {
		return false
	}
	return p.PSN != it.first || p.Opcode.Begins()
}

// completeAtomic stores the result of an atomic operation. [ROCE-COMP-5]
func (c *Connection) completeAtomic(now Time, p *ib.Packet) {
	q := &c.req
	if !c.acknowledge(now, p.PSN.Add(-1)) {
		c.missing()
		return
	}
	it := q.items.at(0)
	if it.kind != ib.Atomic || p.AETH.Syndrome.Type() != ib.TypeACK {
		c.fail(BadResponse)
		return
	}
	it.value = uint64(p.AtomicAck)
	if it.length > 0 {
		var word [8]byte
		binary.NativeEndian.PutUint64(word[:], it.value)
		if err := it.r.Buf.WriteAt(word[:min(it.length, 8)], 0); err != nil {
			c.fail(LocalProtection)
			return
		}
	}
	it.answered = true
	c.acknowledge(now, p.PSN)
}
