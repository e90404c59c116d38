package fcvi

import (
	"viaduct/internal/fc"
	"viaduct/internal/wire/iu"
	"viaduct/vi"
)

// deliver completes messages in MSG_ID order as far as they are here. What a
// message does is seen after what those before it did. [FCVI-8.4-11] [FCVI-3-5]
// [VIA-4.4-2]
func (c *conn) deliver(now fc.Time) {
	r := &c.rx
	for c.state == stConnected && c.up != nil {
		m := r.at(r.mexp)
		if !m.open || !m.complete {
			break
		}
		if !m.discard && !c.deliverOne(now, m) {
			return
		}
		if c.up == nil {
			return
		}
		r.reset(m)
		r.mexp++
		if r.mexp.After(r.front) {
			r.front = r.mexp
		}
	}
	if c.state != stConnected || c.up == nil {
		return
	}
	if c.late != nil && !c.late.before.After(r.mexp) {
		c.disconnectNow(now)
		return
	}
	// Is there anything beyond a hole, or a message that has begun?
	r.stallAt = 0
	for id := r.mexp; int(id-r.mexp) < len(r.win); id++ {
		if r.ahead(id) != nil {
			r.stallAt = now + c.gap()
			if !r.timer.Active() {
				r.timer.Set(r.stallAt)
			}
			break
		}
		if c.ordered() && id == r.front {
			break
		}
	}
}

// deliverOne completes the message at mexp. It reports false if the message
// has to wait or the connection ended.
func (c *conn) deliverOne(now fc.Time, m *rxMsg) bool {
	p := c.p
	n := uint32(m.end)
	d := vi.Delivery{Length: n, Immediate: m.h.Flags&iu.FlagImm != 0, Data: m.h.Param}
	if !d.Immediate {
		d.Data = 0
	}
	switch m.h.Op {
	case iu.SendRqst:
		if !m.taken {
			if !c.takeRecv(now, m) {
				return c.up != nil && m.discard
			}
			if m.held && !c.scatter(now, m, 0, m.buf[:n]) {
				return c.up != nil && m.discard
			}
		}
		c.rx.haveRecv = false
		c.up.finishRecv(d) // [FCVI-5.2.2-4]
	case iu.WriteRqst:
		if m.held {
			c.placeWrite(m, 0, m.buf[:n])
			m.held = false
			c.rx.hold -= len(m.buf)
			m.buf = m.buf[:0]
		}
		if m.bad != 0 {
			return c.writeError(now, m, d)
		}
		if d.Immediate { // [FCVI-5.2.3-2] [VIA-4.2-2]
			if !m.taken && !c.takeRecv(now, m) { // [VIA-4.6-18]
				return c.up != nil && m.discard
			}
			d.RemoteWrite = true
			c.rx.haveRecv = false
			c.up.finishRecv(d) // [VIA-4.2-3] [VIA-4.2-4]
		}
	case iu.ReadRqst:
		return c.serveRead(now, m) // [VIA-4.4-3]
	}
	p.stats.DeliveredMessages++
	c.traffic.ReceivedMessages++
	if c.up == nil {
		return false
	}
	if c.rr() { // [FCVI-5.1-9] [FCVI-5.2.2-2] [FCVI-5.2.2-3] [FCVI-5.2.2-5]
		if m.h.Flags&iu.FlagRspRqd == 0 {
			c.rx.unasked = true
			return true
		}
		a := answer{op: m.h.Op.Response(), id: m.h.MsgID, oxid: m.oxid, rxid: m.rxid}
		if c.rx.unasked { // [FCVI-E-3]
			a.flags |= iu.FlagCum
			c.rx.unasked = false
		}
		c.answer(a)
	}
	return true
}

// writeError reports an RDMA Write whose target failed the check: in the
// receive descriptor it would have consumed, or asynchronously.
func (c *conn) writeError(now fc.Time, m *rxMsg, d vi.Delivery) bool {
	if d.Immediate && (m.taken || c.takeRecv(now, m)) {
		d.RemoteWrite, d.Length, d.Status = true, 0, vi.StatusRDMAProtection // [VIA-4.6-9] [VIA-5.2-10]
		c.rx.haveRecv = false
		c.up.finishRecv(d)
	} else if c.up != nil {
		c.rx.waiting = false                          // nothing is left to wait for
		c.up.async(vi.ErrorRDMAWProt, vi.OpRDMAWrite) // [VIA-4.6-8] [VIA-5.2-6]
	}
	if c.up == nil {
		return false
	}
	if !c.reliable() {
		c.p.stats.Discarded++
		return true
	}
	c.reject1(now, m, m.bad)
	return false
}

// reject1 deals with a message that cannot be delivered: dropped at Unreliable
// Delivery, told by DISCONNECT_RQST at Reliable Delivery, by an ERR response
// at Reliable Reception and for Reads. [FCVI-5.2.2-6] [FCVI-5.2.2-7] [FCVI-5.2.2-8]
func (c *conn) reject1(now fc.Time, m *rxMsg, reason iu.Reason) {
	r := &c.rx
	if !c.reliable() { // [VIA-4.5-2] [VIA-8.3-10]
		c.p.stats.Discarded++
		m.discard = true
		if m.held {
			r.hold -= len(m.buf)
			m.held, m.buf = false, nil
		}
		if m.end >= 0 && m.got.covers(uint32(m.end)) && !m.complete {
			m.complete = true
			if m.h.MsgID == r.front {
				r.front++
			}
			if m.h.MsgID == r.mexp {
				c.deliver(now)
			}
		}
		return
	}
	if (c.rr() || m.h.Op == iu.ReadRqst) && m.h.Flags&iu.FlagRspRqd != 0 && m.h.MsgID == r.mexp {
		c.answerError(now, m, reason)
		return
	}
	c.fail(now, reason, m.h.MsgID, true)
}
