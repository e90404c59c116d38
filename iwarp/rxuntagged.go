package iwarp

import (
	"math"

	"viaduct/internal/regmem"
	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/rdmap"
)

// untagged handles an Untagged segment. The order of checks is version, queue
// number, RDMAP version and opcode, then sequence and buffer. swallow says that
// it is a ready message for which no receive is used up. [DDP-4.1-2] [DDP-7.1-1]
// [RDMAP-7.2-1] [I-47] [I-48]
func (q *QueuePair) untagged(u []byte, swallow bool) {
	h, n, err := ddp.ParseUntagged(u)
	if err != nil { // [DDP-4.1-11] [I-44]
		q.ddpFault(ddp.VersionFault(u[0]), u)
		return
	}
	if f := rdmap.CheckQueue(h.QN, q.ext); f != ddp.OK { // [DDP-7.1-1]
		q.ddpFault(f, u)
		return
	}
	p := u[n:]
	op, f := rdmap.CheckUntagged(h, len(p), q.ext)
	if f != rdmap.OK { // [RDMAP-7.2-2] [RDMAP-7.2-3] [RDMAP-7.2-6]
		q.rdmapFault(f, u)
		return
	}
	q.count(len(p), h.Last)
	switch h.QN {
	case rdmap.QueueSend:
		if swallow { // [I-08]
			q.rx.queues[0].Placed(h, 0)
			return
		}
		q.send(op, h, p, u)
	case rdmap.QueueReadRequest:
		q.request(op, h, p, u)
	case rdmap.QueueTerminate:
		q.terminated(h, p, u)
	case rdmap.QueueAtomicResponse:
		q.atomicResponse(h, p, u)
	}
}

// beginSend judges a segment of n bytes on queue 0, of which head has come, and
// takes a receive for a new message. Zero-length messages use one up too. [RDMAP-5.3-2] [RDMAP-5.3-11]
// [RDMAPX-6.3-2] [DDP-7.1-2] [DDP-7.1-6] [DDP-7.1-7] [DDP-7.1-8] [I-49] [I-50] [I-51]
func (q *QueuePair) beginSend(op rdmap.Opcode, h ddp.Untagged, head []byte, n int) (ddp.Fault, rdmap.Fault) {
	r := &q.rx
	s := &r.queues[rdmap.QueueSend]
	if _, open := s.Open(); !open {
		r.op, r.head = op, h
		if r.recv == nil {
			if f := s.Check(h, 0, 0, false); f != ddp.InvalidMSNNoBuffer {
				return f, rdmap.OK
			}
			if q.supply != nil {
				r.recv = q.nextRecv(head, n, h.Last)
			} else {
				r.recv = q.takeRecv()
			}
		}
	}
	size := uint64(0)
	if r.recv != nil {
		size = r.recv.length
	}
	if op.IsImmediate() { // its eight bytes do not go there [I-66]
		size = math.MaxUint32
	}
	f := s.Check(h, n, size, r.recv != nil)
	if f == ddp.InvalidMSNNoBuffer { // [DDP-7.1-5]
		q.stats.noReceive.Add(1)
	}
	if op != r.op && (f == ddp.OK || f == ddp.MessageTooLong) { // in its place, but of another kind [I-47]
		return ddp.OK, rdmap.UnexpectedOpcode
	}
	return f, rdmap.OK
}

// takeRecv takes the next receive, nil if there is none.
func (q *QueuePair) takeRecv() *recvWQE {
	if q.srq == nil {
		w, _ := q.rq.take()
		return w
	}
	if share := q.set.share; share > 0 && q.srqHeld.Load() >= int64(share) { // [SEC-6.4.3.1-1]
		return nil
	}
	w, ok := q.srq.take()
	if ok {
		q.srqHeld.Add(1)
		q.stats.srqTaken.Add(1)
	}
	return w
}

// send handles a segment of a Send type or of Immediate Data.
// [RDMAP-5.3-5] [RDMAP-5.5-5] [RDMAP-5.5-13] [RDMAP-5.5-15] [RDMAPX-6.3-3] [RDMAPX-6.4-1] [RDMAPX-7-1]
func (q *QueuePair) send(op rdmap.Opcode, h ddp.Untagged, p, u []byte) {
	df, rf := q.beginSend(op, h, p, len(p))
	switch {
	case df == ddp.MessageTooLong: // [RDMAP-5.3-4] [DDP-1.2-1]
		q.completeRecv(StatusLength, 0)
		q.ddpFault(df, u)
		return
	case df != ddp.OK: // [DDP-7.1-2] [DDP-7.1-6] [DDP-7.1-8]
		q.ddpFault(df, u)
		return
	case rf != rdmap.OK: // [RDMAP-5.3-7]
		q.rdmapFault(rf, u)
		return
	}
	r := &q.rx
	if !op.IsImmediate() && !q.scatter(r.recv.sg[:r.recv.nsg], uint64(h.MO), p) { // memory of a receive is gone [I-34] [I-66]
		q.completeRecv(StatusLocalAccess, 0)
		q.fault(rdmap.TerminateRDMAP(rdmap.Catastrophic, nil), ErrLocalAccess)
		return
	}
	q.placedSend(op, h, p, u)
}

