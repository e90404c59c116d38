package fcvi

import (
	"viaduct/fc"
	"viaduct/fcvi/iu"
	"viaduct/internal/regmem"
	"viaduct/vi"
)

// maxHold is how many bytes of messages a connection holds that cannot be
// placed yet: on an out-of-order fabric, or while a receive descriptor is
// awaited. A sender has no more unanswered.
func (c *conn) maxHold() int {
	return min(64<<20, max(16<<20, 32*int(c.mts)))
}

// An rxMsg is a message request that is arriving.
type rxMsg struct {
	open     bool
	complete bool
	discard  bool // Unreliable Delivery: the rest is ignored
	taken    bool // a receive descriptor was taken for it
	checked  bool // the RDMA target was checked
	held     bool // its bytes are in buf
	h        iu.Header
	oxid     uint16
	rxid     uint16
	seq      uint8
	class    fc.Class
	got      spans
	end      int64  // length, -1 until the last frame came
	buf      []byte // bytes that have no place yet
	bad      iu.Reason
}

// rxState is the request stream of a connection. [FCVI-5.2.5-1]
type rxState struct {
	mexp     iu.MsgID // the next message to deliver
	front    iu.MsgID // the next message to arrive, ahead of mexp while messages wait
	win      []rxMsg  // by MSG_ID modulo their number, a power of two; nil until the first message
	timer    *fc.Timer
	stallAt  fc.Time // when what is missing is declared lost, 0 if nothing is
	hold     int     // bytes held
	waiting  bool    // the message at mexp waits for a receive descriptor
	capacity uint64  // of the receive descriptor that was taken
	haveRecv bool    // a receive descriptor is taken and not completed
	unasked  bool    // messages were delivered that no response was required for
	failed   iu.Reason
	failedID iu.MsgID
}

// at returns the slot of id, which is less than the window ahead of mexp.
func (r *rxState) at(id iu.MsgID) *rxMsg {
	if int(id-r.mexp) >= len(r.win) {
		r.grow(int(id - r.mexp))
	}
	return &r.win[int(id)&(len(r.win)-1)]
}

// ahead returns the slot of id if there is one that is in use.
func (r *rxState) ahead(id iu.MsgID) *rxMsg {
	if int(id-r.mexp) < len(r.win) {
		if m := &r.win[int(id)&(len(r.win)-1)]; m.open {
			return m
		}
	}
	return nil
}

// grow makes slots for messages up to n ahead of mexp. On a path that keeps
// order few are ever needed.
func (r *rxState) grow(n int) {
	size := max(8, len(r.win))
	for size <= n {
		size *= 2
	}
	old := r.win
	r.win = make([]rxMsg, size)
	for i := range old {
		id := r.mexp + iu.MsgID(i)
		r.win[int(id)&(size-1)] = old[int(id)&(len(old)-1)]
	}
}

// reset frees a slot.
func (r *rxState) reset(m *rxMsg) {
	if m.held {
		r.hold -= len(m.buf)
	}
	buf, got := m.buf[:0], m.got
	got.reset()
	if cap(buf) > 1<<16 {
		buf = nil
	}
	*m = rxMsg{buf: buf, got: got}
}

// request takes a frame of the request stream. [FCVI 8.4]
// [FCVI-5.2.1-8] [FCVI-5.3.5-3]
func (c *conn) request(now fc.Time, f *fc.Frame, h *iu.Header) {
	p := c.p
	if c.state == stResp2 || c.state == stRqst && c.sentResp2 {
		c.connected(now) // the peer would not send unless RESP2 had arrived [FCVI-5.3.2-4] [FCVI-C-8]
	}
	if c.state != stConnected || c.up == nil || c.rx.failed != iu.Accepted {
		p.stats.WrongState++ // [FCVI-8.2-2]
		return
	}
	if (h.Flags&iu.FlagRR != 0) != c.rr() || h.Op == iu.ReadRqst && (!c.reliable() || len(f.Payload) != 0) ||
		h.Flags&iu.FlagImm != 0 && h.Op == iu.ReadRqst { // [FCVI-5.9.4-5] [FCVI-5.2.4-6]
		c.violation(now, h.MsgID)
		return
	}
	r := &c.rx
	if c.ordered() {
		c.inOrder(now, f, h)
		return
	}
	switch ahead := h.MsgID - r.mexp; {
	case r.mexp.After(h.MsgID): // D1 [FCVI-8.4-2] [FCVI-3-2] [FCVI-B-4]
		if !c.proveAgain(f, h) {
			p.stats.LateFrames++
		}
	case ahead >= c.rxWindow(): // D8 [FCVI-8.4-9]
		p.stats.WindowFull++
		if c.reliable() {
			c.fail(now, iu.PortResources, r.mexp, true)
		}
	default:
		c.take1(now, f, h, false)
	}
}

