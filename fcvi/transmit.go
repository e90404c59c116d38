package fcvi

import (
	"slices"

	"viaduct/fc"
	"viaduct/fcvi/iu"
	"viaduct/internal/regmem"
	"viaduct/vi"
)

// A pending is a request of ours whose response has not come.
type pending struct {
	w        work
	id       iu.MsgID
	oxid     uint16
	rxid     uint16
	asked    bool // a response was required
	probe    bool // asked for a proof, on nobody's behalf
	done     bool // its answer is here but an earlier one is missing
	bad      vi.Status
	reason   iu.Reason
	got      spans // of a READ_RESP
	end      int64 // length of the READ_RESP, -1 while unknown
	since    fc.Time
	started  bool    // frames of the READ_RESP came
	progress fc.Time // of the last one
}

// An answer is a response that this side has to send, in request order.
type answer struct {
	op     iu.Opcode
	id     iu.MsgID
	flags  iu.Flags
	status uint32
	oxid   uint16
	rxid   uint16
	va     uint64 // of a READ_RESP
	mh     uint32
	n      uint32
	off    uint32
	cnt    uint16
	seq    uint8
	begun  bool
}

// txState is the transmitting side of a connection.
type txState struct {
	nextID   iu.MsgID
	cur      work // in transmission if busy
	busy     bool
	curID    iu.MsgID
	oxid     uint16
	seq      uint8
	cnt      uint16
	off      uint32
	answered bool
	hdr      [iu.LongLen]byte
	hdrLen   int
	use      iu.Use
	rctl     fc.RCtl
	dfctl    uint8

	pending      fifo[pending] // in MSG_ID order
	unproven     int64         // bytes of them
	reads        int
	unasked      int // streamed messages since a response was asked for
	unaskedBytes int
	proof        proof
	answers      fifo[answer]
	turn         bool // responses and requests take turns

	stream    bool // an Exchange of policy X2 is open
	streamOX  uint16
	streamN   int
	streamCnt uint16
	streamAt  fc.Time

	acking  fifo[ackWait] // class 2: messages whose ACKs are awaited
	timer   *fc.Timer     // of responses
	respGap fc.Time       // when the gap in the response stream is declared a loss
	stopped bool

	draining bool // a descriptor failed here: wait for the answers before it
}

// An ackWait is a class 2 message that completes with its last ACK.
type ackWait struct {
	w        work
	id       iu.MsgID
	oxid     uint16
	complete bool // completes by ACK, not by a response
	left     int
	sent     bool
}

// payloadFor is P of an IU: what fits into a frame to the peer. [FCVI-5.7-3]
// [FCVI-5.7-2]
func (c *conn) payloadFor(o iu.Opcode) int {
	return (min(fc.MaxData, c.remote.RxSize) - o.HeaderLen()) &^ 3
}

// startStreams prepares both directions. [FCVI-5.9.6-1]
func (c *conn) startStreams() {
	c.tx = txState{nextID: c.initTx}
	c.tx.timer = c.p.np.Timers().New(c.respExpired)
	c.tx.proof.timer = c.p.np.Timers().New(c.proofDue)
	c.rx = rxState{mexp: c.initRx, front: c.initRx, failed: iu.Accepted}
	c.rx.timer = c.p.np.Timers().New(c.gapExpired)
}

// stopStreams ends message transfer in both directions.
func (c *conn) stopStreams(now fc.Time) {
	if c.tx.timer == nil {
		return // never connected
	}
	c.tx.stopped = true
	c.tx.timer.Stop()
	c.tx.proof.timer.Stop()
	c.rx.timer.Stop()
	if c.tx.busy {
		c.p.oxids.lock(now, c.tx.oxid)
	}
	c.tx.busy = false
	c.tx.acking.truncate(0)
	// What was read for the peer must not be touched any more; answers that
	// are complete go out all the same.
	n := 0
	answers := c.tx.answers.all()
	for _, a := range answers {
		if a.op != iu.ReadResp || a.flags&iu.FlagErr != 0 {
			answers[n] = a
			n++
		}
	}
	c.tx.answers.truncate(n)
}

// posted is the doorbell of the send queue.
func (c *conn) posted(now fc.Time) {
	if c.state == stConnected && c.up != nil {
		c.p.activate(c)
		c.p.pump(now)
	}
}

// step sends one frame. It reports false if there is nothing to send now.
func (c *conn) step(now fc.Time) bool {
	if c.gone || c.remote == nil || !c.remote.Ready() || c.class == fc.Class2 && !c.remote.Room() {
		return false
	}
	t := &c.tx
	t.turn = !t.turn
	if t.turn && t.answers.len() > 0 {
		return c.sendAnswer(now)
	}
	if c.state == stConnected && c.up != nil && !c.paused {
		if t.proof.want && !t.busy && c.openProbe(now) {
			return true
		}
		if t.busy || c.startMessage(now) {
			return c.sendFrame(now)
		}
	}
	if t.answers.len() > 0 {
		return c.sendAnswer(now)
	}
	return false
}

