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
	rdmap.Write: {(*receiver).beginWrite, (*receiver).writeTarget, (*receiver).endWrite,
		(*receiver).failWrite},
	rdmap.ReadResponse: {(*receiver).beginResponse, (*receiver).listTarget,
		(*receiver).endResponse, (*receiver).failResponse},
	rdmap.Send:             send,
	rdmap.SendInvalidate:   send,
	rdmap.SendSE:           send,
	rdmap.SendSEInvalidate: send,
	rdmap.Immediate:        {begin: (*receiver).beginSend, end: (*receiver).endSend},
	rdmap.ImmediateSE:      {begin: (*receiver).beginSend, end: (*receiver).endSend},
	rdmap.ReadRequestOp:    {begin: (*receiver).beginReadRequest, end: (*receiver).endRequest},
	rdmap.AtomicRequestOp:  {begin: (*receiver).beginAtomicRequest, end: (*receiver).endRequest},
	rdmap.AtomicResponseOp: {begin: (*receiver).beginAtomicResponse, end: (*receiver).endAtomicResponse},
	rdmap.TerminateOp:      {begin: (*receiver).beginTerminate, end: (*receiver).endTerminate},
}

var send = messageType{(*receiver).beginSend, (*receiver).listTarget, (*receiver).endSend, (*receiver).failSend}

// beginWrite checks a segment of an RDMA Write before its first byte is placed. An empty segment
// names no memory, so neither STag nor TO is checked. [DDP-5.2-10] [DDP-5.2-9] [RDMAP-5.1-8]
// [DDP-4.2-5] [DDP-4.2-8] [DDP-5.2-4] [DDP-8.3.1-1] [RDMAP-5.1-4] [RDMAP-5.1-6] [DDP-7.1-14]
// [RDMAP-5.1-2] [RDMAP-3.2-4] [RDMAP-8.1.1-3] [SEC-6.2.1-1] [RDMAP-5.1-3]
func (r *receiver) beginWrite(s *segment) refusal {
	if s.size == 0 {
		return refusal{}
	}
	ref, out := r.writeTarget(s, 0, uint64(s.size))
	s.at = r.Hold(ref) // nil for far memory: the placer then pins the memory later
	return refusal{ddp: writeFault(refine(out, s.tagged.TO, uint64(s.size)))}
}

// endWrite counts the placed bytes of the segment. The ULP is not notified.
func (r *receiver) endWrite(s *segment) { r.stats.placed.Add(uint64(s.size)) }

func (r *receiver) failWrite(s *segment, out regmem.Outcome, err error) {
	placed := r.Placed()
	at, n := uint64(placed), uint64(s.size-placed)
	r.refuse(s, refusal{ddp: writeFault(refine(out, s.tagged.TO+at, n))}, err)
}

// beginResponse checks a segment of a Read Response, and sets s.at if the memory for the payload is
// contiguous and pinned. [I-45] [I-46]
func (r *receiver) beginResponse(s *segment) refusal {
	p, df, rf := r.reads.check(s.tagged, s.size)
	if p != nil && s.size > 0 {
		r.reachList(s)
	}
	return refusal{df, rf}
}

// endResponse counts the bytes, and completes our Read with the last segment. The ULP of the peer
// is not notified.
func (r *receiver) endResponse(s *segment) {
	r.reads.Front().got += uint32(s.size)
	if s.last { // [RDMAP-3.2-6] [RDMAP-5.5-6] [RDMAP-5.2.2-3] [RDMAP-5.5-16] [RDMAP-5.5-19]
		r.readDone()
	}
}

// failResponse ends the stream because the sink of a Read is not accessible any more. [I-34]
func (r *receiver) failResponse(*segment, regmem.Outcome, error) {
	p := r.reads.Front()
	// The end of the stream flushes the Read with this status.
	r.sends.setStatus(p.seq, StatusLocalAccess)
	r.life.fault(rdmap.TerminateRDMAP(rdmap.Catastrophic, nil), ErrLocalAccess)
}

// readDone completes our oldest Read or Atomic and removes the request from r.reads. The ready
// message has no request to complete. If outstanding Reads block the send queue, publish then wakes
// the send role.
func (r *receiver) readDone() {
	p := r.reads.Front()
	w, seq := p.w, p.seq
	r.reads.Pop()
	if w != nil {
		r.sends.finish(seq, seq+1)
	}
	if r.reads.unblock() {
		r.kick = true
	}
}