// inOrder applies the column of the in-order fabric.
func (c *conn) inOrder(now fc.Time, f *fc.Frame, h *iu.Header) {
	r, p := &c.rx, c.p
	switch {
	case r.front.After(h.MsgID): // D1, D4
		if !r.mexp.After(h.MsgID) || !c.proveAgain(f, h) {
			p.stats.LateFrames++
		}
		return
	case r.front-r.mexp >= c.rxWindow(): // too many messages wait for receive descriptors
		p.stats.WindowFull++
		if c.reliable() {
			c.fail(now, iu.NoRecvDesc, r.mexp, true)
		}
		return
	case h.MsgID == r.front:
		c.take1(now, f, h, true)
		return
	}
	// Mrcv after Mexp: a message, or the tail of one, is lost. [FCVI-8.4-6] [FCVI-8.4-7]
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
		r.reset(m)          // the receive descriptor taken for it serves the next [FCVI-B-5]
	}
	r.stallAt = 0
	if f.Param != 0 && h.Op.HasData() {
		p.stats.Discarded++
		return // not the start of a message: wait for one
	}
	if r.mexp == r.front {
		r.mexp, r.front = h.MsgID, h.MsgID
	} else if !r.skip(h.MsgID, c.rxWindow()) {
		p.stats.WindowFull++
		return
	}
	c.take1(now, f, h, true)
}

// skip gives up the messages from front to id, behind others that wait for
// receive descriptors. It is false if the window does not reach so far.
func (r *rxState) skip(id, window iu.MsgID) bool {
	if id-r.mexp >= window {
		return false
	}
	for ; r.front != id; r.front++ {
		m := r.at(r.front)
		r.reset(m)
		m.open, m.complete, m.discard, m.h.MsgID = true, true, true, r.front
	}
	return true
}

// lost breaks a reliable connection for a hole in the request stream. What
// was received of the message in hand is reported as partial. [FCVI-8.4-4]
// [FCVI-3-4]
func (c *conn) lost(now fc.Time, m *rxMsg, reason iu.Reason, id iu.MsgID) {
	c.partial(m)
	c.fail(now, reason, id, true)
}

// partial reports a message that arrived incompletely.
func (c *conn) partial(m *rxMsg) {
	r := &c.rx
	switch {
	case !m.open:
	case r.haveRecv && m.h.Op == iu.SendRqst:
		r.haveRecv = false
		c.up.finishRecv(vi.Delivery{Length: m.got.next(), Status: vi.StatusPartialError})
	case m.h.Op == iu.WriteRqst && m.h.Flags&iu.FlagImm == 0:
		c.up.async(vi.ErrorRDMAWAbort, vi.OpRDMAWrite)
	}
}

// take1 accepts a frame into its message.
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
	if m.complete && h.MsgID == r.mexp {
		c.deliver(now)
	}
}

// rxWindow is how many messages the receive stream holds, the one expected
// included. [FCVI-8.4-6]
func (c *conn) rxWindow() iu.MsgID {
	if c.ordered() {
		return LimitMaxUnacked
	}
	return window
}

// stall sets when an unfinished stream is declared to have lost something:
// E_D_TOV after the last frame that filled the message expected, or after the
// first one beyond it. [FCVI-8.4-10]
func (c *conn) stall(now fc.Time, m *rxMsg) {
	r := &c.rx
	if m.complete && m.h.MsgID == r.mexp {
		r.stallAt = 0
		return // deliver looks further
	}
	if m.h.MsgID == r.mexp || r.stallAt == 0 {
		r.stallAt = now + c.gap()
	}
	if !r.timer.Active() {
		r.timer.Set(r.stallAt)
	}
}

