package rocecore

import "viaduct/internal/wire/ib"

// A served is an executed Read or atomic operation, remembered in case the response is lost.
// [ROCE-RESP-20]
type served struct {
	kind        ib.Kind // Read or Atomic; Unassigned in an empty entry
	first, last ib.PSN
	from        Place
	length      int
	value       uint64
}

// remember stores s in place of the oldest entry. A peer that respects the limit of outstanding
// Reads has received the response of the oldest entry, so remember also removes the response from
// the queue.
func (r *responder) remember(s served) {
	if old := r.served[r.oldest]; old.kind != ib.Unassigned {
		r.forget(old)
	}
	r.served[r.oldest] = s
	r.oldest = (r.oldest + 1) % len(r.served)
}

// forget removes the queued response of s, if it was not sent completely.
func (r *responder) forget(s served) {
	for i := range r.responses.len() {
		if re := r.responses.at(i); re.kind != ib.Ack && re.first == s.first {
			r.responses.remove(i)
			return
		}
	}
}

// find returns the executed operation of the given kind whose range contains psn, or nil.
func (r *responder) find(kind ib.Kind, psn ib.PSN) *served {
	for i := range r.served {
		s := &r.served[i]
		if s.kind == kind && !psn.Less(s.first) && !s.last.Less(psn) {
			return s
		}
	}
	return nil
}

// mayServe reports whether the connection grants the right a, and serves Reads and atomic
// operations at all.
func (c *Connection) mayServe(a Access) bool {
	return c.cfg.Access&a != 0 && len(c.resp.served) > 0 // [ROCE-RESP-20]
}

// startRead executes a Read Request by queueing its response. It returns false if the request was
// refused.
func (c *Connection) startRead(p *ib.Packet) bool {
	r := &c.resp
	n := p.RETH.Length
	if n > MaxMessage || !c.mayServe(RemoteRead) {
		c.refuse(ib.NAKInvalidRequest)
		return false
	}
	from := Place{p.RETH.VA, p.RETH.RKey}
	if n > 0 && c.host.Check(from, uint64(n), RemoteRead) != Allowed { // [ROCE-RESP-10] [ROCE-RESP-11]
		c.refuse(ib.NAKRemoteAccess)
		return false
	}
	s := served{kind: ib.Read, first: p.PSN, last: p.PSN.Add(max(1, (int(n)+c.cfg.MTU-1)/c.cfg.MTU) - 1),
		from: from, length: int(n)}
	r.remember(s)
	r.in.prev = int(p.Opcode)
	r.expected = s.last.Add(1)
	c.completedMessage()
	c.queueRead(s, p.PSN, from, int(n))
	return true
}

// queueRead queues the response of a Read from packet psn on. A response of the same Read still in
// the queue is replaced, so that a peer cannot fill the queue by repeating a request.
func (c *Connection) queueRead(s served, psn ib.PSN, from Place, n int) {
	r := &c.resp
	re := response{kind: ib.ReadResponse, psn: psn, msn: r.msn, syndrome: ib.ACK, first: s.first,
		last: s.last, from: from, left: n}
	for i := range r.responses.len() {
		if old := r.responses.at(i); old.kind == ib.ReadResponse && old.first == s.first {
			*old = re
			return
		}
	}
	r.responses.push(re)
}

// repeatRead answers a repeated Read Request for a remembered Read, from any packet of the Read on.
// It ignores any other request. [ROCE-RESP-4] [ROCE-RESP-6]
func (c *Connection) repeatRead(p *ib.Packet) {
	s := c.resp.find(ib.Read, p.PSN)
	if s == nil {
		return
	}
	at := p.PSN.Sub(s.first) * c.cfg.MTU
	from := Place{p.RETH.VA, p.RETH.RKey}
	if from != (Place{s.from.VA + uint64(at), s.from.Key}) || int64(p.RETH.Length) != int64(s.length-at) {
		return
	}
	c.queueRead(*s, p.PSN, from, s.length-at)
}

// performAtomic executes an atomic operation and queues its result. It returns false if the request
// was refused. [ROCE-RESP-17]
func (c *Connection) performAtomic(p *ib.Packet) bool {
	r := &c.resp
	if !c.mayServe(RemoteAtomic) {
		c.refuse(ib.NAKInvalidRequest)
		return false
	}
	op := FetchAdd
	if p.Opcode == ib.CompareSwap {
		op = CompareSwap
	}
	old, v := c.host.Atomic(op, Place{p.Atomic.VA, p.Atomic.RKey}, p.Atomic.SwapAdd, p.Atomic.Compare)
	switch v {
	case Misaligned:
		c.refuse(ib.NAKInvalidRequest)
		return false
	case Refused:
		c.refuse(ib.NAKRemoteAccess)
		return false
	}
	r.remember(served{kind: ib.Atomic, first: p.PSN, last: p.PSN, value: old})
	r.in.prev = int(p.Opcode)
	r.expected = p.PSN.Add(1)
	c.completedMessage()
	c.queueAtomic(p.PSN, old)
	return true
}

func (c *Connection) queueAtomic(psn ib.PSN, value uint64) {
	r := &c.resp
	for i := range r.responses.len() {
		if old := r.responses.at(i); old.kind == ib.AtomicAck && old.psn == psn {
			return
		}
	}
	r.responses.push(response{kind: ib.AtomicAck, psn: psn, msn: r.msn, syndrome: ib.ACK,
		first: psn, last: psn, value: value})
}

// repeatAtomic answers a repeated atomic operation with the remembered result. It ignores an
// operation that is not remembered. [ROCE-RESP-5] [ROCE-RESP-6]
func (c *Connection) repeatAtomic(p *ib.Packet) {
	if s := c.resp.find(ib.Atomic, p.PSN); s != nil {
		c.queueAtomic(p.PSN, s.value)
	}
}