// beginSend checks a segment on queue 0, and takes a receive for a new message, even for one
// without bytes. [RDMAP-5.3-2] [RDMAP-5.3-11] [RDMAPX-6.3-2] [DDP-7.1-2] [DDP-7.1-6] [DDP-7.1-7]
// [DDP-7.1-8] [I-49] [I-50] [I-51]
func (r *receiver) beginSend(s *segment) refusal {
	h := s.un
	o := &r.queues[rdmap.QueueSend]
	if _, open := o.Open(); !open {
		r.box.op, r.box.head = s.op, h
		if r.box.recv == nil {
			if f := o.Check(h, 0, 0, false); f != ddp.InvalidMSNNoBuffer {
				return refusal{ddp: f}
			}
			r.box.recv = r.box.recvs.next(s.payload(), s.size, h.Last)
		}
	}
	size := r.box.size()
	if s.op.IsImmediate() { // the eight bytes of an immediate are not placed in the receive [I-66]
		size = math.MaxUint32
	}
	f := o.Check(h, s.size, size, r.box.recv != nil)
	if f == ddp.InvalidMSNNoBuffer { // [DDP-7.1-5]
		r.stats.noReceive.Add(1)
	}
	// A later segment of the message must have the same opcode. [I-47] [RDMAP-5.3-7]
	if s.op != r.box.op && (f == ddp.OK || f == ddp.MessageTooLong) {
		return refusal{rdmap: rdmap.UnexpectedOpcode}
	}
	if f == ddp.OK && !s.op.IsImmediate() {
		r.reachList(s)
	}
	return refusal{ddp: f}
}

// endSend counts the bytes of a segment, and delivers the message with its last segment.
// [RDMAP-5.3-5] [RDMAP-5.5-5] [RDMAP-5.5-13] [RDMAP-5.5-15] [RDMAPX-6.3-3] [RDMAPX-6.4-1]
// [RDMAPX-7-1]
func (r *receiver) endSend(s *segment) {
	n, done := r.queues[rdmap.QueueSend].Placed(s.un, s.size)
	if !done { // [DDP-5.4-2] [DDP-4.1-7]
		return
	}
	if s.un.MO > 0 {
		r.lastSend = n
	}
	r.deliver(s, n)
}

// failSend ends the stream because memory of a receive is not accessible any more. [I-34] [I-66]
func (r *receiver) failSend(*segment, regmem.Outcome, error) {
	r.box.complete(StatusLocalAccess, 0)
	r.life.fault(rdmap.TerminateRDMAP(rdmap.Catastrophic, nil), ErrLocalAccess)
}

// deliver completes the receive of a message of n bytes. First, deliver invalidates the STag named
// by the message, if any. If the STag cannot be invalidated, the stream ends.
func (r *receiver) deliver(s *segment, n uint32) {
	if stag, ok := rdmap.InvalidateSTag(r.box.head); ok { // [DDP-5.4-4] [RDMAP-5.3-13] [RDMAP-5.3-14]
		if !r.invalidateByPeer(stag) {
			r.refuse(s, refusal{rdmap: rdmap.CannotInvalidate}, nil)
			return
		}
	}
	if s.op.IsImmediate() { // [I-66]
		n = 0
	}
	r.box.complete(StatusOK, n) // [DDP-5.3-6]
	if s.op.IsImmediate() {     // [RDMAPX-6.1-1]
		r.box.immediate(s.payload())
	}
}

// invalidateByPeer closes the window a Send with Invalidate names, and reports whether the message
// is valid. A peer can close only a window of its own stream, and no region. If the window is
// closed already, the message is valid unless Interop.StrictInvalidate is set. [RDMAP-5.3-14]
// [RDMAP-7.2-4] [RDMAP-7.2-5] [RDMAP-8.1.1-7] [SEC-6.4.5-1] [I-55]
func (r *receiver) invalidateByPeer(stag uint32) bool {
	r.LetGo() // releases a held pin, because the close of a window waits for its pins
	w, former := r.windows.find(stag)
	if w != nil && w.invalidate() {
		return true
	}
	return (w != nil || former) && !r.set.strictInvalidate
}

// beginReadRequest checks a Read Request, which occupies a slot of queue 1; start-up agreed on the
// number of slots. beginAtomicRequest checks an Atomic Request in the same way. The ULP is not
// notified of either request. [RDMAP-5.2.1-2] [RDMAP-5.2.1-3] [RDMAP-5.2.1-4] [RDMAP-5.2.1-5]
// [RDMAP-5.2.2-2] [RDMAP-6.1-2] [RDMAP-6.1-6] [MPA2-9.1-2] [SEC-6.4.3.3-3] [RDMAPX-5.2.1-7]
// [RDMAPX-5.2.1-8] [RDMAPX-5.2.1-9] [RDMAPX-5.2.2-3] [I-20] [I-64]
func (r *receiver) beginReadRequest(s *segment) refusal {
	f := r.checkRequest(s, &r.inbound.reads) // a fault of DDP is reported first
	req, _, _ := rdmap.ParseReadRequest(s.payload())
	f.rdmap = r.checkSource(&req)
	return f
}

func (r *receiver) beginAtomicRequest(s *segment) refusal {
	f := r.checkRequest(s, &r.inbound.atomics)
	req, _, _ := rdmap.ParseAtomicRequest(s.payload())
	f.rdmap = r.checkAtomic(&req)
	return f
}