// gapExpired runs when something may have been missing for E_D_TOV.
// [FCFS-2.10-4]
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
		p.pump(now)
		return
	}
	// Unreliable Delivery skips to the oldest message that is complete, or
	// else to the oldest that has begun.
	r.stallAt = 0
	next := r.mexp + 1
	if m.open {
		p.stats.Discarded++
		r.reset(m)
	}
	for id := r.mexp + 1; id-r.mexp < c.rxWindow(); id++ {
		if r.ahead(id) != nil {
			next = id
			break
		}
	}
	r.mexp = next
	if r.front-r.mexp >= c.rxWindow() {
		r.front = r.mexp
	}
	c.deliver(now)
	p.pump(now)
}

// placeFrame puts the bytes of a frame where they belong if it is the turn of
// their message, and holds them otherwise: a later Write must not be overtaken
// in memory by an earlier one. It reports whether the message goes on.
func (c *conn) placeFrame(now fc.Time, m *rxMsg, off uint32, b []byte) bool {
	r := &c.rx
	if m.h.Op == iu.ReadRqst {
		return true
	}
	if !m.held && m.h.MsgID == r.mexp && !r.waiting {
		if m.h.Op == iu.WriteRqst {
			c.placeWrite(m, off, b)
			return true
		}
		if m.taken || c.takeRecv(now, m) {
			return c.scatter(now, m, off, b)
		}
		if !m.held {
			return false
		}
	}
	return c.hold(now, m, off, b)
}

// placeWrite places bytes of a Write. Its rights and bounds are checked as a
// whole before its first byte; an error is told when the message is complete.
// [FCVI-5.2.3-3]
// [FCVI-5.2.3-1] [FCVI-5.9.8-2] [FCVI-7.3-7]
func (c *conn) placeWrite(m *rxMsg, off uint32, b []byte) {
	if !m.checked {
		m.checked = true
		if out := c.up.check(m.h.RmtHandle, m.h.RmtVA, m.h.Total, true); out != regmem.OK {
			m.bad = iu.RDMAWriteProt
			if !c.attrs.Write {
				m.bad = iu.RDMAWriteOff
			}
		}
	}
	if m.bad != 0 || len(b) == 0 {
		return
	}
	if out := c.up.place(m.h.RmtHandle, m.h.RmtVA, m.h.Total, off, b); out != regmem.OK {
		m.bad = iu.RDMAWriteProt
		return
	}
	c.p.stats.PlacedBytes += uint64(len(b))
}

// hold keeps bytes until their message's turn.
func (c *conn) hold(now fc.Time, m *rxMsg, off uint32, b []byte) bool {
	r := &c.rx
	m.held = true
	need := int(off) + len(b)
	if more := need - len(m.buf); more > 0 {
		if r.hold+more > c.maxHold() {
			c.p.stats.WindowFull++
			c.reject1(now, m, iu.PortResources)
			return false
		}
		r.hold += more
		if need > cap(m.buf) {
			m.buf = append(make([]byte, 0, max(need, min(2*cap(m.buf), int(c.mts)))), m.buf...)
		}
		m.buf = m.buf[:need]
	}
	copy(m.buf[off:], b)
	return true
}

// takeRecv takes a receive descriptor for the message at mexp. Without one the
// message waits, is dropped or breaks the connection. [FCVI-3-8]
func (c *conn) takeRecv(now fc.Time, m *rxMsg) bool {
	r := &c.rx
	if r.haveRecv { // left over from a message that was discarded [FCVI-B-5]
		m.taken = true
		return true
	}
	capacity, bad, ok := c.up.takeRecv()
	if !ok {
		if c.holds {
			m.held, r.waiting = true, true
			return false
		}
		c.p.stats.NoReceive++ // [FCVI-5.2.3-4]
		c.up.async(vi.ErrorRecvQEmpty, controlOf(m.h.Op))
		c.reject1(now, m, iu.NoRecvDesc)
		return false
	}
	r.haveRecv, r.capacity, m.taken = true, capacity, true
	if bad != 0 {
		reason := iu.RecvProt
		if bad&vi.StatusFormatError != 0 {
			reason = iu.RecvFormat
		}
		c.recvError(now, m, bad, reason)
		return false
	}
	return true
}

func controlOf(o iu.Opcode) vi.Control {
	switch o {
	case iu.WriteRqst:
		return vi.OpRDMAWrite
	case iu.ReadRqst:
		return vi.OpRDMARead
	}
	return vi.OpSendReceive
}

// recvError completes the receive descriptor in hand with an error and deals
// with its message.
func (c *conn) recvError(now fc.Time, m *rxMsg, st vi.Status, reason iu.Reason) {
	c.rx.haveRecv = false
	c.up.finishRecv(vi.Delivery{Length: 0, Status: st})
	c.reject1(now, m, reason)
}

