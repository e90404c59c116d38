package fcvi

import (
	"viaduct/internal/fc"
	"viaduct/internal/wire/iu"
)

// A probe detects the loss of the last message. Without a probe no later frame would reveal the
// loss: at Reliable Delivery a Send or Write has no answer, and at Reliable Reception an answer may
// take long. A probe is a READ_RQST of zero bytes and no region. The answer proves the delivery of
// all messages before the probe. The receiver detects a gap before the probe like any other gap,
// and the sender detects a gap before the answer. The probe is sent E_D_TOV after the last
// unanswered message, and again after each E_D_TOV until answered. Repeating the probe is safe
// because no data is carried.

// A proof records the sent messages known to be delivered.
type proof struct {
	timer *fc.Timer
	last  fc.Time  // time at which the last message was sent
	owed  bool     // the delivery of the last message sent is not proved
	upTo  iu.MsgID // id of the last message sent
	want  bool     // a probe must be sent before the next message
	sent  bool     // a probe is outstanding
	id    iu.MsgID
	oxid  uint16
}

// isProbe reports whether h is the header of a probe.
func isProbe(h *iu.Header) bool {
	return h.Op == iu.ReadRqst && h.Total == 0 && h.RmtHandle == 0 && h.RmtVA == 0
}

// owe records a sent message whose frames are not acknowledged.
func (c *conn) owe(now fc.Time) {
	if p := &c.tx.proof; c.probes() && c.class != fc.Class2 {
		p.owed, p.upTo, p.last = true, c.tx.curID, now
		if !p.timer.Active() {
			p.timer.Set(now + c.p.np.EDTOV())
		}
	}
}

// proofDue runs when E_D_TOV may have passed since the last frame was sent.
func (c *conn) proofDue(now fc.Time) {
	p := &c.tx.proof
	if c.state != stConnected || c.up == nil || !p.owed && !p.sent {
		return
	}
	at := p.last + c.p.np.EDTOV()
	switch {
	case p.sent && c.class == fc.Class2: // the N_Port repeats the frame until it is acknowledged
	case p.sent:
		if c.p.room(c.remote.Addr) > 0 { // otherwise frames still wait in the queue of the link
			c.sendProbe(now)
		}
	case now < at:
		p.timer.Set(at)
		return
	default:
		p.want = true
		c.p.activate(c)
	}
	p.timer.Set(now + c.p.np.EDTOV())
	c.p.pump(now)
}

// openProbe sends a probe as the next request of the stream. It returns false, without sending, if
// a probe or too many requests are outstanding, or no Exchange is free.
func (c *conn) openProbe(now fc.Time) bool {
	t, p := &c.tx, &c.tx.proof
	if p.sent || t.reads >= max(1, int(c.rattrs.MaxReads)) || t.pending.len() >= c.sendWindow() {
		return false
	}
	ox, ok := c.p.oxids.alloc(c)
	if !ok {
		return false
	}
	p.want, p.owed, p.sent, p.id, p.oxid = false, false, true, t.nextID, ox
	t.nextID++
	q := t.pending.push(pending{id: p.id, oxid: ox, rxid: fc.Unassigned, asked: true, probe: true, end: -1, since: now})
	q.w.op = iu.ReadRqst
	t.reads++
	t.unasked, t.unaskedBytes = 0, 0
	c.armResponses(now)
	if !p.timer.Active() {
		p.timer.Set(now + c.p.np.EDTOV())
	}
	c.sendProbe(now)
	return true
}

func (c *conn) sendProbe(now fc.Time) {
	p := &c.tx.proof
	h := iu.Header{Handle: c.rHandle, Op: iu.ReadRqst, MsgID: p.id, Flags: iu.FlagRspRqd}
	if c.rr() {
		h.Flags |= iu.FlagRR
	}
	c.p.sendIU(now, c.remote, c.class, &h, iu.Use{Last: true, Answered: true}, p.oxid, fc.Unassigned, 0, nil)
}

// proved records the answer of request q, and so the delivery of every earlier message.
func (c *conn) proved(q *pending) {
	p := &c.tx.proof
	if p.owed && !p.upTo.After(q.id) {
		p.owed, p.want = false, false
	}
	if q.probe && p.id == q.id {
		p.sent = false
		if !p.owed {
			p.timer.Stop()
		}
	}
}

// proveAgain answers a repeated probe. It returns false if the frame is no probe, or if an answer
// is still queued. Every message before the probe was delivered; only the answer was lost.
func (c *conn) proveAgain(f *fc.Frame, h *iu.Header) bool {
	if !isProbe(h) || h.Flags&iu.FlagRspRqd == 0 || c.tx.answers.len() > 0 {
		return false
	}
	c.answer(answer{op: iu.ReadResp, id: h.MsgID, oxid: f.OXID, rxid: c.p.rxid(f), probe: true})
	return true
}