// checkRequest checks whether a slot of queue 1 is free for a request. busy is the number of
// unanswered requests of the same kind: Reads or Atomics.
func (r *receiver) checkRequest(s *segment, busy *atomic.Int32) refusal {
	have := r.inbound.has(busy)
	return refusal{ddp: r.queues[rdmap.QueueReadRequest].Check(s.un, s.size, rdmap.AtomicRequestLen, have)}
}

// endRequest queues a request, to be answered by the send role.
func (r *receiver) endRequest(s *segment) {
	if r.life.Load().finished() { // our direction has ended, so no answer can be sent [I-33]
		r.life.lost(errNoAnswer)
		return
	}
	r.queues[rdmap.QueueReadRequest].Placed(s.un, s.size)
	in := inboundRead{atomic: s.op == rdmap.AtomicRequestOp}
	in.n = uint8(copy(in.ulpdu[:], s.u))
	r.inbound.add(in)
	r.kick = true // [RDMAP-5.5-7] [RDMAP-5.5-14] [RDMAPX-5.4-3] [RDMAPX-5.4-5] [RDMAPX-7-2]
}

// checkSource checks the source of a Read. A Read of zero bytes has no source. [RDMAP-5.2.1-10]
// [RDMAP-5.2.1-13] [RDMAP-5.2.1-14] [RDMAP-7.2-7] [RDMAP-7.2-12] [SEC-6.3.1-1] [SEC-6.3.5-2] [I-43]
func (r *receiver) checkSource(req *rdmap.ReadRequest) rdmap.Fault {
	if req.Size == 0 {
		return rdmap.OK
	}
	if r.set.maxRead > 0 && req.Size > r.set.maxRead { // [I-62]
		return rdmap.Unspecified
	}
	out := r.mem.check(req.SourceSTag, req.SourceTO, uint64(req.Size), regmem.RemoteRead)
	return readFault(refine(out, req.SourceTO, uint64(req.Size)))
}

// checkAtomic checks the operation and the word of an Atomic Request. [RDMAPX-5.2.1-10]
// [RDMAPX-8.2-1] [I-67]
func (r *receiver) checkAtomic(req *rdmap.AtomicRequest) rdmap.Fault {
	if !req.Op.Supported() {
		return rdmap.UnexpectedOpcode
	}
	ref, f := r.mem.word(req)
	ref.Release()
	return f
}

// beginAtomicResponse checks that our oldest request is an Atomic, and is answered by the response.
// [RDMAPX-5.2.2-1] [RDMAPX-5.2.2-4] [RDMAPX-5.2.2-5] [I-67] [I-68]
func (r *receiver) beginAtomicResponse(s *segment) refusal {
	resp, _, _ := rdmap.ParseAtomicResponse(s.payload())
	p := r.reads.Front()
	o := &r.queues[rdmap.QueueAtomicResponse]
	switch {
	case p == nil:
		return refusal{rdmap: rdmap.UnexpectedOpcode}
	case !p.atomic, o.Check(s.un, s.size, rdmap.AtomicResponseLen, true) != ddp.OK, resp.ID != p.id:
		return refusal{rdmap: rdmap.Unspecified}
	}
	return refusal{}
}

// endAtomicResponse stores the original value, and completes the Atomic. [RDMAPX-5.2.2-6]
// [RDMAPX-5-6] [RDMAPX-5.4-1] [RDMAPX-5.4-7]
func (r *receiver) endAtomicResponse(s *segment) {
	resp, _, _ := rdmap.ParseAtomicResponse(s.payload())
	r.queues[rdmap.QueueAtomicResponse].Placed(s.un, s.size)
	r.sends.work.Update(r.reads.Front().seq, func(w **sendWQE) { (*w).value = resp.Value })
	r.readDone()
}

// beginTerminate checks the peer's Terminate. A Terminate needs no receive, and may arrive at any
// time. [RDMAP-5.4-3] [RDMAP-5.4-4] [RDMAP-5.4-5]
func (r *receiver) beginTerminate(s *segment) refusal {
	return refusal{ddp: r.queues[rdmap.QueueTerminate].Check(s.un, s.size, rdmap.MaxTerminateLen, true)}
}

// endTerminate ends the stream with the error in the peer's Terminate. [RDMAP-5.4-6] [RDMAP-5.4-9]
// [I-37]
func (r *receiver) endTerminate(s *segment) {
	t, _, _ := rdmap.ParseTerminate(s.payload())
	r.blame(t)
	r.life.endWith(terminateError(t, true, s.payload(), nil), endQuiet)
}

// blame sets the status of a Read or Atomic to StatusRemote if the Terminate t contains the header
// of the request. Without a request header in t, blame does nothing.
func (r *receiver) blame(t rdmap.Terminate) {
	h, _, err := ddp.ParseUntagged(t.DDP)
	p := r.reads.Front()
	if err != nil || h.QN != rdmap.QueueReadRequest || p == nil || p.w == nil {
		return
	}
	for i := range r.reads.Len() {
		if p := r.reads.At(i); p.w != nil && p.msn == h.MSN {
			r.sends.setStatus(p.seq, StatusRemote)
		}
	}
}
