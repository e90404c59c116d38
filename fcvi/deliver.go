package fcvi

import (
	"viaduct/internal/fc"
	"viaduct/internal/wire/iu"
	"viaduct/vi"
)

// deliver completes arrived messages in MSG_ID order, so that the consumer sees the effects of
// messages in that order. [FCVI-8.4-11] [FCVI-3-5] [VIA-4.4-2]
func (c *conn) deliver(now fc.Time) {
	r := &c.rx
	for c.state == stConnected && c.up != nil {
		m := r.at(r.mexp)
		if !m.complete {
			break
		}
		if !m.discard && !c.deliverOne(now, m) {
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
	// The timer is needed if there is a message after a hole, or a message that has begun.
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

// deliverOne completes the message at mexp. It returns false if the message must wait or the
// connection has ended.
func (c *conn) deliverOne(now fc.Time, m *rxMsg) bool {
	p := c.p
	d := vi.Delivery{Length: uint32(m.end), Immediate: m.h.Flags&iu.FlagImm != 0, Data: m.h.Param}
	if !d.Immediate {
		d.Data = 0
	}
	if t := &messageTypes[m.h.Op]; !t.end(c, now, m, d) {
		return false
	} else if t.answers {
		return true
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

// reject1 handles an undeliverable message. Unreliable Delivery drops the message, at Reliable
// Delivery DISCONNECT_RQST reports the failure, and at Reliable Reception and for Reads an ERR
// response does. [FCVI-5.2.2-6] [FCVI-5.2.2-7] [FCVI-5.2.2-8]
func (c *conn) reject1(now fc.Time, m *rxMsg, reason iu.Reason) {
	r := &c.rx
	if !c.reliable() { // [VIA-4.5-2] [VIA-8.3-10]
		c.p.stats.Discarded++
		m.discard = true
		r.hold -= len(m.buf)
		m.held, m.buf = false, nil
		if m.got.covers(uint32(m.end)) && !m.complete {
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
