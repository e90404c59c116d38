package fcvi

import (
	"slices"

	"viaduct/internal/fc"
	"viaduct/internal/wire/iu"
	"viaduct/vi"
)

// A pending is a request of this side without a complete response.
type pending struct {
	w        work
	id       iu.MsgID
	oxid     uint16
	rxid     uint16
	asked    bool // the request asked for a response
	probe    bool // the request is a probe, not a descriptor of a consumer
	done     bool // the answer has arrived, but an earlier one is missing
	bad      vi.Status
	reason   iu.Reason
	got      spans // parts of the READ_RESP that have arrived
	end      int64 // length of the READ_RESP, or -1 if it is not known
	since    fc.Time
	started  bool    // frames of the READ_RESP have arrived
	progress fc.Time // time of the last frame of the READ_RESP
}

// response handles a frame of a message response. [FCVI-5.2.5-2]
func (c *conn) response(now fc.Time, f *fc.Frame, h *iu.Header) {
	p, t := c.p, &c.tx
	if c.state != stConnected || c.up == nil { // [FCVI-8.2-2]
		p.stats.WrongState++
		return
	}
	if !t.nextID.After(h.MsgID) { // the request was never sent [FCVI-8.4-13]
		c.fail(now, iu.UnexpectedResp, h.MsgID, true)
		return
	}
	if t.pending.len() == 0 {
		p.stats.LateFrames++
		return
	}
	// At Reliable Reception every message is pending; at the other levels only Reads are.
	i := int(h.MsgID - t.pending.at(0).id)
	if i >= t.pending.len() || t.pending.at(i).id != h.MsgID {
		i = slices.IndexFunc(t.pending.all(), func(q pending) bool { return q.id == h.MsgID })
		if i < 0 {
			i = t.pending.len()
		}
	}
	if i == t.pending.len() {
		if t.busy && h.MsgID == t.curID {
			c.fail(now, iu.UnexpectedResp, h.MsgID, true)
			return
		}
		p.stats.LateFrames++
		return
	}
	q := t.pending.at(i)
	if q.w.op.Response() != h.Op || f.OXID != q.oxid && q.asked {
		p.stats.Synonyms++
		return
	}
	if q.done {
		p.stats.LateFrames++
		return
	}
	q.rxid = f.RXID
	if h.Flags&iu.FlagErr != 0 {
		q.reason = h.Status().Reason.Known()
		q.bad = descriptorStatus(q.reason) // [VIA-4.5-6]
		q.done = true
	} else if h.Op == iu.ReadResp {
		if !c.readData(now, f, q, i) {
			return
		}
	} else {
		if len(f.Payload) != 0 {
			c.violation(now, h.MsgID)
			return
		}
		q.done = true
	}
	if h.Flags&iu.FlagCum != 0 && !(h.Flags&iu.FlagErr != 0) { // [FCVI-E-3]
		for k := range i {
			if e := t.pending.at(k); e.w.op != iu.ReadRqst {
				e.done = true
			}
		}
	}
	if q.done {
		if h.Flags&iu.FlagErr != 0 {
			for k := range i { // requests before a reported error have succeeded [FCVI-E-4]
				if e := t.pending.at(k); !e.asked {
					e.done = true
				}
			}
		}
		if !c.firstAnswered() {
			if c.ordered() {
				p.stats.Gaps++
				c.loseResponse(now, iu.MsgLost)
				return
			}
			if t.respGap == 0 {
				t.respGap = now + c.gap()
			}
		}
	}
	c.retire(now)
}

func (c *conn) firstAnswered() bool { return c.tx.pending.at(0).done }

// readData places a frame of a READ_RESP, the answer to pending request q at index i. It returns
// false if the frame was ignored or the connection has ended.
func (c *conn) readData(now fc.Time, f *fc.Frame, q *pending, i int) bool {
	p := c.p
	off, n := f.Param, uint32(len(f.Payload))
	if uint64(off)+uint64(n) > uint64(q.w.n) || f.Last() && off+n != q.w.n { // [FCVI-6.7-1]
		c.violation(now, q.id)
		return false
	}
	switch q.got.add(off, n, c.ordered()) {
	case spanSeen:
		if n > 0 || q.end >= 0 {
			p.stats.LateFrames++
			return false
		}
	case spanHole:
		p.stats.Gaps++
		q.bad = 0
		if i == 0 {
			c.loseResponse(now, iu.FrameLost)
		} else {
			c.loseResponse(now, iu.MsgLost)
		}
		return false
	case spanFull:
		c.fail(now, iu.PortResources, q.id, true)
		return false
	}
	q.started, q.progress, c.tx.heard = true, now, now
	if n > 0 {
		if bad := c.up.scatterRead(&q.w, off, f.Payload); bad != 0 {
			q.bad, q.reason, q.done = bad, iu.PortInternal, true // [VIA-4.6-15]
			return true
		}
		p.stats.PlacedBytes += uint64(n)
		c.traffic.ReceivedBytes += uint64(n)
	}
	if f.Last() {
		q.end = int64(off + n)
	}
	q.done = q.end >= 0 && q.got.covers(uint32(q.end)) // [FCVI-5.2.4-4] [VIA-4.5-5]
	if i == 0 && off+n == q.got.next() && !q.done {
		c.follow(now, f, true)
	}
	return true
}

