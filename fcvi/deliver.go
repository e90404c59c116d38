package fcvi

import (
	"viaduct/internal/fc"
	"viaduct/internal/wire/iu"
	"viaduct/vi"
)

// deliver completes arrived messages in MSG_ID order, so that the consumer sees the effects of
// messages in that order. [FCVI-8.4-11] [FCVI-3-5] [VIA-4.4-2]
func (r *receiver) deliver(now fc.Time) *failure {
	for r.up != nil {
		m := r.at(r.mexp)
		if m.stage != complete {
			break
		}
		if !m.discard {
			if ok, fail := r.deliverOne(now, m); !ok {
				return fail
			}
		}
		r.reset(m)
		r.mexp++
		if r.mexp.After(r.front) {
			r.front = r.mexp
		}
	}
	if r.up == nil || r.finished() {
		return nil
	}
	// The timer is needed if there is a message after a hole, or a message that has begun.
	r.stallAt = 0
	for id := r.mexp; int(id-r.mexp) < len(r.win); id++ {
		if r.ahead(id) != nil {
			r.stallAt = now + r.gap()
			if !r.timer.Active() {
				r.timer.Set(r.stallAt)
			}
			break
		}
		if r.ordered() && id == r.front {
			break
		}
	}
	return nil
}

// deliverOne completes the message at mexp. It returns false if the message must wait or the
// connection ends.
func (r *receiver) deliverOne(now fc.Time, m *rxMsg) (bool, *failure) {
	p := r.p
	d := vi.Delivery{Length: uint32(m.end), Immediate: m.h.Flags&iu.FlagImm != 0, Data: m.h.Param}
	if !d.Immediate {
		d.Data = 0
	}
	t := &messageTypes[m.h.Op]
	if ok, fail := t.end(r, now, m, d); !ok || t.answers {
		return ok, fail
	}
	p.stats.DeliveredMessages++
	r.traffic.ReceivedMessages++
	if r.up == nil {
		return false, nil
	}
	if r.rr() { // [FCVI-5.1-9] [FCVI-5.2.2-2] [FCVI-5.2.2-3] [FCVI-5.2.2-5]
		if m.h.Flags&iu.FlagRspRqd == 0 {
			r.unasked = true
			return true, nil
		}
		a := answer{op: m.h.Op.Response(), id: m.h.MsgID, oxid: m.oxid, rxid: m.rxid}
		if r.unasked { // [FCVI-E-3]
			a.flags |= iu.FlagCum
			r.unasked = false
		}
		r.answers.add(a)
	}
	return true, nil
}

// reject handles an undeliverable message. Unreliable Delivery drops the message, at Reliable
// Delivery DISCONNECT_RQST reports the failure, and at Reliable Reception and for Reads an ERR
// response does. [FCVI-5.2.2-6] [FCVI-5.2.2-7] [FCVI-5.2.2-8]
func (r *receiver) reject(now fc.Time, m *rxMsg, reason iu.Reason) *failure {
	if !r.reliable() { // [VIA-4.5-2] [VIA-8.3-10]
		r.p.stats.Discarded++
		m.discard = true
		r.hold -= len(m.buf)
		m.held, m.buf = false, nil
		if m.got.covers(uint32(m.end)) && m.stage != complete {
			m.stage = complete
			if m.h.MsgID == r.front {
				r.front++
			}
			if m.h.MsgID == r.mexp {
				return r.deliver(now)
			}
		}
		return nil
	}
	if (r.rr() || m.h.Op == iu.ReadRqst) && m.h.Flags&iu.FlagRspRqd != 0 && m.h.MsgID == r.mexp {
		return r.answers.refuse(m, reason)
	}
	return &failure{reason: reason, msg: m.h.MsgID, named: true}
}
