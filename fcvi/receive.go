package fcvi

import (
	"viaduct/internal/fc"
	"viaduct/internal/wire/iu"
)

// A receiver has the request stream of the peer: it places the bytes of messages, delivers the
// messages in order, and queues their answers. It takes arriving frames, posted receive descriptors
// and time, and returns the failure that ends the connection, if there is one. [FCVI-5.2.5-1]
type receiver struct {
	*shared
	answers *answers
	rxWindow
	timer    *fc.Timer
	stallAt  fc.Time // time at which missing frames count as lost, or 0 if none are missing
	waiting  bool    // the message at mexp waits for a receive descriptor
	capacity uint64  // capacity of the current receive descriptor
	haveRecv bool    // a receive descriptor was taken and is not completed
	unasked  bool    // delivered messages have not been answered, because they requested no response
	failed   iu.Reason
	failedID iu.MsgID
	closing  bool     // the peer has disconnected, after sending the messages before closeAt
	closeAt  iu.MsgID // id of the first message that will not arrive
}

// finished reports whether all messages of a peer that has disconnected are delivered.
func (r *receiver) finished() bool { return r.closing && !r.closeAt.After(r.mexp) }

// abandon drops the incomplete messages when the connection ends.
func (r *receiver) abandon() {
	r.win, r.hold, r.waiting = nil, 0, false
}

// request handles a frame of a message request. more reports whether Take may place the frames that
// continue f. D1 to D8 are cases of the table in docs/fc-vi.md.
// [FCVI 8.4] [FCVI-5.2.1-8] [FCVI-5.3.5-3] [FCVI-5.2.5-2] [FCVI-8.4-11]
func (r *receiver) request(now fc.Time, f *fc.Frame, h *iu.Header) (more bool, fail *failure) {
	p := r.p
	if r.failed != iu.Accepted {
		p.stats.WrongState++
		return false, nil
	}
	if (h.Flags&iu.FlagRR != 0) != r.rr() || !messageTypes[h.Op].begin(r, h, len(f.Payload)) { // [FCVI-5.9.4-5]
		return false, r.violation(h.MsgID)
	}
	if r.ordered() { // [FCVI-8.4-4] [FCVI-8.4-6]
		return r.inOrder(now, f, h)
	}
	switch ahead := h.MsgID - r.mexp; {
	case r.mexp.After(h.MsgID): // D1 [FCVI-8.4-2] [FCVI-3-2] [FCVI-B-4]
		if !r.answers.proveAgain(f, h) {
			p.stats.LateFrames++
		}
	case ahead >= r.recvWindow(): // D8 [FCVI-8.4-9]
		p.stats.WindowFull++
		if r.reliable() {
			fail = &failure{reason: iu.PortResources, msg: r.mexp, named: true}
		}
	default: // a hole is not yet a loss [FCVI-8.4-10]
		return r.addFrame(now, f, h, false)
	}
	return false, fail
}

// inOrder is request for an ordered path.
func (r *receiver) inOrder(now fc.Time, f *fc.Frame, h *iu.Header) (more bool, fail *failure) {
	p := r.p
	switch {
	case r.front.After(h.MsgID): // D1, D4
		if !r.mexp.After(h.MsgID) || !r.answers.proveAgain(f, h) {
			p.stats.LateFrames++
		}
		return false, nil
	case r.front-r.mexp >= r.recvWindow(): // too many messages wait for receive descriptors
		p.stats.WindowFull++
		if r.reliable() {
			fail = &failure{reason: iu.NoRecvDesc, msg: r.mexp, named: true}
		}
		return false, fail
	case h.MsgID == r.front:
		return r.addFrame(now, f, h, true)
	}
	// Mrcv is after Mexp, so a message, or the end of a message, was lost. [FCVI-8.4-6]
	// [FCVI-8.4-7]
	p.stats.Gaps++
	m := r.at(r.front)
	if r.reliable() {
		return false, r.lost(m, m.lostAs(), r.front)
	}
	if m.stage != absent {
		p.stats.Discarded++ // [FCVI-3-3]
		r.reset(m)          // its receive descriptor serves the next message [FCVI-B-5]
	}
	r.stallAt = 0
	if f.Param != 0 && h.Op.HasData() {
		p.stats.Discarded++
		return false, nil // the frame is not the first of its message, so it is ignored
	}
	if r.mexp == r.front {
		r.mexp, r.front = h.MsgID, h.MsgID
	} else if !r.skip(h.MsgID, r.recvWindow()) {
		p.stats.WindowFull++
		return false, nil
	}
	return r.addFrame(now, f, h, true)
}

