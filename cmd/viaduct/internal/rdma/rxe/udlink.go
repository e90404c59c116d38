package rxe

import (
	"encoding/binary"

	"viaduct/internal/rocecore"
	"viaduct/internal/roceudp"
	"viaduct/internal/wire/ib"
)

// A udLink connects a queue pair for datagrams with queue pairs of other supervisors and hosts, at
// a single address of the port. It handles only datagrams, so a peer cannot access memory through a
// udLink.
type udLink struct {
	qp   *QP
	pair *roceudp.Pair
	recv buffer // the receive in progress; guarded by the lock of pair
	sl   uint8  // service level in completions

	last rocecore.Status // result of the last datagram; guarded by sendSide.mu
}

// listen makes the queue pair reachable at all addresses of the port that packets can have.
func (q *QP) listen(a *Attributes) {
	links := map[GID]*udLink{}
	for _, g := range q.port.all() {
		own := g.addr()
		if !onWire(own) {
			continue
		}
		pair, err := q.fabric.pair(own, q.num)
		if err != nil {
			q.explain("queue pair %d: no datagrams from other hosts: %v", q.num, err)
			continue
		}
		l := &udLink{qp: q, pair: pair, sl: levelIPv6}
		if own.Is4() {
			l.sl = levelIPv4
		}
		links[g] = l
		pair.Datagrams(l, rocecore.DatagramConfig{MTU: maxDatagram, QKey: a.QKey, PSN: ib.PSN(a.SendPSN)})
	}
	q.udLinks.Store(&links)
	q.joinGroups(q.fabric.groupsOf(q)...)
}

// udLink returns the link of an address of the port, or nil.
func (q *QP) udLink(own GID) *udLink {
	if links := q.udLinks.Load(); links != nil {
		return (*links)[own]
	}
	return nil
}

// tellUnsent reports to the user, once for each queue pair, why a datagram does not leave this
// host. The program gets no error.
func (q *QP) tellUnsent(own, to GID) {
	if q.toldUnsent {
		return
	}
	q.toldUnsent = true
	err := errNoWire
	if onWire(own.addr()) {
		if _, err = q.fabric.wire.port(own.addr(), q.fabric.numbers()); err == nil {
			return // the device got the address after the queue pair was ready
		}
	}
	q.tell("datagrams to " + to.String() + ": " + err.Error())
}

// send sends a datagram to another host, and returns the status. The pair was not full, and only
// this queue pair posts to the pair under sendSide.mu, so the datagram completes at once.
func (l *udLink) send(e *sendEntry, payload []byte, to GID, qkey uint32) Status {
	r := rocecore.Request{Op: rocecore.Send, Buf: inline(payload), Solicited: e.flags&flagSolicited != 0,
		To: rocecore.Destination{Addr: to.addr(), QPN: e.ud.qpn, QKey: qkey}}
	if to.multicast() {
		r.To.Addr, r.To.QPN = to.groupAddr(), ib.MulticastQPN
	}
	if e.op == OpSendImm {
		r.HasImm = true
		binary.LittleEndian.PutUint32(r.Imm[:], e.imm)
	}
	l.last = rocecore.Flushed
	l.pair.Post(&r)
	return statusOf[l.last]
}

// RequestDone implements rocecore.Host. Only send posts requests, so RequestDone is called within
// send.
func (l *udLink) RequestDone(_ *rocecore.Request, c rocecore.Completion) { l.last = c.Status }

// NextReceive implements rocecore.Host.
func (l *udLink) NextReceive() (rocecore.Receive, bool) {
	r := &l.qp.recv
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || !l.qp.takeReceive() {
		return rocecore.Receive{}, false
	}
	l.recv.fill(l.qp.memory, &r.entry)
	return rocecore.Receive{Buf: &l.recv}, true
}

// Received implements rocecore.Host. If a receive is too short for a datagram, the next datagram
// uses the receive.
func (l *udLink) Received(_ rocecore.Receive, a rocecore.Arrival) {
	q := l.qp
	q.recv.mu.Lock()
	defer q.recv.mu.Unlock()
	if q.recv.closed || !q.recv.held || a.Status == rocecore.LocalLength {
		return
	}
	c := arrival(&a)
	c.sl = l.sl
	if a.Status != rocecore.OK {
		c.status = LocalQPOperation
		q.fail()
	} else {
		q.received.Add(uint64(a.Len - grhLen))
	}
	q.finishReceive(&c)
}

// Failed implements rocecore.Host. A link has no requests in progress to be flushed.
func (l *udLink) Failed(rocecore.Status) {}

// Check implements rocecore.Host.
func (l *udLink) Check(rocecore.Place, uint64, rocecore.Access) rocecore.Verdict {
	return rocecore.Refused
}

// Write implements rocecore.Host.
func (l *udLink) Write(rocecore.Place, []byte) rocecore.Verdict { return rocecore.Refused }

// Read implements rocecore.Host.
func (l *udLink) Read(rocecore.Place, []byte) rocecore.Verdict { return rocecore.Refused }

// Atomic implements rocecore.Host.
func (l *udLink) Atomic(rocecore.Op, rocecore.Place, uint64, uint64) (uint64, rocecore.Verdict) {
	return 0, rocecore.Refused
}

// Invalidate implements rocecore.Host.
func (l *udLink) Invalidate(uint32) rocecore.Verdict { return rocecore.Refused }

// Refused implements rocecore.Host.
func (l *udLink) Refused(ib.Syndrome) {}
