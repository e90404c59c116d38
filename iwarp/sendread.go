package iwarp

import (
	"sync/atomic"
	"unsafe"

	"viaduct/internal/frameio"
	"viaduct/internal/regmem"
	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
)

// sendRTR sends the ready message agreed at start-up: a zero-length message of the agreed kind, as
// the first FPDU. [MPA2-9.2-10] [MPA2-5-2] [I-08]
func (t *sender) sendRTR(b *frameio.Batch) {
	kind := t.rtr
	t.rtr = 0
	switch kind {
	case mpa.RTRWrite:
		t.frame(b, rdmap.Write.TaggedHeader(1, 0, true).Append(t.hdr[:0]), nil, 0, false)
	case mpa.RTRRead: // the ready message uses MSN 1 and counts as one of our Reads
		msn := t.nextMSN(rdmap.QueueReadRequest)
		t.reads.Push(pendingRead{msn: msn})
		r := rdmap.ReadRequest{SourceSTag: 1}
		t.control(b, rdmap.ReadRequestOp.UntaggedHeader(msn, 0, true, 0), r.Append(nil))
	default:
		t.control(b, rdmap.Send.UntaggedHeader(t.nextMSN(rdmap.QueueSend), 0, true, 0), nil)
	}
}

// sendRead sends a Read Request. If the request has a single registered piece, the region's STag
// names the sink. Otherwise the sink STag is a number made for this request; only the answer may
// use the number. [RDMAP-5.2-1] [I-58]
func (t *sender) sendRead(b *frameio.Batch, w *sendWQE, seq uint64) {
	p := pendingRead{w: w, seq: seq, msn: t.nextMSN(rdmap.QueueReadRequest), size: uint32(w.length)} // [DDP-4.3-6]
	if w.nsg == 1 && w.sg[0].Region != nil {
		m := w.sg[0].Region
		p.stag, p.to = m.STag(), m.TO()+w.sg[0].Off
	} else {
		p.stag, p.to = uint32(seq)<<8|0x5a, 0
	}
	r := rdmap.ReadRequest{SinkSTag: p.stag, SinkTO: p.to, Size: p.size, SourceSTag: w.remote.STag,
		SourceTO: w.remote.TO}
	// From here on p belongs to the receive role.
	t.reads.Push(p)
	// A Read does not use w.inline, so there is room for the header.
	t.control(b, rdmap.ReadRequestOp.UntaggedHeader(p.msn, 0, true, 0), r.Append(w.inline[:0]))
}

// sendAtomic sends an Atomic Request. Its identifier must come back in the response.
func (t *sender) sendAtomic(b *frameio.Batch, w *sendWQE, seq uint64) {
	t.opID++
	p := pendingRead{w: w, seq: seq, msn: t.nextMSN(rdmap.QueueReadRequest), atomic: true, id: t.opID}
	a := w.atomic
	r := rdmap.NewFetchAdd(w.remote.STag, w.remote.TO, a.Data, a.Mask)
	if w.op == OpCmpSwap {
		r = rdmap.NewCmpSwap(w.remote.STag, w.remote.TO, a.Compare, a.CompareMask, a.Data, a.Mask)
	}
	r.ID = p.id
	t.reads.Push(p)
	t.control(b, rdmap.AtomicRequestOp.UntaggedHeader(p.msn, 0, true, 0), r.Append(w.inline[:0]))
}

// answer begins the answer to request in of the peer. Requests are processed in the order of their
// delivery, and an Atomic only after all earlier requests were answered. Messages arriving after a
// request may be placed and delivered before the answer. [RDMAP-5.2.2-6] [RDMAP-5.5-17]
// [RDMAP-5.5-8] [RDMAPX-5.2.2-7] [RDMAPX-5.2.1-13] [RDMAPX-5.2.1-14] [RDMAPX-5.4-4] [RDMAPX-5.4-6]
// [RDMAPX-5.4-8] [RDMAPX-7-3] [RDMAPX-7-4]
func (t *sender) answer(b *frameio.Batch, in *inboundRead) {
	if !in.atomic {
		r := in.read()
		t.cur = txMessage{active: true, op: rdmap.ReadResponse, in: in, read: r,
			cut: ddp.NewCutter(uint64(r.Size), int(t.mss.mulpdu.Load()), ddp.TaggedLen)} // [RDMAP-5.2.1-11] [RDMAP-5.2.1-15]
		return
	}
	op := in.op()
	old, f := t.mem.atomic(&op)
	if f != rdmap.OK { // [RDMAP-4.8-12] [I-43]
		t.failAnswer(in, 0, f)
		return
	}
	r := rdmap.AtomicResponse{ID: op.ID, Value: old}
	var body [rdmap.AtomicResponseLen]byte
	copy(in.ulpdu[:], r.Append(body[:0])) // the slot stays ours until the answer is sent
	t.control(b, rdmap.AtomicResponseOp.UntaggedHeader(t.nextMSN(rdmap.QueueAtomicResponse), 0, true, 0),
		in.ulpdu[:rdmap.AtomicResponseLen])
	t.batch.answered++
	t.inbound.answered(true)
	t.stats.servedAtomics.Add(1)
}