// placedSend notes that a segment is in place, and delivers the message with
// the last one.
func (q *QueuePair) placedSend(op rdmap.Opcode, h ddp.Untagged, p, u []byte) {
	n, done := q.rx.queues[rdmap.QueueSend].Placed(h, len(p))
	if !done { // [DDP-5.4-2] [DDP-4.1-7]
		return
	}
	if h.MO > 0 {
		q.rx.lastSend = n
	}
	q.deliver(op, p, u, n)
}

// deliver completes the receive of a message. What it invalidates is
// invalidated before.
func (q *QueuePair) deliver(op rdmap.Opcode, p, u []byte, n uint32) {
	if stag, ok := rdmap.InvalidateSTag(q.rx.head); ok { // [DDP-5.4-4] [RDMAP-5.3-13] [RDMAP-5.3-14]
		if !q.invalidateByPeer(stag) {
			q.completeRecv(StatusFlushed, 0)
			q.rdmapFault(rdmap.CannotInvalidate, u)
			return
		}
	}
	if op.IsImmediate() { // [I-66]
		n = 0
	}
	q.completeRecv(StatusOK, n) // [DDP-5.3-6]
	if op.IsImmediate() {       // [RDMAPX-6.1-1]
		c := &q.rx.done[len(q.rx.done)-1]
		c.HasImm = true
		copy(c.Imm[:], p)
	}
}

// completeRecv completes the receive in use.
func (q *QueuePair) completeRecv(st Status, n uint32) {
	r := &q.rx
	w := r.recv
	r.recv = nil
	c := Completion{ID: w.id, QP: q, Op: OpRecv, Status: st, Len: n}
	if st == StatusOK {
		c.Solicited = r.op.Solicited() // [RDMAP-5.3-6]
		c.STag, c.Invalidated = rdmap.InvalidateSTag(r.head)
	}
	freeRecvWQE(w)
	r.done = append(r.done, c)
}

// invalidateByPeer closes the window that a Send with Invalidate names. Only a
// window of this very stream can be closed by its peer; regions, and whatever
// other streams might use, can't. One that is closed already is no error
// unless asked for. [RDMAP-5.3-14] [RDMAP-7.2-4] [RDMAP-7.2-5] [RDMAP-8.1.1-7] [SEC-6.4.5-1] [I-55]
func (q *QueuePair) invalidateByPeer(stag uint32) bool {
	q.rx.letGo() // closing a window waits for its pins
	w, former := q.findWindow(stag)
	if w != nil && w.invalidate() {
		return true
	}
	return (w != nil || former) && !q.set.strictInvalidate
}

// request takes a Read Request or Atomic Request: each uses up a place of
// queue 1, of which there are as many as start-up agreed on. It is invisible to
// the ULP. [RDMAP-5.2.1-2] [RDMAP-5.2.1-3] [RDMAP-5.2.1-4] [RDMAP-5.2.1-5] [RDMAP-5.2.2-2]
// [RDMAP-6.1-2] [RDMAP-6.1-6] [MPA2-9.1-2] [SEC-6.4.3.3-3] [RDMAPX-5.2.1-7] [RDMAPX-5.2.1-8]
// [RDMAPX-5.2.1-9] [RDMAPX-5.2.2-3] [I-20] [I-64]
func (q *QueuePair) request(op rdmap.Opcode, h ddp.Untagged, p, u []byte) {
	isAtomic := op == rdmap.AtomicRequestOp
	busy := q.inbound.reads.Load()
	if isAtomic {
		busy = q.inbound.atomics.Load()
	}
	have := busy < q.ird.Load() && q.inbound.Len() < q.inbound.Cap()
	s := &q.rx.queues[rdmap.QueueReadRequest]
	if f := s.Check(h, len(p), rdmap.AtomicRequestLen, have); f != ddp.OK {
		q.ddpFault(f, u)
		return
	}
	in := inboundRead{atomic: isAtomic}
	in.n = uint8(copy(in.ulpdu[:], u))
	f := rdmap.OK
	if isAtomic {
		r := in.op()
		f = q.checkAtomic(&r)
	} else {
		r := in.read()
		f = q.checkSource(&r)
	}
	if f != rdmap.OK {
		q.rdmapFault(f, u)
		return
	}
	if q.life.load().finished() { // nothing can be answered any more [I-33]
		q.endWith(lostError(errNoAnswer), endAbort)
		return
	}
	s.Placed(h, len(p))
	q.inbound.add(in)
	q.rx.kick = true // [RDMAP-5.5-7] [RDMAP-5.5-14] [RDMAPX-5.4-3] [RDMAPX-5.4-5] [RDMAPX-7-2]
}

