package fcvi

import (
	"viaduct/internal/fc"
	"viaduct/internal/wire/iu"
)

// request handles a frame of a message request. D1 to D8 are cases of the table in docs/fc-vi.md.
// [FCVI 8.4] [FCVI-5.2.1-8] [FCVI-5.3.5-3] [FCVI-5.2.5-2] [FCVI-8.4-11]
func (c *conn) request(now fc.Time, f *fc.Frame, h *iu.Header) {
	p := c.p
	if c.state == stResp2 || c.state == stRqst && c.sentResp2 {
		c.connected(now) // the peer sends messages only after RESP2 [FCVI-5.3.2-4] [FCVI-C-8]
	}
	if c.state != stConnected || c.up == nil || c.rx.failed != iu.Accepted { // [FCVI-8.2-2]
		p.stats.WrongState++
		return
	}
	if (h.Flags&iu.FlagRR != 0) != c.rr() || !messageTypes[h.Op].begin(c, h, len(f.Payload)) { // [FCVI-5.9.4-5]
		c.violation(now, h.MsgID)
		return
	}
	r := &c.rx
	if c.ordered() { // [FCVI-8.4-4] [FCVI-8.4-6]
		c.inOrder(now, f, h)
		return
	}
	switch ahead := h.MsgID - r.mexp; {
	case r.mexp.After(h.MsgID): // D1 [FCVI-8.4-2] [FCVI-3-2] [FCVI-B-4]
		if !c.proveAgain(f, h) {
			p.stats.LateFrames++
		}
	case ahead >= c.recvWindow(): // D8 [FCVI-8.4-9]
		p.stats.WindowFull++
		if c.reliable() {
			c.fail(now, iu.PortResources, r.mexp, true)
		}
	default: // a hole is not yet a loss [FCVI-8.4-10]
		c.take1(now, f, h, false)
	}
}

// inOrder is request for an ordered path.
func (c *conn) inOrder(now fc.Time, f *fc.Frame, h *iu.Header) {
	r, p := &c.rx, c.p
	switch {
	case r.front.After(h.MsgID): // D1, D4
		if !r.mexp.After(h.MsgID) || !c.proveAgain(f, h) {
			p.stats.LateFrames++
		}
		return
	case r.front-r.mexp >= c.recvWindow(): // too many messages wait for receive descriptors
		p.stats.WindowFull++
		if c.reliable() {
			c.fail(now, iu.NoRecvDesc, r.mexp, true)
		}
		return
	case h.MsgID == r.front:
		c.take1(now, f, h, true)
		return
	}
	// Mrcv is after Mexp, so a message, or the end of a message, was lost. [FCVI-8.4-6]
	// [FCVI-8.4-7]
	p.stats.Gaps++
	m := r.at(r.front)
	if c.reliable() {
		reason := iu.MsgLost
		if m.open {
			reason = iu.FrameLost
		}
		c.lost(now, m, reason, r.front)
		return
	}
	if m.open {
		p.stats.Discarded++ // [FCVI-3-3]
		r.reset(m)          // its receive descriptor serves the next message [FCVI-B-5]
	}
	r.stallAt = 0
	if f.Param != 0 && h.Op.HasData() {
		p.stats.Discarded++
		return // the frame is not the first of its message, so it is ignored
	}
	if r.mexp == r.front {
		r.mexp, r.front = h.MsgID, h.MsgID
	} else if !r.skip(h.MsgID, c.recvWindow()) {
		p.stats.WindowFull++
		return
	}
	c.take1(now, f, h, true)
}

