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

// A responses has the requests of this side that have no complete response, and the arriving
// responses to them.
type responses struct {
	*shared
	pending  fifo[pending] // in MSG_ID order
	unproven int64         // payload bytes of the pending messages
	reads    int           // pending RDMA Reads, probes included
	timer    *fc.Timer     // expires when a response is overdue
	heard    fc.Time       // time of the last progress of the response stream
	respGap  fc.Time       // time at which the gap in the response stream counts as a loss
	stopped  bool
}

// add adds the sent request id on Exchange oxid, without response yet. asked has the same meaning
// as in pending.
func (r *responses) add(now fc.Time, w *work, id iu.MsgID, oxid uint16, asked bool) *pending {
	q := r.pending.push(pending{id: id, oxid: oxid, rxid: fc.Unassigned, asked: asked, end: -1, since: now})
	q.w = *w
	r.unproven += int64(q.w.n)
	if q.w.op == iu.ReadRqst {
		r.reads++
	}
	r.arm(now)
	return q
}

// find returns the index of the pending request id, or -1 if there is none.
func (r *responses) find(id iu.MsgID) int {
	// At Reliable Reception every message is pending; at the other levels only Reads are.
	if i := int(id - r.pending.at(0).id); i < r.pending.len() && r.pending.at(i).id == id {
		return i
	}
	return slices.IndexFunc(r.pending.all(), func(q pending) bool { return q.id == id })
}

// arrived handles a frame of the response to the pending request at index i. done reports whether
// requests may be complete, and more whether Take may place the frames that continue f.
func (r *responses) arrived(now fc.Time, f *fc.Frame, h *iu.Header, i int) (done, more bool, fail *failure) {
	q := r.pending.at(i)
	switch {
	case q.w.op.Response() != h.Op || f.OXID != q.oxid && q.asked:
		r.p.stats.Synonyms++
		return false, false, nil
	case q.done:
		r.p.stats.LateFrames++
		return false, false, nil
	}
	q.rxid = f.RXID
	refused := h.Flags&iu.FlagErr != 0
	switch {
	case refused:
		q.reason = h.Status().Reason.Known()
		q.bad = descriptorStatus(q.reason) // [VIA-4.5-6]
		q.done = true
	case h.Op == iu.ReadResp:
		if done, more, fail = r.readData(now, f, q, i); !done {
			return false, false, fail
		}
	case len(f.Payload) != 0:
		return false, false, r.violation(h.MsgID)
	default:
		q.done = true
	}
	if h.Flags&iu.FlagCum != 0 && !refused { // [FCVI-E-3]
		r.answerBefore(i, func(e *pending) bool { return e.w.op != iu.ReadRqst })
	}
	if q.done && refused { // requests before a reported error have succeeded [FCVI-E-4]
		r.answerBefore(i, func(e *pending) bool { return !e.asked })
	}
	if q.done && !r.pending.at(0).done {
		if r.ordered() {
			r.p.stats.Gaps++
			return false, false, r.lost(iu.MsgLost)
		}
		if r.respGap == 0 {
			r.respGap = now + r.gap()
		}
	}
	return true, more, nil
}

// answerBefore marks the matching requests before index i as answered.
func (r *responses) answerBefore(i int, match func(e *pending) bool) {
	for k := range i {
		if e := r.pending.at(k); match(e) {
			e.done = true
		}
	}
}

