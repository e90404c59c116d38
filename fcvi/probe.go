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

// A proof records the sent messages known to be delivered, and sends the probes.
type proof struct {
	*shared
	timer *fc.Timer
	last  fc.Time  // time at which the last message was sent
	owed  bool     // the delivery of the last message sent is not proved
	upTo  iu.MsgID // id of the last message sent
	want  bool     // a probe must be sent before the next message
	sent  bool     // a probe is outstanding
	id    iu.MsgID
	oxid  uint16
}

// owe records the sent message id, whose frames are not acknowledged.
func (p *proof) owe(now fc.Time, id iu.MsgID) {
	if p.probes() && p.class != fc.Class2 {
		p.owed, p.upTo, p.last = true, id, now
		if !p.timer.Active() {
			p.timer.Set(now + p.p.np.EDTOV())
		}
	}
}

// due runs when E_D_TOV may have passed since the last frame was sent. It repeats an outstanding
// probe, or requests one.
func (p *proof) due(now fc.Time) {
	at := p.last + p.p.np.EDTOV()
	switch {
	case !p.owed && !p.sent:
		return
	case p.sent && p.class == fc.Class2: // the N_Port repeats the frame until it is acknowledged
	case p.sent:
		if p.p.room(p.remote.Addr) > 0 { // otherwise frames still wait in the queue of the link
			p.send(now)
		}
	case now < at:
		p.timer.Set(at)
		return
	default:
		p.request()
	}
	p.timer.Set(now + p.p.np.EDTOV())
}

// request makes the sender send a probe before the next message.
func (p *proof) request() {
	p.want = true
	p.wake()
}

// open sends a probe with message id on Exchange ox.
func (p *proof) open(now fc.Time, id iu.MsgID, ox uint16) {
	p.want, p.owed, p.sent, p.id, p.oxid = false, false, true, id, ox
	if !p.timer.Active() {
		p.timer.Set(now + p.p.np.EDTOV())
	}
	p.send(now)
}

func (p *proof) send(now fc.Time) {
	h := iu.Header{Handle: p.rHandle, Op: iu.ReadRqst, MsgID: p.id, Flags: iu.FlagRspRqd}
	if p.rr() {
		h.Flags |= iu.FlagRR
	}
	p.p.sendIU(now, p.remote, p.class, &h, iu.Use{Last: true, Answered: true}, p.oxid, fc.Unassigned, 0, nil)
}

// proved records the answer of request q, and so the delivery of every earlier message.
func (p *proof) proved(q *pending) {
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

// openProbe sends a probe as the next request of the stream. It returns false, without sending, if
// a probe or too many requests are outstanding, or no Exchange is free.
func (t *sender) openProbe(now fc.Time) bool {
	if t.proof.sent || t.resp.reads >= max(1, int(t.rattrs.MaxReads)) || t.resp.pending.len() >= t.sendWindow() {
		return false
	}
	ox, ok := t.newExchange()
	if !ok {
		return false
	}
	id := t.nextID
	t.nextID++
	t.resp.add(now, &work{op: iu.ReadRqst}, id, ox, true).probe = true
	t.unasked, t.unaskedBytes = 0, 0
	t.proof.open(now, id, ox)
	return true
}

// isProbe reports whether h is the header of a probe.
func isProbe(h *iu.Header) bool {
	return h.Op == iu.ReadRqst && h.Total == 0 && h.RmtHandle == 0 && h.RmtVA == 0
}
