package sdpcore

import (
	"time"

	"viaduct/internal/wire/sdpwire"
)

// An inAdv is a SrcAvail of the peer that is Unprocessed, or In-Process once asked is not zero.
// When the last message that answers it is sent, it is Processed, and removed. [SDP-5-1]
type inAdv struct {
	key      uint64
	stag     uint32
	to       uint64        // offset of the first byte after the payload of the SrcAvail
	size     int           // bytes after that payload
	asked    int           // bytes requested by RDMA Read
	done     int           // bytes whose RDMA Read is complete
	reported int           // bytes acknowledged by RdmaRdCompl
	at       time.Duration // when the SrcAvail arrived, or when its last RDMA Read was complete
	wantSm   bool          // whether to answer the SrcAvail with SendSm
	empty    bool          // the message's payload is the whole buffer, so RdmaRdCompl of 0 answers it [D-18]
}

// A readOp is an RDMA Read in progress.
type readOp struct {
	adv   uint64 // key of the SrcAvail that is read
	rid   uint64 // read that gets the bytes, unless local is set
	n     int
	local bool // the bytes go to memory of the driver
}

// fetches are the open SrcAvails of the peer, and the RDMA Reads from them: Read Zcopy at the Data
// Sink. [SDP 9.2]
type fetches struct {
	*common
	cr   *credits
	snd  *sender
	mode *recvMode

	adverts   deque[inAdv] // oldest first
	ops       deque[readOp]
	opsLocal  int           // number of ops into local memory
	expected  int           // bytes still to be received by Data after a SendSm [SDP-9.2-27]
	srcCancel bool          // a SrcAvailCancel is being answered [SDP-9.5.4-5]
	waitAt    time.Duration // time since which no read waits for the oldest SrcAvail
}

// add records a SrcAvail of n bytes of payload. The advertisement ends by RDMA or by a SendSm, which
// sm asks for. [SDP-9.5.2.1-4]
func (f *fetches) add(msg *inbound, n int, sm bool) {
	a := f.adverts.push(inAdv{key: f.newKey(), stag: msg.STag, to: msg.VA + uint64(n), size: int(msg.Size) - n, at: f.now})
	a.empty = a.size == 0 // [D-18]
	a.wantSm = sm
	if f.adverts.len() == 1 {
		f.waitAt = f.now
	}
}

// start starts an RDMA Read into r [SDP-9-4] from the oldest SrcAvail with unrequested bytes. It
// returns false if no RDMA Read was started. [SDP-9.2-7] [SDP-9.5.2.1-3] If the free part of r is
// too short for zero copy, the SrcAvail will be answered with SendSm. [SDP-9.2-6] [SDP-6.3.5-1]
func (f *fetches) start(r *read) bool {
	i := f.next()
	if i < 0 || f.opsLocal > 0 {
		return false
	}
	a := f.adverts.at(i)
	room, left := r.n-r.off-r.inflight, a.size-a.asked
	// [SDP-9.2-5]
	if room < left && room <= f.p.RecvThreshold {
		// No RDMA Read into r is in progress: such a Read would fetch the whole rest of this
		// SrcAvail.
		if i == 0 && (r.off == 0 || r.all) {
			a.wantSm = true
		}
		return false
	}
	// The RDMA Read begins after the prefix, with the STag of the SrcAvail. [SDP-9.2-8]
	// [SDP-6.3.2.3-1] [SDP-11.3-15]
	n := min(room, left)
	f.do(Action{Op: OpRDMARead, ID: r.id, Off: r.off + r.inflight, N: n, STag: a.stag, TO: a.to + uint64(a.asked)})
	f.ops.push(readOp{adv: a.key, rid: r.id, n: n})
	a.asked += n
	r.inflight += n
	r.fetched = true
	return true
}

// startLocal starts an RDMA Read of n bytes of the oldest SrcAvail into memory of the driver, for a
// later reader. [SDP-9.5.6-1] [SDP-9.2-29]
func (f *fetches) startLocal(n int) {
	a := f.adverts.at(0)
	f.do(Action{Op: OpRDMARead, Local: true, N: n, STag: a.stag, TO: a.to + uint64(a.asked)})
	f.ops.push(readOp{adv: a.key, n: n, local: true})
	f.opsLocal++
	a.asked += n
}

