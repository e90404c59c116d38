package iwarp

import (
	"math"
	"sync/atomic"

	"viaduct/internal/regmem"
	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/rdmap"
)

// messageTypes holds the messageType of each opcode. parse refuses all others.
var messageTypes = [16]messageType{
	rdmap.Write: {(*QueuePair).beginWrite, (*QueuePair).writeTarget, (*QueuePair).endWrite,
		(*QueuePair).failWrite},
	rdmap.ReadResponse: {(*QueuePair).beginResponse, (*QueuePair).listTarget,
		(*QueuePair).endResponse, (*QueuePair).failResponse},
	rdmap.Send:             send,
	rdmap.SendInvalidate:   send,
	rdmap.SendSE:           send,
	rdmap.SendSEInvalidate: send,
	rdmap.Immediate:        {begin: (*QueuePair).beginSend, end: (*QueuePair).endSend},
	rdmap.ImmediateSE:      {begin: (*QueuePair).beginSend, end: (*QueuePair).endSend},
	rdmap.ReadRequestOp:    {begin: (*QueuePair).beginReadRequest, end: (*QueuePair).endRequest},
	rdmap.AtomicRequestOp:  {begin: (*QueuePair).beginAtomicRequest, end: (*QueuePair).endRequest},
	rdmap.AtomicResponseOp: {begin: (*QueuePair).beginAtomicResponse, end: (*QueuePair).endAtomicResponse},
	rdmap.TerminateOp:      {begin: (*QueuePair).beginTerminate, end: (*QueuePair).endTerminate},
}

var send = messageType{(*QueuePair).beginSend, (*QueuePair).listTarget, (*QueuePair).endSend, (*QueuePair).failSend}

// beginWrite checks a segment of an RDMA Write before its first byte is placed. An empty segment
// names no memory, so neither STag nor TO is checked. [DDP-5.2-10] [DDP-5.2-9] [RDMAP-5.1-8]
// [DDP-4.2-5] [DDP-4.2-8] [DDP-5.2-4] [DDP-8.3.1-1] [RDMAP-5.1-4] [RDMAP-5.1-6] [DDP-7.1-14]
// [RDMAP-5.1-2] [RDMAP-3.2-4] [RDMAP-8.1.1-3] [SEC-6.2.1-1] [RDMAP-5.1-3]
func (q *QueuePair) beginWrite(s *segment) refusal {
	if s.size == 0 {
		return refusal{}
	}
	var out regmem.Outcome
	s.at, out = q.reach(s.tagged.STag, s.tagged.TO, uint64(s.size), regmem.RemoteWrite)
	return refusal{ddp: writeFault(refine(out, s.tagged.TO, uint64(s.size)))}
}

func (q *QueuePair) writeTarget(s *segment, off, n uint64) (regmem.Ref, regmem.Outcome) {
	return q.mem.access(s.tagged.STag, s.tagged.TO+off, n, regmem.RemoteWrite)
}

// endWrite counts the placed bytes of the segment. The ULP is not notified.
func (q *QueuePair) endWrite(s *segment) { q.stats.placed.Add(uint64(s.size)) }

func (q *QueuePair) failWrite(s *segment, out regmem.Outcome, err error) {
	placed := q.rx.Placed()
	at, n := uint64(placed), uint64(s.size-placed)
	q.refuse(s, refusal{ddp: writeFault(refine(out, s.tagged.TO+at, n))}, err)
}

// beginResponse checks a segment of a Read Response, and sets s.at if the memory for the payload is
// contiguous and pinned. [I-45] [I-46]
func (q *QueuePair) beginResponse(s *segment) refusal {
	p, df, rf := q.reads.check(s.tagged, s.size)
	if p != nil && s.size > 0 {
		s.at = q.reachList(p.w.sg[:p.w.nsg], uint64(p.got), uint64(s.size))
	}
	return refusal{df, rf}
}

// endResponse counts the bytes, and completes our Read with the last segment. The ULP of the peer
// is not notified.
func (q *QueuePair) endResponse(s *segment) {
	q.reads.Front().got += uint32(s.size)
	if s.last { // [RDMAP-3.2-6] [RDMAP-5.5-6] [RDMAP-5.2.2-3] [RDMAP-5.5-16] [RDMAP-5.5-19]
		q.readDone()
	}
}