// failAnswer ends the stream because the source of a Read, or the word of an Atomic, became
// inaccessible after the request was checked. The Terminate contains the request, advanced by the
// sent bytes. [RDMAP-4.8-12] [I-43]
func (t *sender) failAnswer(in *inboundRead, sent uint32, f rdmap.Fault) {
	u := in.ulpdu[:in.n]
	if !in.atomic {
		u = in.read().Advance(sent).Append(append([]byte(nil), u[:ddp.UntaggedLen]...))
	}
	t.life.fault(rdmap.TerminateRDMAP(f, u), nil) // no segment is sent after the Terminate
}

// word checks and pins the word of an Atomic Operation. The region must allow reading and
// writing, or Atomic Operations, and the real address must be aligned. [RDMAPX-8.2-2]
// [RDMAPX-8.2-3] [RDMAPX-5.1.1-3] [RDMAPX-5.1.2-5] [I-67]
func (m *memory) word(r *rdmap.AtomicRequest) (regmem.Ref, rdmap.Fault) {
	const size = 8
	ref, out := m.access(r.STag, r.TO, size, regmem.RemoteAtomic)
	if out == regmem.NoRights {
		ref, out = m.access(r.STag, r.TO, size, regmem.RemoteRead|regmem.RemoteWrite)
	}
	if out != regmem.OK {
		return regmem.Ref{}, readFault(refine(out, r.TO, size))
	}
	if ref.Far() { // far memory has no atomic access
		ref.Release()
		return regmem.Ref{}, rdmap.AccessRights
	}
	if uintptr(unsafe.Pointer(&ref.B()[0]))%size != 0 { // [RDMAPX-5.2.1-4] [RDMAPX-5.1.1-4] [RDMAPX-5.1.2-4]
		ref.Release()
		return regmem.Ref{}, rdmap.StreamCatastrophic // [RDMAPX-5.1.1-5]
	}
	return ref, rdmap.OK
}

// atomic performs an Atomic Operation in the byte order of this machine, with the processor's
// atomic instructions. The operation is therefore atomic with respect to the Atomics of all streams
// and to uses of sync/atomic. The result is the original value. [RDMAPX-5-1] [RDMAPX-5.3-1]
// [RDMAPX-5.4-2] [RDMAPX-5.1.1-7] [RDMAPX-5-2] [I-65]
func (m *memory) atomic(r *rdmap.AtomicRequest) (old uint64, _ rdmap.Fault) {
	ref, f := m.word(r)
	if f != rdmap.OK {
		return 0, f
	}
	defer ref.Release()
	p := (*uint64)(unsafe.Pointer(&ref.B()[0]))
	if !ref.Guarded() { // [I-43]
		return apply(p, r), rdmap.OK
	}
	return guarded(p, r)
}

// apply performs the operation on a word and returns the original value.
func apply(p *uint64, r *rdmap.AtomicRequest) uint64 {
	for {
		old := atomic.LoadUint64(p)
		word, changed := r.Apply(old)
		if !changed || atomic.CompareAndSwapUint64(p, old, word) {
			return old
		}
	}
}

// guarded performs the operation on a word in guarded memory. The fault InvalidSTag means an access
// fault.
func guarded(p *uint64, r *rdmap.AtomicRequest) (old uint64, _ rdmap.Fault) {
	if regmem.Guard(func() { old = apply(p, r) }) != nil {
		return 0, rdmap.InvalidSTag
	}
	return old, rdmap.OK
}

// localInvalidate closes a window for a request of the send queue. It starts a goroutine, because
// closing waits for the window's users, and the send role must not wait. If stag names no open
// window, the request succeeds at once.
func (t *sender) localInvalidate(stag uint32, seq uint64) {
	w, _ := t.windows.find(stag)
	if w == nil {
		t.queue.finish(seq, seq+1)
		return
	}
	t.invalidating.Store(true)
	t.life.wg.Go(func() {
		w.invalidate()
		t.queue.finish(seq, seq+1)
		t.invalidating.Store(false)
		t.queue.kick()
	})
}
