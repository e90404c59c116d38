package rocecore

import (
	"net/netip"

	"viaduct/internal/wire/ib"
)

// A requester turns requests into packets. After a loss, the requester retransmits from the oldest
// unacknowledged packet on (go back N).
//
//	 oldest         next        sent       tail
//	----+------------+-----------+----------+----> PSN
//	    | outstanding| to be     | posted,
//	    |            | resent    | never sent
//
// A Read has as many sequence numbers as its response has packets. A Read Request carries the first
// number whose response packet has not arrived. [ROCE-REQ-2]
type requester struct {
	cfg     SendConfig
	started bool

	items  fifo[item] // incomplete requests, the oldest first
	cursor int        // index of the item whose packet is next, or items.len()
	oldest ib.PSN
	next   ib.PSN
	sent   ib.PSN
	tail   ib.PSN

	reads   int // number of Reads and atomic operations sent and incomplete
	unasked int // packets since one requested an acknowledgement

	timer  timer
	window window
}

// An item is a request and its range of packets.
type item struct {
	r           *Request
	kind        ib.Kind
	length      int
	first, last ib.PSN
	placed      int    // bytes of the Read Response that were stored
	counted     bool   // counted in requester.reads
	answered    bool   // the response of a Read or atomic operation has arrived
	broken      Status // not OK if the request cannot be sent; the connection fails once the request is the oldest
	value       uint64
}

// awaitsResponse reports whether the request needs a response, not only an acknowledgement, and the
// response has not arrived yet.
func (it *item) awaitsResponse() bool {
	return (it.kind == ib.Read || it.kind == ib.Atomic) && !it.answered
}

// StartSending makes the connection ready to send. Call it once, before Post.
func (c *Connection) StartSending(cfg SendConfig) {
	if cfg.Window <= 0 || cfg.Window > MaxWindow {
		cfg.Window = MaxWindow
	}
	q := &c.req
	q.cfg, q.started = cfg, true
	q.oldest, q.next, q.sent, q.tail = cfg.PSN, cfg.PSN, cfg.PSN, cfg.PSN
	q.timer.restore(cfg)
	q.window.start(cfg.Window)
}

// Post adds a request, whose buffer has at most MaxMessage bytes. Call it after StartSending. In
// the error state the request is flushed at once.
func (c *Connection) Post(r *Request) {
	if c.failed {
		c.host.RequestDone(r, Completion{Status: Flushed})
		return
	}
	it := item{r: r, kind: r.kind(), length: r.length(), first: c.req.tail}
	packets := 1
	if it.kind != ib.Atomic {
		packets = max(1, (it.length+c.cfg.MTU-1)/c.cfg.MTU) // [ROCE-REQ-1]
	}
	it.last = it.first.Add(packets - 1)
	c.req.tail = it.last.Add(1)
	c.req.items.push(it)
}

// transmitRequest appends the next packet of a request to out, if a packet may be sent now, and
// reports whether it did.
func (c *Connection) transmitRequest(now Time, out *Output) bool {
	q := &c.req
	if !q.started || c.failed || q.timer.waiting {
		return false
	}
	if q.timer.probe {
		q.timer.probe = false
		if q.oldest != q.next && c.sendPacket(out, q.items.at(0), q.oldest, true) {
			c.count.Probes++
			c.count.Resent++
			return true
		}
	}
	if q.cursor == q.items.len() {
		return false
	}
	it := q.items.at(q.cursor)
	if it.broken != OK || !c.mayStart(it) {
		return false
	}
	psn := q.next
	after := psn.Add(1)
	if it.kind == ib.Read {
		after = it.last.Add(1)
	}
	ask := it.last.Less(after) || q.window.asks(q.unasked+1) || c.reliable() && after.Sub(q.oldest) >= q.window.size // [ROCE-REQ-4]
	if !c.sendPacket(out, it, psn, ask) {
		return false
	}
	q.unasked++
	if ask {
		q.unasked = 0
	}
	if psn.Less(q.sent) {
		c.count.Resent++
	}
	if it.awaitsResponse() && !it.counted {
		it.counted = true
		q.reads++
	}
	q.next = after
	if it.last.Less(after) {
		q.cursor++
	}
	if q.sent.Less(after) {
		q.sent = after
		if ask {
			q.timer.measure(now, psn)
		}
	}
	if !c.reliable() {
		c.finishUnreliable()
		return true
	}
	q.timer.run(now)
	return true
}