// next returns the index of the SrcAvail that the next RDMA Read takes bytes from, or -1 if there is
// none.
func (f *fetches) next() int {
	if f.life != lifeOpen || f.srcCancel || f.expected > 0 || f.ops.len() >= f.p.ORD { // [SDP-9.5.4-6] [SDP-9.2-26] [SDP-6.2.1.7-1]
		return -1
	}
	for i := range f.adverts.len() {
		a := f.adverts.at(i)
		if a.wantSm {
			return -1
		}
		if a.asked < a.size {
			return i
		}
	}
	return -1
}

// done records that the oldest RDMA Read is complete, and returns it.
func (f *fetches) done() readOp {
	op := f.ops.pop()
	for i := range f.adverts.len() {
		if a := f.adverts.at(i); a.key == op.adv {
			a.done += op.n
			a.at = f.now
			break
		}
	}
	f.stats.RecvBytesRead += uint64(op.n)
	if op.local {
		f.opsLocal--
	}
	return op
}

// allow reports whether a message may carry n bytes of payload while a SrcAvail is open.
func (f *fetches) allow(mid sdpwire.MID, n int, mode sdpwire.Mode) error {
	switch {
	case f.expected == 0 && mode == sdpwire.Pipelined:
		return violation("SDP-11.3-5", mid, "payload while a SrcAvail is open")
	case f.expected == 0:
		return violation("SDP-11.2-4", mid, "payload while a SrcAvail is open")
	case n > f.expected:
		return violation("SDP-11.3-6", mid, "%d bytes where %d were owed", n, f.expected)
	}
	return nil
}

// answer sends an RdmaRdCompl or a SendSm that is due. It reports whether it did.
func (f *fetches) answer() bool {
	switch {
	case f.complReady():
		f.complete(f.mode.preference())
	case f.life == lifeOpen && f.sendSmReady():
		f.sendSm()
	default:
		return false
	}
	return true
}

// release answers a SrcAvailCancel with the last credit. While MSeqAck is held, no message gives
// the peer credit [D-12]. The answer does, because its true number frees the cancel's own buffer.
// [SDP-10.5-2] A SendSm always carries the true number. An RdmaRdCompl should keep the held number
// [D-33], but then two ends with pools of three might wait for credit until the cancel times out.
// For the peer the cancel ends with the SendSm, or when no SrcAvail is open, but never by the
// MSeqAck of another message.
func (f *fetches) release() bool {
	c := f.cr
	if !c.hold || c.credit() != 1 || f.life != lifeOpen {
		return false
	}
	if f.sendSmReady() {
		f.sendSm()
		return true
	}
	if f.complReady() {
		c.hold = false
		f.complete(f.mode.preference())
		return true
	}
	return false
}

// complReady reports whether the oldest SrcAvail has bytes to acknowledge.
func (f *fetches) complReady() bool {
	if f.adverts.len() == 0 {
		return false
	}
	a := f.adverts.at(0)
	// Acknowledge only bytes already read [SDP-9.2-10], and only while no other read is in
	// progress, so that each round has a single answer.
	return a.empty || a.done > a.reported && a.done == a.asked
}

// complete acknowledges the bytes of the oldest SrcAvail that were read since the last
// acknowledgement. flags has the preferred mode of this end. [SDP-9.2-9] [SDP-9.2-11] [SDP-9.2-12]
// [SDP-9.2-13] [SDP-9.2-28] [SDP-6.3.7.1-1] [SDP-6.3.7.1-2] [SDP-6.3.7.1-3]
func (f *fetches) complete(flags sdpwire.Flags) {
	a := f.adverts.at(0)
	act := &f.out[f.snd.send(sdpwire.RdmaRdCompl, flags)]
	act.Msg.Size = uint32(a.done - a.reported)
	a.reported = a.done
	if a.done == a.size {
		// The last RdmaRdCompl invalidates the STag [SDP-9.2-20]; earlier ones use Send with SE.
		// [SDP-9.2-21]
		if !f.p.NoInvalidate {
			act.Invalidate, act.STag = true, a.stag
		}
		f.adverts.pop()
		f.waitAt = f.now
		if f.adverts.len() == 0 { // the SrcAvailCancel is complete [D-33]
			f.endCancel()
		}
	}
}

// sendSmReady reports whether a SendSm is due, in any mode [SDP-11-2] [D-21]: for the oldest
// SrcAvail after all of its reads were finished and acknowledged, or for a cancel.
func (f *fetches) sendSmReady() bool {
	if f.adverts.len() == 0 {
		return false
	}
	a := f.adverts.at(0)
	if a.done != a.asked || a.done != a.reported || a.empty {
		return false
	}
	if f.srcCancel {
		return f.ops.len() == 0 // [SDP-9.5.4-7]
	}
	return a.wantSm && f.expected == 0
}