// failResponse ends the stream because the sink of a Read is not accessible any more. [I-34]
func (q *QueuePair) failResponse(*segment, regmem.Outcome, error) {
	p := q.reads.Front()
	// The end of the stream flushes the Read with this status.
	q.sends.setStatus(p.seq, StatusLocalAccess)
	q.life.fault(rdmap.TerminateRDMAP(rdmap.Catastrophic, nil), ErrLocalAccess)
}

// readDone completes our oldest Read or Atomic and removes the request from q.reads. The ready
// message has no request to complete. If outstanding Reads block the send queue, publish then wakes
// the send role.
func (q *QueuePair) readDone() {
	p := q.reads.Front()
	w, seq := p.w, p.seq
	q.reads.Pop()
	if w != nil {
		q.sends.finish(seq, seq+1)
	}
	if q.reads.unblock() {
		q.rx.kick = true
	}
}

// beginSend checks a segment on queue 0, and takes a receive for a new message, even for one
// without bytes. [RDMAP-5.3-2] [RDMAP-5.3-11] [RDMAPX-6.3-2] [DDP-7.1-2] [DDP-7.1-6] [DDP-7.1-7]
// [DDP-7.1-8] [I-49] [I-50] [I-51]
func (q *QueuePair) beginSend(s *segment) refusal {
	r := &q.rx
	h := s.un
	o := &r.queues[rdmap.QueueSend]
	if _, open := o.Open(); !open {
		r.op, r.head = s.op, h
		if r.recv == nil {
			if f := o.Check(h, 0, 0, false); f != ddp.InvalidMSNNoBuffer {
				return refusal{ddp: f}
			}
			if q.supply != nil {
				r.recv = q.nextRecv(s.payload(), s.size, h.Last)
			} else {
				r.recv = q.takeRecv()
			}
		}
	}
	size := uint64(0)
	if r.recv != nil {
		size = r.recv.length
	}
	if s.op.IsImmediate() { // the eight bytes of an immediate are not placed in the receive [I-66]
		size = math.MaxUint32
	}
	f := o.Check(h, s.size, size, r.recv != nil)
	if f == ddp.InvalidMSNNoBuffer { // [DDP-7.1-5]
		q.stats.noReceive.Add(1)
	}
	// A later segment of the message must have the same opcode. [I-47] [RDMAP-5.3-7]
	if s.op != r.op && (f == ddp.OK || f == ddp.MessageTooLong) {
		return refusal{rdmap: rdmap.UnexpectedOpcode}
	}
	if f == ddp.OK && !s.op.IsImmediate() {
		s.at = q.reachList(r.recv.sg[:r.recv.nsg], uint64(h.MO), uint64(s.size))
	}
	return refusal{ddp: f}
}

// takeRecv takes the next posted receive. It returns nil if there is none, or if the stream already
// holds Config.SRQShare buffers of the shared queue.
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

// endSend counts the bytes of a segment, and delivers the message with its last segment.
// [RDMAP-5.3-5] [RDMAP-5.5-5] [RDMAP-5.5-13] [RDMAP-5.5-15] [RDMAPX-6.3-3] [RDMAPX-6.4-1]
// [RDMAPX-7-1]
func (q *QueuePair) endSend(s *segment) {
	n, done := q.rx.queues[rdmap.QueueSend].Placed(s.un, s.size)
	if !done { // [DDP-5.4-2] [DDP-4.1-7]
		return
	}
	if s.un.MO > 0 {
		q.rx.lastSend = n
	}
	q.deliver(s, n)
}

// failSend ends the stream because memory of a receive is not accessible any more. [I-34] [I-66]
func (q *QueuePair) failSend(*segment, regmem.Outcome, error) {
	q.completeRecv(StatusLocalAccess, 0)
	q.life.fault(rdmap.TerminateRDMAP(rdmap.Catastrophic, nil), ErrLocalAccess)
}

