package fcvi

import (
	"viaduct/internal/fc"
	"viaduct/internal/wire/iu"
	"viaduct/vi"
)

// openMessage prepares the transmission of the current descriptor. If no Exchange is free, it
// completes the descriptor with an error, and returns false and the failure of the connection.
func (t *sender) openMessage(now fc.Time) (ok bool, fail *failure) {
	w := &t.cur
	t.curID = t.nextID
	t.nextID++          // [FCVI-5.9.6-1]
	t.off, t.cnt = 0, 0 // [FCVI-5.7-1] [FCVI-5.7-6]
	t.use = iu.Use{}
	h := &t.p.hdr
	*h = iu.Header{Handle: t.rHandle, Op: w.op, MsgID: t.curID, RmtVA: w.va, RmtHandle: w.mh, Total: w.n} // [FCVI-5.2.4-1] [FCVI-5.9.2-1] [FCVI-5.9.2-2] [FCVI-5.9.8-1] [FCVI-5.9.10-1] [FCVI-6.2-1] [FCVI-6.6-1]
	if w.imm {                                                                                            // [FCVI-5.9.4-3] [FCVI-5.9.7-1]
		h.Flags |= iu.FlagImm
		h.Param = w.data
	}
	t.answered = w.op == iu.ReadRqst
	if t.rr() {
		h.Flags |= iu.FlagRR
		t.answered = t.answered || t.asks()
	}
	if t.answered {
		h.Flags |= iu.FlagRspRqd
	}
	t.use.Answered = t.answered
	if !t.exchange(now, h) {
		t.up.finish(w, vi.StatusTransportError)
		return false, &failure{reason: iu.PortResources, orderly: true}
	}
	t.seq = t.remote.NextSeqID()
	t.hdrLen = len(t.p.cfg.codec.AppendHeader(t.hdr[:0], h))
	t.rctl, t.dfctl = fc.RCtl(t.p.cfg.codec.RCtl(w.op)), t.p.cfg.codec.DFCtl(w.op)
	t.busy = true
	if t.class == fc.Class2 {
		t.acks.push(ackWait{id: t.curID, oxid: t.oxid})
	}
	return true, nil
}

// asks reports whether the current message, at Reliable Reception, must request a separate
// response. Unless both sides stream, every message must. Otherwise one of several messages must,
// and the last message before the queue becomes empty. [FCVI-E-2] [FCVI-5.9.4-4]
func (t *sender) asks() bool {
	if !t.attrs.Streaming || !t.rattrs.Streaming {
		return true
	}
	t.unasked++
	t.unaskedBytes += int(t.cur.n)
	_, more := t.up.peek()
	limit := t.sendWindow()
	if !more || t.unasked >= min(askEvery, max(1, limit/2)) || t.resp.pending.len()+1 >= limit ||
		t.unaskedBytes >= askBytes ||
		t.resp.unproven+int64(t.cur.n)+int64(t.mts) > int64(t.maxHold()) {
		t.unasked, t.unaskedBytes = 0, 0
		return true
	}
	return false
}

// exchange assigns an Exchange to the current message: an Exchange of its own, or a place in a
// stream Exchange. It returns false if no Exchange is free. [FCVI-5.2.1-1] [FCVI-5.2.1-4]
func (t *sender) exchange(now fc.Time, h *iu.Header) (ok bool) {
	if !t.p.cfg.stream || t.rr() || h.Op == iu.ReadRqst || t.class == fc.Class2 {
		t.oxid, ok = t.newExchange()
		return ok
	}
	if !t.stream.reserve(now, t.shared) {
		return false
	}
	t.use.Stream = t.stream.next()
	if t.use.Stream == iu.StreamLast {
		h.Flags |= iu.FlagLastMsg
	}
	t.oxid, t.cnt = t.stream.ox, t.stream.cnt
	return true
}

// A streamExchange is an Exchange that successive messages without response share. [FCVI-5.2.1-4]
type streamExchange struct {
	open bool
	ox   uint16
	n    int     // messages, the current one included
	cnt  uint16  // frames of the sent messages
	at   fc.Time // time at which the current message started
}

// reserve ensures that the Exchange is open for another message. A message may follow the last one
// only within a time limit, so the Exchange is replaced after a pause. reserve returns false if no
// Exchange is free.
func (x *streamExchange) reserve(now fc.Time, s *shared) bool {
	if x.open && now-x.at > s.p.np.EDTOV()/2 { // [FCVI-5.2.1-7]
		s.p.oxids.release(x.ox)
		x.open = false
	}
	if !x.open {
		ox, ok := s.newExchange()
		if !ok {
			return false
		}
		*x = streamExchange{open: true, ox: ox}
	}
	x.at = now
	return true
}