// sendSm forces the rest of the oldest SrcAvail to Bcopy [SDP-9.5.2.1-1], or answers a cancel by a
// single SendSm for all SrcAvails. The SendSm is the first message with the true MSeqAck again.
// [SDP-9.5.4-8] [SDP-9.5.4-9] [D-32] [D-33]
func (f *fetches) sendSm() {
	f.stats.SentSendSms++
	if f.srcCancel {
		f.endCancel()
		f.snd.send(sdpwire.SendSm, 0)
		f.adverts.clear()
		return
	}
	f.snd.send(sdpwire.SendSm, 0)
	a := f.adverts.pop()
	f.expected = a.size - a.reported // [SDP-9.2-27]; later SrcAvails stay [SDP-11.3-7]
	f.waitAt = f.now
}

// beginSrcAvailCancel checks a SrcAvailCancel: a second must not be open at the same time.
func (f *fetches) beginSrcAvailCancel(msg *inbound) error {
	if f.srcCancel {
		return violation("SDP-9.5.4-10", msg.MID, "another is being answered")
	}
	return nil
}

// endSrcAvailCancel makes sendSm answer the cancel and drop all unfinished SrcAvails. [SDP-9.5.4-2]
// [SDP-9.5.4-3] If no SrcAvail is open, the cancel has no effect. [SDP-9.5.4-4]
func (f *fetches) endSrcAvailCancel(msg *inbound) error {
	if f.adverts.len() == 0 {
		return nil
	}
	f.srcCancel = true
	f.cr.hold, f.cr.holdAt = f.life == lifeOpen, serial(msg.MSeq)-1 // [SDP-9.5.4-5] [D-33]
	return nil
}

// endCancel ends the SrcAvailCancel and the hold of MSeqAck.
func (f *fetches) endCancel() { f.srcCancel, f.cr.hold = false, false }

// refuse makes SendSm the answer to all SrcAvails.
func (f *fetches) refuse() {
	for i := range f.adverts.len() {
		f.adverts.at(i).wantSm = true
	}
}

// lonely reports whether the oldest SrcAvail has unrequested bytes, and no SendSm will answer it. The
// caller has checked that no read waits for them.
func (f *fetches) lonely() bool {
	if f.adverts.len() == 0 || f.ops.len() > 0 || f.srcCancel || f.expected > 0 {
		return false
	}
	a := f.adverts.at(0)
	return !a.wantSm && a.asked < a.size
}

// lonelyFits returns the number of bytes of a lonely SrcAvail that can be fetched into local memory:
// all, or as many as the receive buffer has room for besides the compacted bytes. So a write that
// fits the buffers of both ends does not wait for a reader. It returns 0 if no SrcAvail is lonely, or
// if the room is not worth a round trip. [D-38] [SDP-9.5.6-1]
func (f *fetches) lonelyFits(compacted int) int {
	if !f.lonely() {
		return 0
	}
	left := f.adverts.at(0).size - f.adverts.at(0).asked
	room := f.p.RecvBudget - compacted
	if room < min(left, f.p.RecvSize) {
		return 0 // too few for a round trip
	}
	return min(left, room)
}

// deadlockAfter returns how long this end waits before it resolves a deadlock. The times of the
// peers differ, so that one end acts first. [D-38]
func (f *fetches) deadlockAfter() time.Duration {
	if f.p.Role == Connecting {
		return 3 * f.p.Timers.Deadlock
	}
	return f.p.Timers.Deadlock
}

// tick fetches bytes of the oldest SrcAvail, for which no read waits, or answers the SrcAvail with
// SendSm if both ends advertise and neither reads. advertising is whether this end advertises.
// [SDP-9.2-29]
func (f *fetches) tick(compacted int, advertising bool) {
	if n := f.lonelyFits(compacted); n > 0 && f.now >= f.waitAt+f.p.Timers.LocalRead {
		f.startLocal(n)
	}
	if advertising && f.lonely() && f.now >= f.waitAt+f.deadlockAfter() {
		f.adverts.at(0).wantSm = true
	}
}

// timers adds the times of tick.
func (f *fetches) timers(a *alarm, compacted int, advertising bool) {
	if f.lonelyFits(compacted) > 0 {
		a.at(f.waitAt + f.p.Timers.LocalRead)
	}
	if advertising && f.lonely() {
		a.at(f.waitAt + f.deadlockAfter())
	}
}