// readData places a frame of a READ_RESP, the answer to pending request q at index i. placed is
// false if the frame was ignored or the connection ends. more reports whether Take may place the
// frames that continue f.
func (r *responses) readData(now fc.Time, f *fc.Frame, q *pending, i int) (placed, more bool, fail *failure) {
	p := r.p
	off, n := f.Param, uint32(len(f.Payload))
	if uint64(off)+uint64(n) > uint64(q.w.n) || f.Last() && off+n != q.w.n { // [FCVI-6.7-1]
		return false, false, r.violation(q.id)
	}
	switch q.got.add(off, n, r.ordered()) {
	case spanSeen:
		if n > 0 || q.end >= 0 {
			p.stats.LateFrames++
			return false, false, nil
		}
	case spanHole:
		p.stats.Gaps++
		q.bad = 0
		if i == 0 {
			return false, false, r.lost(iu.FrameLost)
		}
		return false, false, r.lost(iu.MsgLost)
	case spanFull:
		return false, false, &failure{reason: iu.PortResources, msg: q.id, named: true}
	}
	q.started, q.progress, r.heard = true, now, now
	if n > 0 {
		if bad := r.up.scatterRead(&q.w, off, f.Payload); bad != 0 {
			q.bad, q.reason, q.done = bad, iu.PortInternal, true // [VIA-4.6-15]
			return true, false, nil
		}
		p.stats.PlacedBytes += uint64(n)
		r.traffic.ReceivedBytes += uint64(n)
	}
	if f.Last() {
		q.end = int64(off + n)
	}
	q.done = q.end >= 0 && q.got.covers(uint32(q.end)) // [FCVI-5.2.4-4] [VIA-4.5-5]
	return true, i == 0 && off+n == q.got.next() && !q.done, nil
}

// failedAt handles the peer's report that message id failed, which proves that the requests before
// it were delivered. It returns true if a descriptor was completed with the error. [FCVI-E-4]
func (r *responses) failedAt(id iu.MsgID, reason iu.Reason) bool {
	told := false
	for r.pending.len() > 0 {
		q := r.pending.at(0)
		switch {
		case q.id == id && !q.probe:
			r.up.finish(&q.w, descriptorStatus(reason))
			told = true
		case id.After(q.id) && q.w.op != iu.ReadRqst && reason.Class() == iu.DescriptorError:
			r.up.finish(&q.w, 0)
			r.pending.drop(1)
			continue
		}
		break
	}
	return told
}

// retired drops the n oldest requests, which are complete.
func (r *responses) retired(now fc.Time, n int) {
	r.pending.drop(n)
	r.respGap, r.heard = 0, now
	for i := range r.pending.len() {
		if r.pending.at(i).done {
			r.respGap = now + r.gap()
			break
		}
	}
}

// abort sends ABTS for the open Exchanges of the pending requests, and drops the requests.
func (r *responses) abort(now fc.Time) {
	for i := range r.pending.len() {
		if q := r.pending.at(i); q.asked && !q.done {
			r.p.oxids.abort(now, r.remote, r.class, q.oxid, q.rxid)
		}
	}
	r.pending.truncate(0)
}

// arm sets the timer of the response stream. The oldest request has FCVI_ULP_TIMEOUT,
// counted from sending or from the last progress of the stream. A response that has begun, and a
// gap, have T_GAP. [FCVI-8.4-12] [FCVI-8.4-14]
func (r *responses) arm(now fc.Time) {
	if r.stopped || r.pending.len() == 0 {
		r.timer.Stop()
		return
	}
	at := r.due()
	if !r.timer.Active() || r.timer.At() > at {
		r.timer.Set(at)
	}
}

// due returns the time of the timer. At least one request must be pending.
func (r *responses) due() fc.Time {
	q := r.pending.at(0)
	at := max(q.since, r.heard) + r.p.ulpTimeout()
	if q.started && !q.done {
		at = min(at, q.progress+r.gap())
	}
	if r.respGap != 0 {
		at = min(at, r.respGap)
	}
	return at
}

// expired runs when the oldest response may be overdue.
func (r *responses) expired(now fc.Time) *failure {
	if r.pending.len() == 0 {
		return nil
	}
	if at := r.due(); now < at {
		r.timer.Set(at)
		return nil
	}
	q := r.pending.at(0)
	reason := iu.RespTimeout
	switch {
	case q.started && !q.done && now >= q.progress+r.gap():
		reason = iu.FrameLost
	case r.respGap != 0 && now >= r.respGap:
		reason = iu.MsgLost
	}
	r.p.stats.Gaps++
	return r.lost(reason)
}

// lost completes the oldest request with an error, because its response was lost, and returns the
// failure of the connection.
func (r *responses) lost(reason iu.Reason) *failure {
	q := *r.pending.at(0)
	if !q.probe {
		r.up.finish(&q.w, vi.StatusTransportError)
	}
	return &failure{reason: reason, msg: q.id, named: true, orderly: !q.probe}
}