// checkSource judges the source of a Read. A Read of zero bytes has none.
// [RDMAP-5.2.1-10] [RDMAP-5.2.1-13] [RDMAP-5.2.1-14] [RDMAP-7.2-7] [RDMAP-7.2-12] [SEC-6.3.1-1] [SEC-6.3.5-2] [I-43]
func (q *QueuePair) checkSource(r *rdmap.ReadRequest) rdmap.Fault {
	if r.Size == 0 {
		return rdmap.OK
	}
	if q.set.maxRead > 0 && r.Size > q.set.maxRead { // [I-62]
		return rdmap.Unspecified
	}
	out := q.dev.reg.Check(r.SourceSTag, r.SourceTO, uint64(r.Size), q.pd.dom, q, regmem.RemoteRead)
	return readFault(refine(out, r.SourceTO, uint64(r.Size)))
}

// checkAtomic judges an Atomic Request. [RDMAPX-5.2.1-10] [RDMAPX-8.2-1] [I-67]
func (q *QueuePair) checkAtomic(r *rdmap.AtomicRequest) rdmap.Fault {
	if !r.Op.Supported() {
		return rdmap.UnexpectedOpcode
	}
	ref, f := q.atomicTarget(r)
	ref.Release()
	return f
}

// atomicResponse completes the oldest Atomic of ours. [RDMAPX-5.2.2-1]
// [RDMAPX-5.2.2-4] [RDMAPX-5.2.2-5] [RDMAPX-5.2.2-6] [RDMAPX-5-6] [RDMAPX-5.4-1] [RDMAPX-5.4-7] [I-67] [I-68]
func (q *QueuePair) atomicResponse(h ddp.Untagged, p, u []byte) {
	r, _, _ := rdmap.ParseAtomicResponse(p)
	pr := q.reads.Front()
	s := &q.rx.queues[rdmap.QueueAtomicResponse]
	switch {
	case pr == nil:
		q.rdmapFault(rdmap.UnexpectedOpcode, u)
		return
	case !pr.atomic, s.Check(h, len(p), rdmap.AtomicResponseLen, true) != ddp.OK, r.ID != pr.id:
		q.rdmapFault(rdmap.Unspecified, u)
		return
	}
	s.Placed(h, len(p))
	q.sq.Update(pr.seq, func(w **sendWQE) { (*w).value = r.Value })
	q.readDone()
}

// terminated handles the peer's Terminate. It needs no receive, and is
// understood at any time. [RDMAP-5.4-3] [RDMAP-5.4-4] [RDMAP-5.4-5] [RDMAP-5.4-6] [RDMAP-5.4-9] [I-37]
func (q *QueuePair) terminated(h ddp.Untagged, p, u []byte) {
	s := &q.rx.queues[rdmap.QueueTerminate]
	if f := s.Check(h, len(p), rdmap.MaxTerminateLen, true); f != ddp.OK {
		q.ddpFault(f, u)
		return
	}
	t, _, _ := rdmap.ParseTerminate(p)
	q.blame(t)
	q.endWith(terminateError(t, true, p, nil), endQuiet)
}

// blame marks the Read or Atomic that a Terminate returns, so that it
// completes with StatusRemote.
func (q *QueuePair) blame(t rdmap.Terminate) {
	h, _, err := ddp.ParseUntagged(t.DDP)
	p := q.reads.Front()
	if err != nil || h.QN != rdmap.QueueReadRequest || p == nil || p.w == nil {
		return
	}
	for i := range q.reads.Len() {
		if p := q.reads.At(i); p.w != nil && p.msn == h.MSN {
			q.sq.Update(p.seq, func(w **sendWQE) { (*w).status = StatusRemote })
		}
	}
}