// mayStart reports whether the next packet, a packet of request it, may be sent. The window must be
// open, and the limit of Reads and the fences must allow it. [ROCE-REQ-5] [ROCE-REQ-6] [ROCE-REQ-7]
func (c *Connection) mayStart(it *item) bool {
	q := &c.req
	if !c.reliable() {
		return true
	}
	if q.next.Sub(q.oldest) >= q.window.size {
		return false
	}
	if it.r.Fence && q.next == it.first && q.unansweredBefore(q.cursor) {
		return false
	}
	return !it.awaitsResponse() || it.counted || q.reads < q.cfg.MaxReads
}

// unansweredBefore reports whether a Read or atomic operation before item i is incomplete.
func (q *requester) unansweredBefore(i int) bool {
	if q.reads == 0 {
		return false
	}
	for k := range i {
		if q.items.at(k).awaitsResponse() {
			return true
		}
	}
	return false
}

// finishUnreliable completes the requests of an unreliable connection whose last packet is in the
// output. [ROCE-UC-4]
func (c *Connection) finishUnreliable() {
	q := &c.req
	for q.cursor > 0 {
		it := q.items.pop()
		q.cursor--
		c.host.RequestDone(it.r, Completion{})
	}
	q.oldest = q.next
}

// sendPacket appends the packet psn of the request it to out. ask requests an acknowledgement. It
// returns false if the memory of the request is gone.
func (c *Connection) sendPacket(out *Output, it *item, psn ib.PSN, ask bool) bool {
	p := ib.Packet{BTH: ib.BTH{PKey: c.cfg.PKey, QPN: c.cfg.PeerQPN, PSN: psn, AckReq: ask && c.reliable()}}
	at := psn.Sub(it.first) * c.cfg.MTU
	n := 0
	switch it.kind {
	case ib.Read: // request the data that has not arrived [ROCE-REQ-14]
		p.Opcode = ib.ReadRequest
		p.RETH = ib.RETH{VA: it.r.Remote.VA + uint64(at), RKey: it.r.Remote.Key, Length: uint32(it.length - at)}
	case ib.Atomic:
		p.Opcode = ib.FetchAdd
		if it.r.Op == CompareSwap {
			p.Opcode = ib.CompareSwap
		}
		p.Atomic = ib.AtomicETH{VA: it.r.Remote.VA, RKey: it.r.Remote.Key, SwapAdd: it.r.SwapAdd, Compare: it.r.Compare}
	default:
		n = min(c.cfg.MTU, it.length-at)
		p.Opcode = it.opcode(psn == it.first, psn == it.last).On(c.cfg.Transport)
		p.RETH = ib.RETH{VA: it.r.Remote.VA, RKey: it.r.Remote.Key, Length: uint32(it.length)} // [ROCE-REQ-3]
		p.Imm, p.Inv = it.r.Imm, ib.IETH(it.r.Key)
		p.Solicited = it.r.Solicited && psn == it.last && (it.kind == ib.Send || it.r.HasImm) // [ROCE-REQ-8]
	}
	room := out.begin(&p, n)
	if n > 0 {
		if err := it.r.Buf.ReadAt(room, at); err != nil {
			it.broken = LocalProtection
			c.failBroken()
			return false
		}
	}
	out.end(netip.Addr{})
	c.count.SentPackets++
	return true
}

// opcode returns the opcode of a packet of a Send or RDMA Write, which may be the first or last of
// its message, or both. [ROCE-REQ-1]
func (it *item) opcode(first, last bool) ib.Opcode {
	imm, inv := it.r.HasImm, it.r.Op == SendInvalidate
	if it.kind == ib.Write {
		switch {
		case first && last && imm:
			return ib.WriteOnlyImm
		case first && last:
			return ib.WriteOnly
		case first:
			return ib.WriteFirst
		case last && imm:
			return ib.WriteLastImm
		case last:
			return ib.WriteLast
		}
		return ib.WriteMiddle
	}
	switch {
	case first && last && inv:
		return ib.SendOnlyInv
	case first && last && imm:
		return ib.SendOnlyImm
	case first && last:
		return ib.SendOnly
	case first:
		return ib.SendFirst
	case last && inv:
		return ib.SendLastInv
	case last && imm:
		return ib.SendLastImm
	case last:
		return ib.SendLast
	}
	return ib.SendMiddle
}

// failBroken fails the connection if the oldest request cannot be sent.
func (c *Connection) failBroken() {
	if c.req.items.len() > 0 {
		if s := c.req.items.at(0).broken; s != OK {
			c.fail(s)
		}
	}
}

// goBack makes the oldest unacknowledged packet the next one to send.
func (q *requester) goBack() {
	q.next, q.cursor, q.unasked = q.oldest, 0, 0
	q.timer.stop()
	q.timer.measuring = false // an acknowledgement could be for either transmission
}