// startMessage takes the next send descriptor, if the peer takes another
// request. [FCVI-F-2]
func (c *conn) startMessage(now fc.Time) bool {
	t := &c.tx
	for !t.draining {
		ctl, ok := c.up.peek()
		if !ok {
			return false
		}
		read := ctl.Op() == vi.OpRDMARead
		if read && t.reads >= max(1, int(c.rattrs.MaxReads)) { // [FCVI-5.2.4-7]
			return false
		}
		limit := c.sendWindow()
		if (read || c.rr()) && (t.pending.len() >= limit || // [FCVI-E-1]
			t.pending.len() > 0 && t.unproven+int64(c.mts) > int64(c.maxHold())) {
			return false
		}
		if t.acking.len() > 0 && int(t.nextID-t.acking.at(0).id) >= limit {
			return false // a lost frame is sent again: the peer holds what follows it
		}
		w := &t.cur
		*w = work{}
		c.up.next(w)
		if w.bad == 0 {
			return c.openMessage(now)
		}
		c.up.finish(w, w.bad)
		if c.reliable() {
			c.drain(now)
			return false
		}
	}
	return false
}

// sendWindow is how many requests may be unanswered, or in class 2 not
// acknowledged. [FCVI-E-1]
func (c *conn) sendWindow() int {
	return min(c.p.cfg.maxUnacked, max(1, int(c.rattrs.MaxUnacked)), int(c.rxWindow()))
}

// drain ends the connection for an error in a descriptor of ours as soon as
// the requests before it are answered, or acknowledged in class 2, so that they
// keep their good ends.
func (c *conn) drain(now fc.Time) {
	t := &c.tx
	t.draining = true
	if n := t.pending.len(); n > 0 && !t.pending.at(n-1).asked && c.probes() {
		t.proof.want = true // the answer to the probe is the answer to all
		c.p.activate(c)
	}
	c.drained(now)
}

// drained ends a connection that drains if nothing is left. It reports whether
// it did.
func (c *conn) drained(now fc.Time) bool {
	t := &c.tx
	if !t.draining || t.pending.len() > 0 || t.acking.len() > 0 {
		return false
	}
	c.fail2(now, iu.PortInternal, true)
	return true
}

// openMessage prepares the transmission of the descriptor in hand.
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

// asks decides whether a message at Reliable Reception requires a response of
// its own: always, unless both sides stream; then every few, and the last
// before the queue runs dry. [FCVI-E-2] [FCVI-5.9.4-4]
func (c *conn) asks() bool {
	t := &c.tx
	if !c.attrs.Streaming || !c.rattrs.Streaming {
		return true
	}
	t.unasked++
	t.unaskedBytes += int(t.cur.n)
	_, more := c.up.peek()
	limit := c.sendWindow()
	if !more || t.unasked >= min(askEvery, max(1, limit/2)) || t.pending.len()+1 >= limit || t.unaskedBytes >= askBytes ||
		t.unproven+int64(t.cur.n)+int64(c.mts) > int64(c.maxHold()) {
		t.unasked, t.unaskedBytes = 0, 0
		return true
	}
	return false
}

// exchange gives the message in hand its Exchange: one of its own, or the next
// place in a stream Exchange. [FCVI-5.2.1-1] [FCVI-5.2.1-4]
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

// sendFrame sends the next frame of the message in transmission.
// [FCVI-5.1-3] [FCVI-5.2.5-3] [FCVI-5.2.5-4] [FCVI-8.4-1]
func (c *conn) sendFrame(now fc.Time) bool {
	t, p := &c.tx, c.p
	w := &t.cur
	var payload []byte
	use := t.use
	use.Last = true
	if w.op != iu.ReadRqst {
		n := min(uint32(c.payloadFor(w.op)), w.n-t.off)
		if n > 0 {
			var bad vi.Status
			if payload, bad = c.up.gather(w, t.off, int(n), p.scratch[:]); bad != 0 {
				t.busy = false
				c.dropAck(t.oxid)
				p.oxids.lock(now, t.oxid)
				c.up.finish(w, bad)
				if c.reliable() {
					c.drain(now)
				}
				return true // there may be more behind it
			}
		}
		use.Last = t.off+n == w.n
	}
	f := p.frame(t.rctl, t.dfctl, fc.FCtl(p.cfg.codec.FCtl(w.op, use))) // [FCVI-5.9.1-2] [FCVI-5.9.1-4]
	f.SeqID, f.SeqCnt, f.OXID, f.RXID = t.seq, t.cnt, t.oxid, fc.Unassigned
	f.Opt, f.Payload = t.hdr[:t.hdrLen], payload
	if w.op.HasData() {
		f.Param = t.off // relative offset [FCVI-5.8-6]
	}
	if c.class == fc.Class2 {
		t.acking.at(t.acking.len()-1).left++
	}
	if !p.np.Send(now, c.remote, c.class, t.off == 0, f) {
		return false
	}
	t.cnt++ // [FCVI-5.8-5]
	t.off += uint32(len(payload))
	p.stats.SentBytes += uint64(len(payload))
	if use.Last {
		c.sentMessage(now)
	}
	return true
}