// next counts another message, and returns the place of the message in the Exchange.
func (x *streamExchange) next() iu.StreamPos {
	x.n++
	switch x.n {
	case streamLimit: // [FCVI-5.2.1-6]
		return iu.StreamLast
	case 1:
		return iu.StreamFirst
	}
	return iu.StreamNext
}

// sendFrames sends the next frames of the message in transmission, at most room, and returns their
// number. It sends as many frames at a time as are contiguous in memory, or one frame whose bytes
// it copies. It returns 0 if the N_Port accepts no frame. [FCVI-5.1-3] [FCVI-5.2.5-3]
// [FCVI-5.2.5-4] [FCVI-8.4-1]
func (t *sender) sendFrames(now fc.Time, room int) (sent int, fail *failure) {
	p := t.p
	w := &t.cur
	var payload []byte
	use := t.use
	use.Last = true
	frames, size := 1, t.payloadFor(w.op)
	if w.op != iu.ReadRqst && w.n > t.off {
		frames, use.Last = before(int(w.n-t.off), size, room)
		n := frames * size
		if use.Last {
			n = int(w.n - t.off)
		}
		var bad vi.Status
		if payload, bad = t.up.gather(w, t.off, n, p.scratch[:min(n, size)]); bad != 0 {
			t.busy = false
			t.acks.drop(t.oxid) // [FCVI-5.2.2-1]
			p.oxids.lock(now, t.oxid)
			t.up.finish(w, bad)
			if t.reliable() {
				fail = t.drain()
			}
			return 1, fail // more messages may follow
		}
	}
	f := p.frame(t.rctl, t.dfctl, fc.FCtl(p.cfg.codec.FCtl(w.op, use))) // [FCVI-5.9.1-2] [FCVI-5.9.1-4]
	f.SeqID, f.SeqCnt, f.OXID, f.RXID = t.seq, t.cnt, t.oxid, fc.Unassigned
	f.Opt, f.Payload = t.hdr[:t.hdrLen], payload
	f.Param = t.off           // relative offset, 0 without data [FCVI-5.8-6]
	if t.class == fc.Class2 { // [FCVI-5.2.2-1]
		t.acks.last().left++ // the frames are sent one at a time, see step
	}
	ok := false
	if use.Last {
		ok = p.np.Send(now, t.remote, t.class, t.off == 0, f)
	} else {
		frames = len(payload) / size
		payload = payload[:frames*size]
		ok = p.np.SendRun(now, t.remote, t.class, t.off == 0, f, size, payload)
	}
	if !ok {
		return 0, nil
	}
	t.cnt += uint16(frames) // [FCVI-5.8-5]
	t.off += uint32(len(payload))
	p.stats.SentBytes += uint64(len(payload))
	t.traffic.SentBytes += uint64(len(payload))
	if use.Last {
		t.sentMessage(now)
	}
	return frames, nil
}

// before returns the number of frames of size bytes, at most room, that precede the last frame of n
// bytes. last means that the next frame is the last.
func before(n, size, room int) (frames int, last bool) {
	if n <= size {
		return 1, true
	}
	return min((n-1)/size, room), false
}

// sentMessage updates the state after the last frame of a message. The message completes at once,
// with its response, or in class 2 with its last ACK.
func (t *sender) sentMessage(now fc.Time) {
	p, w := t.p, &t.cur
	t.busy = false
	p.stats.SentMessages++
	t.traffic.SentMessages++
	class2 := t.class == fc.Class2
	awaits := w.op == iu.ReadRqst || t.rr() // the response completes the message [FCVI-3-7] [VIA-4.5-4]
	if class2 {
		a := t.acks.last()
		a.sent = true
		if !awaits { // the message completes with its last ACK [FCVI-5.2.2-1]
			a.complete, a.w = true, *w
		}
		t.acks.settle(t.acks.len() - 1)
	}
	switch {
	case awaits:
		if !t.answered && !class2 {
			p.oxids.release(t.oxid)
		}
		t.proof.owe(now, t.curID)
		t.resp.add(now, w, t.curID, t.oxid, t.answered)
	case !class2:
		t.proof.owe(now, t.curID)
		if t.use.Stream == iu.NoStream || t.use.Stream == iu.StreamLast {
			p.oxids.release(t.oxid)
			t.stream.open = t.stream.open && t.use.Stream == iu.NoStream
		} else {
			t.stream.cnt = t.cnt
		}
		t.up.finish(w, 0) // [FCVI-3-6]
	}
}
