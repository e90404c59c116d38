package fcvi

import (
	"viaduct/internal/fc"
	"viaduct/internal/wire/iu"
	"viaduct/vi"
)

// openMessage prepares the transmission of the current descriptor. If no Exchange is free, it
// completes the descriptor with an error, breaks the connection and returns false.
func (c *conn) openMessage(now fc.Time) bool {
	t := &c.tx
	w := &t.cur
	t.curID = t.nextID
	t.nextID++          // [FCVI-5.9.6-1]
	t.off, t.cnt = 0, 0 // [FCVI-5.7-1] [FCVI-5.7-6]
	t.use = iu.Use{}
	h := &c.p.hdr
	*h = iu.Header{Handle: c.rHandle, Op: w.op, MsgID: t.curID, RmtVA: w.va, RmtHandle: w.mh, Total: w.n} // [FCVI-5.2.4-1] [FCVI-5.9.2-1] [FCVI-5.9.2-2] [FCVI-5.9.8-1] [FCVI-5.9.10-1] [FCVI-6.2-1] [FCVI-6.6-1]
	if w.imm {                                                                                            // [FCVI-5.9.4-3] [FCVI-5.9.7-1]
		h.Flags |= iu.FlagImm
		h.Param = w.data
	}
	t.answered = w.op == iu.ReadRqst
	if c.rr() {
		h.Flags |= iu.FlagRR
		t.answered = t.answered || c.asks()
	}
	if t.answered {
		h.Flags |= iu.FlagRspRqd
	}
	t.use.Answered = t.answered
	if !c.exchange(now, h) {
		c.up.finish(w, vi.StatusTransportError)
		c.fail2(now, iu.PortResources, true)
		return false
	}
	t.seq = c.remote.NextSeqID()
	t.hdrLen = len(c.p.cfg.codec.AppendHeader(t.hdr[:0], h))
	t.rctl, t.dfctl = fc.RCtl(c.p.cfg.codec.RCtl(w.op)), c.p.cfg.codec.DFCtl(w.op)
	t.busy = true
	if c.class == fc.Class2 {
		t.acking.push(ackWait{id: t.curID, oxid: t.oxid})
	}
	return true
}

// asks reports whether the current message, at Reliable Reception, must request a separate
// response. Unless both sides stream, every message must. Otherwise one of several messages must,
// and the last message before the queue becomes empty. [FCVI-E-2] [FCVI-5.9.4-4]
func (c *conn) asks() bool {
	t := &c.tx
	if !c.attrs.Streaming || !c.rattrs.Streaming {
		return true
	}
	t.unasked++
	t.unaskedBytes += int(t.cur.n)
	_, more := c.up.peek()
	limit := c.sendWindow()
	if !more || t.unasked >= min(askEvery, max(1, limit/2)) || t.pending.len()+1 >= limit ||
		t.unaskedBytes >= askBytes ||
		t.unproven+int64(t.cur.n)+int64(c.mts) > int64(c.maxHold()) {
		t.unasked, t.unaskedBytes = 0, 0
		return true
	}
	return false
}

// exchange assigns an Exchange to the current message: an Exchange of its own, or a place in a
// stream Exchange. It returns false if no Exchange is free. [FCVI-5.2.1-1] [FCVI-5.2.1-4]
func (c *conn) exchange(now fc.Time, h *iu.Header) bool {
	t, p := &c.tx, c.p
	if !p.cfg.stream || c.rr() || h.Op == iu.ReadRqst || c.class == fc.Class2 {
		ox, ok := p.oxids.alloc(c)
		t.oxid = ox
		return ok
	}
	if t.stream && now-t.streamAt > p.np.EDTOV()/2 { // [FCVI-5.2.1-7]
		p.oxids.release(t.streamOX)
		t.stream = false
	}
	t.use.Stream = iu.StreamNext
	if !t.stream {
		ox, ok := p.oxids.alloc(c)
		if !ok {
			return false
		}
		t.stream, t.streamOX, t.streamN, t.streamCnt = true, ox, 0, 0
		t.use.Stream = iu.StreamFirst
	}
	t.streamN++
	if t.streamN == streamLimit { // [FCVI-5.2.1-6]
		t.use.Stream = iu.StreamLast
		h.Flags |= iu.FlagLastMsg
	}
	t.oxid, t.cnt, t.streamAt = t.streamOX, t.streamCnt, now
	return true
}