// deliver completes the receive of a message of n bytes. First, deliver invalidates the STag named
// by the message, if any. If the STag cannot be invalidated, the stream ends.
func (q *QueuePair) deliver(s *segment, n uint32) {
	if stag, ok := rdmap.InvalidateSTag(q.rx.head); ok { // [DDP-5.4-4] [RDMAP-5.3-13] [RDMAP-5.3-14]
		if !q.invalidateByPeer(stag) {
			q.refuse(s, refusal{rdmap: rdmap.CannotInvalidate}, nil)
			return
		}
	}
	if s.op.IsImmediate() { // [I-66]
		n = 0
	}
	q.completeRecv(StatusOK, n) // [DDP-5.3-6]
	if s.op.IsImmediate() {     // [RDMAPX-6.1-1]
		c := &q.rx.done[len(q.rx.done)-1]
		c.HasImm = true
		copy(c.Imm[:], s.payload())
	}
}

// completeRecv completes the current receive with status st and n bytes.
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

// invalidateByPeer closes the window a Send with Invalidate names, and reports whether the message
// is valid. A peer can close only a window of its own stream, and no region. If the window is
// closed already, the message is valid unless Config.StrictInvalidate is set. [RDMAP-5.3-14]
// [RDMAP-7.2-4] [RDMAP-7.2-5] [RDMAP-8.1.1-7] [SEC-6.4.5-1] [I-55]
func (q *QueuePair) invalidateByPeer(stag uint32) bool {
	q.rx.LetGo() // releases a held pin, because the close of a window waits for its pins
	w, former := q.windows.find(stag)
	if w != nil && w.invalidate() {
		return true
	}
	return (w != nil || former) && !q.set.strictInvalidate
}

// beginReadRequest checks a Read Request, which occupies a slot of queue 1; start-up agreed on the
// number of slots. beginAtomicRequest checks an Atomic Request in the same way. The ULP is not
// notified of either request. [RDMAP-5.2.1-2] [RDMAP-5.2.1-3] [RDMAP-5.2.1-4] [RDMAP-5.2.1-5]
// [RDMAP-5.2.2-2] [RDMAP-6.1-2] [RDMAP-6.1-6] [MPA2-9.1-2] [SEC-6.4.3.3-3] [RDMAPX-5.2.1-7]
// [RDMAPX-5.2.1-8] [RDMAPX-5.2.1-9] [RDMAPX-5.2.2-3] [I-20] [I-64]
func (q *QueuePair) beginReadRequest(s *segment) refusal {
	f := q.checkRequest(s, &q.inbound.reads) // a fault of DDP is reported first
	r, _, _ := rdmap.ParseReadRequest(s.payload())
	f.rdmap = q.checkSource(&r)
	return f
}

func (q *QueuePair) beginAtomicRequest(s *segment) refusal {
	f := q.checkRequest(s, &q.inbound.atomics)
	r, _, _ := rdmap.ParseAtomicRequest(s.payload())
	f.rdmap = q.checkAtomic(&r)
	return f
}

// checkRequest checks whether a slot of queue 1 is free for a request. busy is the number of
// unanswered requests of the same kind: Reads or Atomics.
func (q *QueuePair) checkRequest(s *segment, busy *atomic.Int32) refusal {
	have := q.inbound.has(busy)
	return refusal{ddp: q.rx.queues[rdmap.QueueReadRequest].Check(s.un, s.size, rdmap.AtomicRequestLen, have)}
}

// endRequest queues a request, to be answered by the send role.
func (q *QueuePair) endRequest(s *segment) {
	if q.life.Load().finished() { // our direction has ended, so no answer can be sent [I-33]
		q.life.lost(errNoAnswer)
		return
	}
	q.rx.queues[rdmap.QueueReadRequest].Placed(s.un, s.size)
	in := inboundRead{atomic: s.op == rdmap.AtomicRequestOp}
	in.n = uint8(copy(in.ulpdu[:], s.u))
	q.inbound.add(in)
	q.rx.kick = true // [RDMAP-5.5-7] [RDMAP-5.5-14] [RDMAPX-5.4-3] [RDMAPX-5.4-5] [RDMAPX-7-2]
}