// take1 adds a frame to its message, and delivers messages if the frame completes the next message.
func (c *conn) take1(now fc.Time, f *fc.Frame, h *iu.Header, inOrder bool) {
	r, p := &c.rx, c.p
	m := r.at(h.MsgID)
	if !m.open {
		r.reset(m)
		m.open, m.h, m.oxid, m.seq, m.class, m.end = true, *h, f.OXID, f.SeqID, f.Class(), -1
		m.rxid = p.rxid(f)
	} else if m.h != *h || m.oxid != f.OXID || m.seq != f.SeqID || m.class != f.Class() { // [FCVI-5.5-3] [FCVI-5.2.1-10] [FCVI-6.1-1] [FCFS-2.10-3]
		p.stats.Synonyms++ // [FCVI-5.6-1] [FCVI-5.6-2] [FCVI-5.9.1-5]
		return
	}
	if m.complete {
		p.stats.LateFrames++
		return
	}
	off, n := f.Param, uint32(len(f.Payload))
	if !h.Op.HasData() {
		off = 0
	}
	end := uint64(off) + uint64(n)
	limit := uint64(c.mts)
	if h.Op == iu.WriteRqst {
		limit = uint64(h.Total)
	}
	switch {
	case end > limit, f.Last() && h.Op == iu.WriteRqst && end != limit, m.end >= 0 && end > uint64(m.end),
		h.Total > c.mts && h.Op != iu.SendRqst:
		if h.Op == iu.SendRqst && end > limit || h.Op != iu.SendRqst && h.Total > c.mts {
			c.reject1(now, m, iu.TooLong)
		} else {
			c.violation(now, h.MsgID) // [FCVI-6.4-1]
		}
		return
	}
	res := m.got.add(off, n, inOrder) // [FCVI-8.4-3]
	if res == spanSeen && n == 0 && m.end < 0 && f.Last() {
		res = spanNew
	}
	switch res {
	case spanSeen: // D4 [FCVI-8.4-5]
		p.stats.LateFrames++
		return
	case spanHole: // D3 [FCVI-8.4-4]
		p.stats.Gaps++
		if c.reliable() {
			c.lost(now, m, iu.FrameLost, h.MsgID)
			return
		}
		p.stats.Discarded++ // [FCFS-2.10-5]
		r.reset(m)
		r.front++
		r.mexp = r.front
		r.stallAt = 0
		return
	case spanFull:
		c.reject1(now, m, iu.PortResources)
		return
	}
	if f.Last() {
		m.end = int64(end)
	}
	if !m.discard && !c.placeFrame(now, m, off, f.Payload) {
		return
	}
	if m.end >= 0 && m.got.covers(uint32(m.end)) {
		m.complete = true
		if h.MsgID == r.front {
			for s := r.at(r.front); s.complete && s.h.MsgID == r.front; s = r.at(r.front) {
				r.front++
			}
		}
	}
	c.stall(now, m)
	switch {
	case h.MsgID != r.mexp:
	case m.complete:
		c.deliver(now)
	case uint32(end) == m.got.next() && !m.held && !m.discard:
		c.follow(now, f, false)
	}
}

// lost breaks a reliable connection because of a hole in the request stream. The received part of
// the current message is reported as partial. [FCVI-8.4-4] [FCVI-3-4] [VIA-4.5-3]
func (c *conn) lost(now fc.Time, m *rxMsg, reason iu.Reason, id iu.MsgID) {
	c.partial(m)
	c.fail(now, reason, id, true)
}

// partial reports the incomplete message m to the consumer. Without any arrived frame of m, partial
// does nothing.
func (c *conn) partial(m *rxMsg) {
	if !m.open {
		return
	}
	if t := &messageTypes[m.h.Op]; t.fail != nil {
		t.fail(c, m)
	}
}

// stall sets the time when an incomplete stream counts as broken: T_GAP after the last frame of the
// expected message, or after the first frame beyond that message. [FCVI-8.4-10]
func (c *conn) stall(now fc.Time, m *rxMsg) {
	r := &c.rx
	if m.complete && m.h.MsgID == r.mexp {
		r.stallAt = 0
		return // deliver looks for later messages
	}
	if m.h.MsgID == r.mexp || r.stallAt == 0 {
		r.stallAt = now + c.gap()
	}
	if !r.timer.Active() {
		r.timer.Set(r.stallAt)
	}
}

// gapExpired runs when a gap may have existed for T_GAP.
func (c *conn) gapExpired(now fc.Time) {
	r, p := &c.rx, c.p
	if r.stallAt == 0 || c.state != stConnected || c.up == nil || r.waiting {
		return
	}
	if now < r.stallAt {
		r.timer.Set(r.stallAt)
		return
	}
	p.stats.Gaps++
	m := r.at(r.mexp)
	if c.reliable() { // [FCVI-B-1] [FCVI-B-2] [FCVI-B-3]
		reason := iu.MsgLost
		if m.open {
			reason = iu.FrameLost
		}
		c.lost(now, m, reason, r.mexp)
		return
	}
	// At Unreliable Delivery the stream continues with the oldest complete message, or otherwise
	// with the oldest message that has begun.
	r.stallAt = 0
	next := r.mexp + 1
	if m.open {
		p.stats.Discarded++
		r.reset(m)
	}
	for id := r.mexp + 1; id-r.mexp < c.recvWindow(); id++ {
		if r.ahead(id) != nil {
			next = id
			break
		}
	}
	r.mexp = next
	if r.front-r.mexp >= c.recvWindow() {
		r.front = r.mexp
	}
	c.deliver(now)
	p.pump(now)
}

// abortedMessage handles an ABTS for an incomplete message. It returns true if a message or an
// answer of this connection has the Exchange.
func (c *conn) abortedMessage(now fc.Time, oxid uint16) bool {
	if c.state != stConnected || c.up == nil {
		return false
	}
	for i := range c.tx.answers.len() {
		if c.tx.answers.at(i).oxid == oxid {
			return true
		}
	}
	r := &c.rx
	for i := range r.win {
		m := &r.win[i]
		if !m.open || m.oxid != oxid {
			continue
		}
		if !c.reliable() && !m.complete {
			c.p.stats.Discarded++
			id := m.h.MsgID
			r.reset(m)
			if id == r.mexp && id == r.front {
				r.mexp++
				r.front++
			}
		}
		return true
	}
	return false
}