// scatter places bytes of a Send into the receive descriptor.
func (c *conn) scatter(now fc.Time, m *rxMsg, off uint32, b []byte) bool {
	if uint64(off)+uint64(len(b)) > c.rx.capacity {
		c.recvError(now, m, vi.StatusLengthError, iu.LengthError)
		return false
	}
	if len(b) == 0 {
		return true
	}
	if st := c.up.scatter(off, b); st != 0 {
		c.recvError(now, m, st, iu.RecvProt)
		return false
	}
	c.p.stats.PlacedBytes += uint64(len(b))
	return true
}

// reject1 deals with a message that cannot be delivered: dropped at Unreliable
// Delivery, told by DISCONNECT_RQST at Reliable Delivery, by an ERR response
// at Reliable Reception and for Reads. [FCVI-5.2.2-6] [FCVI-5.2.2-7] [FCVI-5.2.2-8]
func (c *conn) reject1(now fc.Time, m *rxMsg, reason iu.Reason) {
	r := &c.rx
	if !c.reliable() {
		c.p.stats.Discarded++
		m.discard = true
		if m.held {
			r.hold -= len(m.buf)
			m.held, m.buf = false, nil
		}
		if m.end >= 0 && m.got.covers(uint32(m.end)) && !m.complete {
			m.complete = true
			if m.h.MsgID == r.front {
				r.front++
			}
			if m.h.MsgID == r.mexp {
				c.deliver(now)
			}
		}
		return
	}
	if (c.rr() || m.h.Op == iu.ReadRqst) && m.h.Flags&iu.FlagRspRqd != 0 && m.h.MsgID == r.mexp {
		c.answerError(now, m, reason)
		return
	}
	c.fail(now, reason, m.h.MsgID, true)
}

// answerError queues an ERR response and ends the connection here; the
// originator disconnects, or this side does after R_A_TOV. [FCVI-5.2.2-9]
// [FCVI-5.2.4-5]
func (c *conn) answerError(now fc.Time, m *rxMsg, reason iu.Reason) {
	c.rx.failed, c.rx.failedID = reason, m.h.MsgID
	c.tx.answers.push(answer{op: m.h.Op.Response(), id: m.h.MsgID, flags: iu.FlagErr,
		status: iu.Status{Reason: reason}.Param(), oxid: m.oxid, rxid: m.rxid})
	c.breakNow(now, true)
	c.setState(stError)
	c.discHdr = iu.Header{}
	c.timer.Set(now + c.p.np.RATOV())
	c.p.activate(c)
}

// deliver completes messages in MSG_ID order as far as they are here.
// [FCVI-8.4-11]
// [FCVI-3-5]
func (c *conn) deliver(now fc.Time) {
	r := &c.rx
	for c.state == stConnected && c.up != nil {
		m := r.at(r.mexp)
		if !m.open || !m.complete {
			break
		}
		if !m.discard && !c.deliverOne(now, m) {
			return
		}
		if c.up == nil {
			return
		}
		r.reset(m)
		r.mexp++
		if r.mexp.After(r.front) {
			r.front = r.mexp
		}
	}
	if c.state != stConnected || c.up == nil {
		return
	}
	if c.late != nil && !c.late.before.After(r.mexp) {
		c.disconnectNow(now)
		return
	}
	// Is there anything beyond a hole, or a message that has begun?
	r.stallAt = 0
	for id := r.mexp; int(id-r.mexp) < len(r.win); id++ {
		if r.ahead(id) != nil {
			r.stallAt = now + c.gap()
			if !r.timer.Active() {
				r.timer.Set(r.stallAt)
			}
			break
		}
		if c.ordered() && id == r.front {
			break
		}
	}
}