// sentMessage does what follows the last frame of a message.
func (c *conn) sentMessage(now fc.Time) {
	t, p := &c.tx, c.p
	t.busy = false
	p.stats.SentMessages++
	class2 := c.class == fc.Class2
	if class2 {
		t.acking.at(t.acking.len() - 1).sent = true
		if c.rr() || t.cur.op == iu.ReadRqst {
			c.settle(t.acking.len() - 1)
		}
	}
	if w := &t.cur; w.op == iu.ReadRqst || c.rr() {
		// Completes with its response. [FCVI-3-7]
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
		c.armResponses(now)
		return
	}
	if class2 { // completes with its last ACK [FCVI-5.2.2-1]
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

// acked counts an ACK_1; the last of a message may complete it.
func (c *conn) acked(now fc.Time, oxid uint16) {
	t := &c.tx
	for i := range t.acking.len() {
		if t.acking.at(i).oxid == oxid && t.acking.at(i).left > 0 {
			t.acking.at(i).left--
			c.settle(i)
			break
		}
	}
	if c.drained(now) {
		return
	}
	c.p.activate(c)
}

// settle completes the class 2 message at i if its last ACK is here.
func (c *conn) settle(i int) {
	t := &c.tx
	if !t.acking.at(i).sent || t.acking.at(i).left > 0 {
		return
	}
	a := *t.acking.at(i)
	t.acking.remove(i)
	if a.complete {
		c.p.oxids.release(a.oxid)
		if c.up != nil {
			c.up.finish(&a.w, 0)
		}
	}
}

func (c *conn) dropAck(oxid uint16) {
	t := &c.tx
	for i := range t.acking.len() {
		if t.acking.at(i).oxid == oxid {
			t.acking.remove(i)
			return
		}
	}
}

// class2Failed ends an Exchange whose frame was rejected or not acknowledged:
// at Unreliable Delivery that message is lost, otherwise the connection.
// [FCVI-8.4-15]
func (c *conn) class2Failed(now fc.Time, oxid uint16) {
	t, p := &c.tx, c.p
	p.oxids.abort(now, c.remote, c.class, oxid, fc.Unassigned)
	if c.state != stConnected {
		return // set-up and disconnect have their own timers
	}
	if c.reliable() {
		c.fail(now, iu.Class2Fail, 0, false)
		return
	}
	for i := range t.acking.len() {
		if a := *t.acking.at(i); a.oxid == oxid {
			t.acking.remove(i)
			if a.sent && a.complete {
				c.up.finish(&a.w, vi.StatusTransportError)
			} else if !a.sent {
				t.busy = false
				c.up.finish(&t.cur, vi.StatusTransportError)
			}
			break
		}
	}
	p.activate(c)
	p.pump(now)
}

// abortPending sends ABTS for every Exchange of messages that is open.
// [FCVI-8.4-16]
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

// sendAnswer sends the next frame of the response that is first in line.
// [FCVI-5.2.5-5]
func (c *conn) sendAnswer(now fc.Time) bool {
	t, p := &c.tx, c.p
	a := t.answers.at(0)
	first := !a.begun
	if first {
		a.begun = true
		a.seq = c.remote.NextSeqID()
	}
	h := &p.hdr
	*h = iu.Header{Handle: c.rHandle, Op: a.op, MsgID: a.id, Flags: a.flags, Param: a.status} // [FCVI-5.9.6-3] [FCVI-6.3-1] [FCVI-6.5-1]
	var payload []byte
	use := iu.Use{Last: true}
	if a.op == iu.ReadResp && a.flags&iu.FlagErr == 0 && a.n > 0 { // [FCVI-5.2.4-3]
		n := min(uint32(c.payloadFor(a.op)), a.n-a.off)
		var out regmem.Outcome
		payload, out = c.up.fetch(a.mh, a.va, a.n, a.off, int(n), p.scratch[:])
		if out != regmem.OK {
			// The region went away meanwhile.
			bad := *a
			t.answers.drop(1)
			c.up.async(vi.ErrorRDMARProt, vi.OpRDMARead)
			if bad.off == 0 {
				c.answerError(now, &rxMsg{h: iu.Header{Op: iu.ReadRqst, MsgID: bad.id}, oxid: bad.oxid, rxid: bad.rxid}, iu.RDMAReadProt)
			} else {
				c.fail2(now, iu.PortInternal, true)
			}
			return true
		}
		use.Last = a.off+n == a.n
	}
	f := p.frame(fc.RCtl(p.cfg.codec.RCtl(a.op)), p.cfg.codec.DFCtl(a.op), fc.FCtl(p.cfg.codec.FCtl(a.op, use)))
	f.SeqID, f.SeqCnt, f.OXID, f.RXID = a.seq, a.cnt, a.oxid, a.rxid
	f.Opt, f.Payload = p.cfg.codec.AppendHeader(p.opt[:0], h), payload
	if a.op.HasData() {
		f.Param = a.off
	}
	if !p.np.Send(now, c.remote, c.class, first, f) {
		a.begun = a.begun && !first
		return false
	}
	a.cnt++
	a.off += uint32(len(payload))
	p.stats.SentBytes += uint64(len(payload))
	if use.Last {
		p.stats.SentIUs++
		t.answers.drop(1)
	}
	return true
}

// fail2 is fail for an error of our own; told says that a descriptor was
// completed with it, so that the others are flushed.
func (c *conn) fail2(now fc.Time, reason iu.Reason, told bool) {
	if c.state != stConnected {
		return
	}
	c.breakNow(now, told)
	c.setState(stError)
	c.sendDisconnect(now, reason, 0, false)
}

// armResponses sets the timer of the response stream: FCVI_ULP_TIMEOUT for
// the oldest request, E_D_TOV for a response that has begun or for a gap.
// [FCVI-8.4-12] [FCVI-8.4-14]
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
	at := t.pending.at(0).since + c.p.ulpTimeout()
	if q := t.pending.at(0); q.started && !q.done {
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

// loseResponse breaks the connection for a response that will not come.
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

// response takes a frame of the response stream. [FCVI-5.2.5-2]
func (c *conn) response(now fc.Time, f *fc.Frame, h *iu.Header) {
	p, t := c.p, &c.tx
	if c.state != stConnected || c.up == nil {
		p.stats.WrongState++
		return
	}
	if !t.nextID.After(h.MsgID) { // never asked [FCVI-8.4-13]
		c.fail(now, iu.UnexpectedResp, h.MsgID, true)
		return
	}
	if t.pending.len() == 0 || t.pending.at(0).id.After(h.MsgID) {
		p.stats.LateFrames++
		return
	}
	// With Reliable Reception every message is pending, otherwise Reads only.
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
		q.bad = descriptorStatus(q.reason)
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
	if q.done && i > 0 && !c.firstAnswered() {
		if h.Flags&iu.FlagErr != 0 {
			for k := range i { // those before an error that is told were good [FCVI-E-4]
				if e := t.pending.at(k); e.w.op != iu.ReadRqst && !e.asked {
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

// retire completes answered requests from the oldest on.
func (c *conn) retire(now fc.Time) {
	t, p := &c.tx, c.p
	n := 0
	for n < t.pending.len() && t.pending.at(n).done {
		q := t.pending.at(n)
		n++
		t.unproven -= int64(q.w.n)
		if c.class == fc.Class2 { // what is not acknowledged yet has arrived all the same
			c.dropAck(q.oxid)
			p.np.Forget(now, c.remote, q.oxid)
			p.oxids.release(q.oxid)
		} else if q.asked {
			p.oxids.release(q.oxid)
		}
		if q.w.op == iu.ReadRqst {
			t.reads--
		}
		if q.probe {
			c.proved(q.id)
		} else {
			c.up.finish(&q.w, q.bad)
		}
		if q.bad != 0 { // [FCVI-5.2.2-9] [FCVI-E-4]
			id, reason := q.id, q.reason
			t.pending.drop(n)
			c.breakNow(now, true)
			c.setState(stError)
			c.sendDisconnect(now, reason, id, true)
			return
		}
	}
	if n > 0 {
		t.pending.drop(n)
		t.respGap = 0
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

// readData places a frame of a READ_RESP. It reports whether the response
// stream should go on.
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
	q.started, q.progress = true, now
	if n > 0 {
		if bad := c.up.scatterRead(&q.w, off, f.Payload); bad != 0 {
			q.bad, q.reason, q.done = bad, iu.PortInternal, true
			return true
		}
		p.stats.PlacedBytes += uint64(n)
	}
	if f.Last() {
		q.end = int64(off + n)
	}
	q.done = q.end >= 0 && q.got.covers(uint32(q.end)) // [FCVI-5.2.4-4]
	return true
}

// failedAt takes the word of the peer that message id failed: requests before
// it were delivered. It reports whether a descriptor was completed with the
// error. [FCVI-E-4]
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