// addFrame adds a frame to its message, and delivers messages if the frame completes the next message.
// more has the same meaning as for request.
func (r *receiver) addFrame(now fc.Time, f *fc.Frame, h *iu.Header, inOrder bool) (more bool, fail *failure) {
	p := r.p
	m := r.at(h.MsgID)
	if m.stage == absent {
		r.reset(m)
		m.stage, m.h, m.oxid, m.seq, m.class, m.end = partial, *h, f.OXID, f.SeqID, f.Class(), -1
		m.rxid = p.rxid(f)
	} else if m.h != *h || m.oxid != f.OXID || m.seq != f.SeqID || m.class != f.Class() { // [FCVI-5.5-3] [FCVI-5.2.1-10] [FCVI-6.1-1] [FCFS-2.10-3]
		p.stats.Synonyms++ // [FCVI-5.6-1] [FCVI-5.6-2] [FCVI-5.9.1-5]
		return false, nil
	}
	if m.stage == complete {
		p.stats.LateFrames++
		return false, nil
	}
	off, n := f.Param, uint32(len(f.Payload))
	if !h.Op.HasData() {
		off = 0
	}
	end := uint64(off) + uint64(n)
	limit := uint64(r.mts)
	if h.Op == iu.WriteRqst {
		limit = uint64(h.Total)
	}
	switch {
	case end > limit, f.Last() && h.Op == iu.WriteRqst && end != limit, m.end >= 0 && end > uint64(m.end),
		h.Total > r.mts && h.Op != iu.SendRqst:
		if h.Op == iu.SendRqst && end > limit || h.Op != iu.SendRqst && h.Total > r.mts {
			return false, r.reject(now, m, iu.TooLong)
		}
		return false, r.violation(h.MsgID) // [FCVI-6.4-1]
	}
	res := m.got.add(off, n, inOrder) // [FCVI-8.4-3]
	if res == spanSeen && n == 0 && m.end < 0 && f.Last() {
		res = spanNew
	}
	switch res {
	case spanSeen: // D4 [FCVI-8.4-5]
		p.stats.LateFrames++
		return false, nil
	case spanHole: // D3 [FCVI-8.4-4]
		p.stats.Gaps++
		if r.reliable() {
			return false, r.lost(m, iu.FrameLost, h.MsgID)
		}
		p.stats.Discarded++ // [FCFS-2.10-5]
		r.reset(m)
		r.front++
		r.mexp = r.front
		r.stallAt = 0
		return false, nil
	case spanFull:
		return false, r.reject(now, m, iu.PortResources)
	}
	if f.Last() {
		m.end = int64(end)
	}
	if !m.discard {
		if ok, fail := r.placeFrame(now, m, off, f.Payload); !ok {
			return false, fail
		}
	}
	if m.end >= 0 && m.got.covers(uint32(m.end)) {
		m.stage = complete
		if h.MsgID == r.front {
			for s := r.at(r.front); s.stage == complete && s.h.MsgID == r.front; s = r.at(r.front) {
				r.front++
			}
		}
	}
	r.stall(now, m)
	switch {
	case h.MsgID != r.mexp:
	case m.stage == complete:
		return false, r.deliver(now)
	default:
		more = uint32(end) == m.got.next() && !m.held && !m.discard
	}
	return more, nil
}

// lost returns the failure of a reliable connection that has a hole in the request stream. The received part of
// the current message is reported as partial. [FCVI-8.4-4] [FCVI-3-4] [VIA-4.5-3]
func (r *receiver) lost(m *rxMsg, reason iu.Reason, id iu.MsgID) *failure {
	r.report(m)
	return &failure{reason: reason, msg: id, named: true}
}

// report reports the incomplete message m to the consumer. Without any arrived frame of m, report
// does nothing.
func (r *receiver) report(m *rxMsg) {
	if m.stage == absent {
		return
	}
	if t := &messageTypes[m.h.Op]; t.fail != nil {
		t.fail(r, m)
	}
}

// stall sets the time when an incomplete stream counts as broken: T_GAP after the last frame of the
// expected message, or after the first frame beyond that message. [FCVI-8.4-10]
func (r *receiver) stall(now fc.Time, m *rxMsg) {
	if m.stage == complete && m.h.MsgID == r.mexp {
		r.stallAt = 0
		return // deliver looks for later messages
	}
	if m.h.MsgID == r.mexp || r.stallAt == 0 {
		r.stallAt = now + r.gap()
	}
	if !r.timer.Active() {
		r.timer.Set(r.stallAt)
	}
}

// gapExpired runs when a gap may have existed for T_GAP.
func (r *receiver) gapExpired(now fc.Time) *failure {
	p := r.p
	if r.stallAt == 0 || r.waiting {
		return nil
	}
	if now < r.stallAt {
		r.timer.Set(r.stallAt)
		return nil
	}
	p.stats.Gaps++
	m := r.at(r.mexp)
	if r.reliable() { // [FCVI-B-1] [FCVI-B-2] [FCVI-B-3]
		return r.lost(m, m.lostAs(), r.mexp)
	}
	// At Unreliable Delivery the stream continues with the oldest complete message, or otherwise
	// with the oldest message that has begun.
	r.stallAt = 0
	next := r.mexp + 1
	if m.stage != absent {
		p.stats.Discarded++
		r.reset(m)
	}
	for id := r.mexp + 1; id-r.mexp < r.recvWindow(); id++ {
		if r.ahead(id) != nil {
			next = id
			break
		}
	}
	r.mexp = next
	if r.front-r.mexp >= r.recvWindow() {
		r.front = r.mexp
	}
	return r.deliver(now)
}

// aborted handles an ABTS for an incomplete message. It returns true if a message has the Exchange.
func (r *receiver) aborted(oxid uint16) bool {
	for i := range r.win {
		m := &r.win[i]
		if m.stage == absent || m.oxid != oxid {
			continue
		}
		if !r.reliable() && m.stage == partial {
			r.p.stats.Discarded++
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