// deliverOne completes the message at mexp. It reports false if the message
// has to wait or the connection ended.
func (c *conn) deliverOne(now fc.Time, m *rxMsg) bool {
	p := c.p
	n := uint32(m.end)
	d := vi.Delivery{Length: n, Immediate: m.h.Flags&iu.FlagImm != 0, Data: m.h.Param}
	if !d.Immediate {
		d.Data = 0
	}
	switch m.h.Op {
	case iu.SendRqst:
		if !m.taken {
			if !c.takeRecv(now, m) {
				return c.up != nil && m.discard
			}
			if m.held && !c.scatter(now, m, 0, m.buf[:n]) {
				return c.up != nil && m.discard
			}
		}
		c.rx.haveRecv = false
		c.up.finishRecv(d) // [FCVI-5.2.2-4]
	case iu.WriteRqst:
		if m.held {
			c.placeWrite(m, 0, m.buf[:n])
			m.held = false
			c.rx.hold -= len(m.buf)
			m.buf = m.buf[:0]
		}
		if m.bad != 0 {
			return c.writeError(now, m, d)
		}
		if d.Immediate { // [FCVI-5.2.3-2]
			if !m.taken && !c.takeRecv(now, m) {
				return c.up != nil && m.discard
			}
			d.RemoteWrite = true
			c.rx.haveRecv = false
			c.up.finishRecv(d)
		}
	case iu.ReadRqst:
		return c.serveRead(now, m)
	}
	p.stats.DeliveredMessages++
	if c.up == nil {
		return false
	}
	if c.rr() { // [FCVI-5.1-9] [FCVI-5.2.2-2] [FCVI-5.2.2-3] [FCVI-5.2.2-5]
		if m.h.Flags&iu.FlagRspRqd == 0 {
			c.rx.unasked = true
			return true
		}
		a := answer{op: m.h.Op.Response(), id: m.h.MsgID, oxid: m.oxid, rxid: m.rxid}
		if c.rx.unasked { // [FCVI-E-3]
			a.flags |= iu.FlagCum
			c.rx.unasked = false
		}
		c.answer(a)
	}
	return true
}

func (c *conn) answer(a answer) {
	c.tx.answers.push(a)
	c.p.activate(c)
}

// writeError reports an RDMA Write whose target failed the check: in the
// receive descriptor it would have consumed, or asynchronously.
func (c *conn) writeError(now fc.Time, m *rxMsg, d vi.Delivery) bool {
	if d.Immediate && (m.taken || c.takeRecv(now, m)) {
		d.RemoteWrite, d.Length, d.Status = true, 0, vi.StatusRDMAProtection
		c.rx.haveRecv = false
		c.up.finishRecv(d)
	} else if c.up != nil {
		c.up.async(vi.ErrorRDMAWProt, vi.OpRDMAWrite)
	}
	if c.up == nil {
		return false
	}
	if !c.reliable() {
		c.p.stats.Discarded++
		return true
	}
	c.reject1(now, m, m.bad)
	return false
}

// serveRead queues the answer of an RDMA Read after its target was checked.
// [FCVI-5.2.4-2]
func (c *conn) serveRead(now fc.Time, m *rxMsg) bool {
	h := &m.h
	reads := 0
	for i := range c.tx.answers.len() {
		if c.tx.answers.at(i).op == iu.ReadResp {
			reads++
		}
	}
	out := regmem.OK
	if !isProbe(h) {
		out = c.up.check(h.RmtHandle, h.RmtVA, h.Total, false)
	}
	switch {
	case h.Flags&iu.FlagRspRqd == 0 || reads >= max(1, int(c.attrs.MaxReads)):
		c.violation(now, h.MsgID)
		return false
	case out != regmem.OK:
		c.up.async(vi.ErrorRDMARProt, vi.OpRDMARead)
		reason := iu.RDMAReadProt
		if !c.attrs.Read {
			reason = iu.RDMAReadOff
		}
		c.answerError(now, m, reason)
		return false
	}
	c.p.stats.DeliveredMessages++
	a := answer{op: iu.ReadResp, id: h.MsgID, oxid: m.oxid, rxid: m.rxid, va: h.RmtVA, mh: h.RmtHandle, n: h.Total}
	if c.rx.unasked { // it answers the streamed messages before it
		a.flags |= iu.FlagCum
		c.rx.unasked = false
	}
	c.answer(a)
	return true
}

// recvPosted is the doorbell of the receive queue: a message that waits may go
// on.
func (c *conn) recvPosted(now fc.Time) {
	r := &c.rx
	if c.state != stConnected || c.up == nil || !r.waiting {
		return
	}
	r.waiting = false
	m := r.at(r.mexp)
	if m.open && m.complete {
		c.deliver(now)
	} else if m.open && r.stallAt == 0 {
		c.stall(now, m)
	}
	c.p.pump(now)
}

// abandon reports the message in hand as partial when the connection ends.
func (r *rxState) abandon(up consumer) {
	r.win, r.hold, r.waiting = nil, 0, false
}

// abortedMessage takes an ABTS for a message in arrival.
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
