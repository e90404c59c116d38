package fcvi

import (
	"viaduct/internal/fc"
	"viaduct/internal/wire/iu"
	"viaduct/vi"
)

// A sender has the requests of this side: it transmits posted descriptors as messages, within the
// peer's windows, and completes them. It returns the failure that ends the connection, if there is
// one.
type sender struct {
	*shared
	nextID       iu.MsgID // id of the next request
	message               // in transmission, if busy is set
	stream       streamExchange
	unasked      int  // streamed messages since the last requested response
	unaskedBytes int  // their bytes
	draining     bool // a descriptor failed at this side; the connection ends after the answers to earlier ones

	acks  acks      // sent messages without ACK, in class 2
	resp  responses // sent messages without response
	proof proof     // sent messages without any report
}

// A message is a request in transmission.
type message struct {
	busy     bool
	cur      work // the descriptor
	curID    iu.MsgID
	oxid     uint16
	seq      uint8
	cnt      uint16
	off      uint32
	answered bool // the message requests a response
	hdr      [iu.LongLen]byte
	hdrLen   int
	use      iu.Use
	rctl     fc.RCtl
	dfctl    uint8
}

// stop ends the transmission of messages.
func (t *sender) stop(now fc.Time) {
	t.resp.stopped = true
	t.resp.timer.Stop()
	t.proof.timer.Stop()
	if t.busy {
		t.p.oxids.lock(now, t.oxid)
	}
	t.busy = false
	t.acks.truncate(0)
}

// abort sends ABTS for the open Exchanges of all messages. [FCVI-8.4-16]
func (t *sender) abort(now fc.Time) {
	if t.remote == nil || !t.remote.LoggedIn() {
		return
	}
	if t.busy && !t.stream.open {
		t.p.oxids.abort(now, t.remote, t.class, t.oxid, fc.Unassigned)
		t.busy = false
	}
	t.resp.abort(now)
}

// step sends frames of the message in transmission, or of the next one, at most room. A wanted probe
// goes first. step returns the number of frames. idle means that there is nothing to send.
func (t *sender) step(now fc.Time, room int) (sent int, idle bool, fail *failure) {
	if t.proof.want && !t.busy && t.openProbe(now) {
		return 1, false, nil
	}
	if !t.busy {
		if ok, fail := t.startMessage(now); !ok {
			return 0, true, fail
		}
	}
	sent, fail = t.sendFrames(now, room)
	return sent, false, fail
}

// startMessage starts the next send descriptor, if the peer can accept another request. It returns
// false if no message was started. [FCVI-F-2]
func (t *sender) startMessage(now fc.Time) (ok bool, fail *failure) {
	for !t.draining {
		ctl, ok := t.up.peek()
		if !ok {
			return false, nil
		}
		read := ctl.Op() == vi.OpRDMARead
		if read && t.resp.reads >= max(1, int(t.rattrs.MaxReads)) { // [FCVI-5.2.4-7] [VIA-4.3-4]
			return false, nil
		}
		limit := t.sendWindow()
		if (read || t.rr()) && (t.resp.pending.len() >= limit || // [FCVI-E-1]
			t.resp.pending.len() > 0 && t.resp.unproven+int64(t.mts) > int64(t.maxHold())) {
			return false, nil
		}
		if t.acks.len() > 0 && int(t.nextID-t.acks.at(0).id) >= limit {
			return false, nil // a lost frame is sent again, and the peer stores the messages after it
		}
		w := &t.cur
		*w = work{}
		t.up.next(w)
		if w.bad == 0 {
			return t.openMessage(now)
		}
		t.up.finish(w, w.bad)
		if t.reliable() {
			return false, t.drain()
		}
	}
	return false, nil
}

// drain stops the transmission of further messages, because a local descriptor is in error. drained
// ends the connection after the requests before the descriptor are answered, or in class 2
// acknowledged, so that they complete with success.
func (t *sender) drain() *failure {
	t.draining = true
	if n := t.resp.pending.len(); n > 0 && !t.resp.pending.at(n-1).asked && t.probes() {
		t.proof.request() // the answer to a probe proves the delivery of all requests before the probe
	}
	return t.drained()
}

// drained returns the failure of a draining connection if nothing is outstanding.
func (t *sender) drained() *failure {
	if !t.draining || t.resp.pending.len() > 0 || t.acks.len() > 0 {
		return nil
	}
	return &failure{reason: iu.PortInternal, orderly: true}
}

// response handles a frame of a message response. more reports whether Take may place the frames
// that continue f. [FCVI-5.2.5-2]
func (t *sender) response(now fc.Time, f *fc.Frame, h *iu.Header) (more bool, fail *failure) {
	if !t.nextID.After(h.MsgID) { // the request was never sent [FCVI-8.4-13]
		return false, &failure{reason: iu.UnexpectedResp, msg: h.MsgID, named: true}
	}
	if t.resp.pending.len() == 0 {
		t.p.stats.LateFrames++
		return false, nil
	}
	i := t.resp.find(h.MsgID)
	switch {
	case i >= 0:
		done, more, fail := t.resp.arrived(now, f, h, i)
		if done {
			fail = t.retire(now)
		}
		return more, fail
	case t.busy && h.MsgID == t.curID:
		return false, &failure{reason: iu.UnexpectedResp, msg: h.MsgID, named: true}
	}
	t.p.stats.LateFrames++
	return false, nil
}

// takeRead places b, the next payload of the oldest READ_RESP. The result is false, without effect,
// if the frame needs all checks.
func (t *sender) takeRead(now fc.Time, b []byte) (taken bool, fail *failure) {
	if t.resp.pending.len() == 0 {
		return false, nil
	}
	q := t.resp.pending.at(0)
	off, n := q.got.next(), uint32(len(b))
	if q.done || uint64(off)+uint64(n) > uint64(q.w.n) || !q.got.extend(n) {
		return false, nil
	}
	if bad := t.up.scatterRead(&q.w, off, b); bad != 0 {
		q.bad, q.reason, q.done = bad, iu.PortInternal, true
		return true, t.retire(now)
	}
	t.p.stats.PlacedBytes += uint64(n)
	t.traffic.ReceivedBytes += uint64(n)
	return true, nil
}

// retire completes answered requests, beginning with the oldest.
func (t *sender) retire(now fc.Time) *failure {
	r, p := &t.resp, t.p
	n := 0
	for n < r.pending.len() && r.pending.at(n).done {
		q := r.pending.at(n)
		n++
		r.unproven -= int64(q.w.n)
		if t.class == fc.Class2 { // an answer proves that unacknowledged frames have arrived
			t.acks.drop(q.oxid)
			p.np.Forget(now, t.remote, q.oxid)
			p.oxids.release(q.oxid)
		} else if q.asked {
			p.oxids.release(q.oxid)
		}
		if q.w.op == iu.ReadRqst {
			r.reads--
		}
		t.proof.proved(q)
		if !q.probe {
			t.up.finish(&q.w, q.bad)
		}
		if q.bad != 0 { // [FCVI-5.2.2-9] [FCVI-E-4]
			return &failure{reason: q.reason, msg: q.id, named: true, orderly: true}
		}
	}
	if n > 0 {
		r.retired(now, n)
		t.wake()
		if fail := t.drained(); fail != nil {
			return fail
		}
	}
	r.arm(now)
	return nil
}