// checkSource checks the source of a Read. A Read of zero bytes has no source. [RDMAP-5.2.1-10]
// [RDMAP-5.2.1-13] [RDMAP-5.2.1-14] [RDMAP-7.2-7] [RDMAP-7.2-12] [SEC-6.3.1-1] [SEC-6.3.5-2] [I-43]
func (q *QueuePair) checkSource(r *rdmap.ReadRequest) rdmap.Fault {
	if r.Size == 0 {
		return rdmap.OK
	}
	if q.set.maxRead > 0 && r.Size > q.set.maxRead { // [I-62]
		return rdmap.Unspecified
	}
	out := q.mem.check(r.SourceSTag, r.SourceTO, uint64(r.Size), regmem.RemoteRead)
	return readFault(refine(out, r.SourceTO, uint64(r.Size)))
}

// checkAtomic checks the operation and the word of an Atomic Request. [RDMAPX-5.2.1-10]
// [RDMAPX-8.2-1] [I-67]
func (q *QueuePair) checkAtomic(r *rdmap.AtomicRequest) rdmap.Fault {
	if !r.Op.Supported() {
		return rdmap.UnexpectedOpcode
	}
	ref, f := q.mem.word(r)
	ref.Release()
	return f
}

// beginAtomicResponse checks that our oldest request is an Atomic, and is answered by the response.
// [RDMAPX-5.2.2-1] [RDMAPX-5.2.2-4] [RDMAPX-5.2.2-5] [I-67] [I-68]
func (q *QueuePair) beginAtomicResponse(s *segment) refusal {
	r, _, _ := rdmap.ParseAtomicResponse(s.payload())
	p := q.reads.Front()
	o := &q.rx.queues[rdmap.QueueAtomicResponse]
	switch {
	case p == nil:
		return refusal{rdmap: rdmap.UnexpectedOpcode}
	case !p.atomic, o.Check(s.un, s.size, rdmap.AtomicResponseLen, true) != ddp.OK, r.ID != p.id:
		return refusal{rdmap: rdmap.Unspecified}
	}
	return refusal{}
}

// endAtomicResponse stores the original value, and completes the Atomic. [RDMAPX-5.2.2-6]
// [RDMAPX-5-6] [RDMAPX-5.4-1] [RDMAPX-5.4-7]
func (q *QueuePair) endAtomicResponse(s *segment) {
	r, _, _ := rdmap.ParseAtomicResponse(s.payload())
	q.rx.queues[rdmap.QueueAtomicResponse].Placed(s.un, s.size)
	q.sends.work.Update(q.reads.Front().seq, func(w **sendWQE) { (*w).value = r.Value })
	q.readDone()
}

// beginTerminate checks the peer's Terminate. A Terminate needs no receive, and may arrive at any
// time. [RDMAP-5.4-3] [RDMAP-5.4-4] [RDMAP-5.4-5]
func (q *QueuePair) beginTerminate(s *segment) refusal {
	return refusal{ddp: q.rx.queues[rdmap.QueueTerminate].Check(s.un, s.size, rdmap.MaxTerminateLen, true)}
}

// endTerminate ends the stream with the error in the peer's Terminate. [RDMAP-5.4-6] [RDMAP-5.4-9]
// [I-37]
func (q *QueuePair) endTerminate(s *segment) {
	t, _, _ := rdmap.ParseTerminate(s.payload())
	q.blame(t)
	q.life.endWith(terminateError(t, true, s.payload(), nil), endQuiet)
}

// blame sets the status of a Read or Atomic to StatusRemote if the Terminate t contains the header
// of the request. Without a request header in t, blame does nothing.
func (q *QueuePair) blame(t rdmap.Terminate) {
	h, _, err := ddp.ParseUntagged(t.DDP)
	p := q.reads.Front()
	if err != nil || h.QN != rdmap.QueueReadRequest || p == nil || p.w == nil {
		return
	}
	for i := range q.reads.Len() {
		if p := q.reads.At(i); p.w != nil && p.msn == h.MSN {
			q.sends.setStatus(p.seq, StatusRemote)
		}
	}
}