// sendFrames sends the next frames of the message in transmission, at most room, and returns their
// number. It sends as many frames at a time as are contiguous in memory, or one frame whose bytes
// it copies. It returns 0 if the N_Port accepts no frame. [FCVI-5.1-3] [FCVI-5.2.5-3]
// [FCVI-5.2.5-4] [FCVI-8.4-1]
func (c *conn) sendFrames(now fc.Time, room int) int {
	t, p := &c.tx, c.p
	w := &t.cur
	var payload []byte
	use := t.use
	use.Last = true
	frames, size := 1, c.payloadFor(w.op)
	if w.op != iu.ReadRqst && w.n > t.off {
		frames, use.Last = before(int(w.n-t.off), size, room)
		n := frames * size
		if use.Last {
			n = int(w.n - t.off)
		}
		var bad vi.Status
		if payload, bad = c.up.gather(w, t.off, n, p.scratch[:min(n, size)]); bad != 0 {
			t.busy = false
			c.dropAck(t.oxid) // [FCVI-5.2.2-1]
			p.oxids.lock(now, t.oxid)
			c.up.finish(w, bad)
			if c.reliable() {
				c.drain(now)
			}
			return 1 // more messages may follow
		}
	}
	f := p.frame(t.rctl, t.dfctl, fc.FCtl(p.cfg.codec.FCtl(w.op, use))) // [FCVI-5.9.1-2] [FCVI-5.9.1-4]
	f.SeqID, f.SeqCnt, f.OXID, f.RXID = t.seq, t.cnt, t.oxid, fc.Unassigned
	f.Opt, f.Payload = t.hdr[:t.hdrLen], payload
	f.Param = t.off           // relative offset, 0 without data [FCVI-5.8-6]
	if c.class == fc.Class2 { // [FCVI-5.2.2-1]
		t.acking.at(t.acking.len()-1).left++ // the frames are sent one at a time, see step
	}
	ok := false
	if use.Last {
		ok = p.np.Send(now, c.remote, c.class, t.off == 0, f)
	} else {
		frames = len(payload) / size
		payload = payload[:frames*size]
		ok = p.np.SendRun(now, c.remote, c.class, t.off == 0, f, size, payload)
	}
	if !ok {
		return 0
	}
	t.cnt += uint16(frames) // [FCVI-5.8-5]
	t.off += uint32(len(payload))
	p.stats.SentBytes += uint64(len(payload))
	c.traffic.SentBytes += uint64(len(payload))
	if use.Last {
		c.sentMessage(now)
	}
	return frames
}

// before returns the number of frames of size bytes, at most room, that precede the last frame of n
// bytes. last means that the next frame is the last.
func before(n, size, room int) (frames int, last bool) {
	if n <= size {
		return 1, true
	}
	return min((n-1)/size, room), false
}

// sentMessage updates the state after the last frame of a message.
func (c *conn) sentMessage(now fc.Time) {
	t, p := &c.tx, c.p
	t.busy = false
	p.stats.SentMessages++
	c.traffic.SentMessages++
	class2 := c.class == fc.Class2
	if class2 {
		t.acking.at(t.acking.len() - 1).sent = true
		if c.rr() || t.cur.op == iu.ReadRqst {
			c.settle(t.acking.len() - 1)
		}
	}
	if w := &t.cur; w.op == iu.ReadRqst || c.rr() {
		// The response completes the message. [FCVI-3-7] [VIA-4.5-4]
		q := t.pending.push(pending{id: t.curID, oxid: t.oxid, rxid: fc.Unassigned,
			asked: t.answered, end: -1, since: now})
		q.w = *w
		t.unproven += int64(w.n)
		if w.op == iu.ReadRqst {
			t.reads++
		}
		if !t.answered && !class2 {
			p.oxids.release(t.oxid)
		}
		c.owe(now)
		c.armResponses(now)
		return
	}
	if class2 { // the message completes with its last ACK [FCVI-5.2.2-1]
		a := t.acking.at(t.acking.len() - 1)
		a.complete, a.w = true, t.cur
		c.settle(t.acking.len() - 1)
		return
	}
	c.owe(now)
	if t.use.Stream == iu.NoStream || t.use.Stream == iu.StreamLast {
		p.oxids.release(t.oxid)
		t.stream = t.stream && t.use.Stream == iu.NoStream
	} else {
		t.streamCnt = t.cnt
	}
	c.up.finish(&t.cur, 0) // [FCVI-3-6]
}