// retire completes answered requests, beginning with the oldest.
func (c *conn) retire(now fc.Time) {
	t, p := &c.tx, c.p
	n := 0
	for n < t.pending.len() && t.pending.at(n).done {
		q := t.pending.at(n)
		n++
		t.unproven -= int64(q.w.n)
		if c.class == fc.Class2 { // an answer proves that unacknowledged frames have arrived
			c.dropAck(q.oxid)
			p.np.Forget(now, c.remote, q.oxid)
			p.oxids.release(q.oxid)
		} else if q.asked {
			p.oxids.release(q.oxid)
		}
		if q.w.op == iu.ReadRqst {
			t.reads--
		}
		c.proved(q)
		if !q.probe {
			c.up.finish(&q.w, q.bad)
		}
		if q.bad != 0 { // [FCVI-5.2.2-9] [FCVI-E-4]
			id, reason := q.id, q.reason
			c.breakNow(now, true)
			c.setState(stError)
			c.sendDisconnect(now, reason, id, true)
			return
		}
	}
	if n > 0 {
		t.pending.drop(n)
		t.respGap, t.heard = 0, now
		for i := range t.pending.len() {
			if t.pending.at(i).done {
				t.respGap = now + c.gap()
				break
			}
		}
		p.activate(c)
		if c.drained(now) {
			return
		}
	}
	c.armResponses(now)
}

// failedAt handles the peer's report that message id failed, which proves that the requests before
// it were delivered. It returns true if a descriptor was completed with the error. [FCVI-E-4]
func (c *conn) failedAt(now fc.Time, id iu.MsgID, reason iu.Reason) bool {
	t := &c.tx
	told := false
	for t.pending.len() > 0 {
		q := t.pending.at(0)
		switch {
		case q.id == id && !q.probe:
			c.up.finish(&q.w, descriptorStatus(reason))
			told = true
		case id.After(q.id) && q.w.op != iu.ReadRqst && reason.Class() == iu.DescriptorError:
			c.up.finish(&q.w, 0)
			t.pending.drop(1)
			continue
		}
		break
	}
	return told
}

// abortPending sends ABTS for the open Exchanges of all messages. [FCVI-8.4-16]
func (c *conn) abortPending(now fc.Time) {
	t, p := &c.tx, c.p
	if c.remote == nil || !c.remote.LoggedIn() {
		return
	}
	if t.busy && !t.stream {
		p.oxids.abort(now, c.remote, c.class, t.oxid, fc.Unassigned)
		t.busy = false
	}
	for i := range t.pending.len() {
		if q := t.pending.at(i); q.asked && !q.done {
			p.oxids.abort(now, c.remote, c.class, q.oxid, q.rxid)
		}
	}
	t.pending.truncate(0)
}

// armResponses sets the timer of the response stream. The oldest request has FCVI_ULP_TIMEOUT,
// counted from sending or from the last progress of the stream. A response that has begun, and a
// gap, have T_GAP. [FCVI-8.4-12] [FCVI-8.4-14]
func (c *conn) armResponses(now fc.Time) {
	t := &c.tx
	if t.stopped || t.pending.len() == 0 {
		t.timer.Stop()
		return
	}
	at := c.responsesDue()
	if !t.timer.Active() || t.timer.At() > at {
		t.timer.Set(at)
	}
}

func (c *conn) responsesDue() fc.Time {
	t := &c.tx
	q := t.pending.at(0)
	at := max(q.since, t.heard) + c.p.ulpTimeout()
	if q.started && !q.done {
		at = min(at, q.progress+c.gap())
	}
	if t.respGap != 0 {
		at = min(at, t.respGap)
	}
	return at
}

func (c *conn) respExpired(now fc.Time) {
	t := &c.tx
	if c.state != stConnected || t.pending.len() == 0 {
		return
	}
	if at := c.responsesDue(); now < at {
		t.timer.Set(at)
		return
	}
	q := t.pending.at(0)
	reason := iu.RespTimeout
	switch {
	case q.started && !q.done && now >= q.progress+c.gap():
		reason = iu.FrameLost
	case t.respGap != 0 && now >= t.respGap:
		reason = iu.MsgLost
	}
	c.p.stats.Gaps++
	c.loseResponse(now, reason)
}

// loseResponse breaks the connection because the oldest response was lost.
func (c *conn) loseResponse(now fc.Time, reason iu.Reason) {
	t := &c.tx
	q := *t.pending.at(0)
	if !q.probe {
		c.up.finish(&q.w, vi.StatusTransportError)
	}
	c.breakNow(now, !q.probe)
	c.setState(stError)
	c.sendDisconnect(now, reason, q.id, true)
}
