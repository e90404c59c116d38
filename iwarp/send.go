package iwarp

import (
	"sync/atomic"
	"time"

	"viaduct/internal/frameio"
	"viaduct/internal/queue"
	"viaduct/internal/regmem"
	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
)

// A sender sends messages: it takes requests from the send queue and requests of the peer to answer,
// and makes FPDUs of them. There is no lock, because only the holder of frameio's send role uses a
// sender; others may only read mss.mulpdu and set the atomic flags.
type sender struct {
	*shared
	queue *sendQueue

	enc    mpa.Encoder
	mss    mss
	msn    [4]ddp.MSN // number of the next message, by queue
	cur    txMessage
	ahead  peeked
	batch  batchWork
	copies copies
	hdr    [ddp.UntaggedLen]byte

	lends  bool    // the consumer uses a [ulp.Source]
	nudges bool    // whether a silent peer is nudged; see nudger
	turn   bool    // true: a request of the peer is next; false: one of our queue [I-54]
	begun  bool    // whether the first FPDU was sent
	rtr    mpa.RTR // the ready message that must be sent first, or 0
	opID   uint32  // identifier of the next Atomic Request [I-68]

	nudge        atomic.Bool // whether to send a zero-length Write [I-10]
	invalidating atomic.Bool // a local invalidation is in progress, and later requests wait
}

// peeked holds requests not yet begun, at the front of the send queue. Peeked requests stay in the
// queue.
type peeked struct {
	list [lookAhead]*sendWQE
	at   uint32 // index in list of the request that begins next
	n    uint32
	seq  uint64 // sequence number of list[0]
}

// next returns the next request of the send queue, without starting the request. ok is false if no
// request is waiting to start.
func (p *peeked) next(work *queue.Work[*sendWQE]) (w *sendWQE, seq uint64, ok bool) {
	if p.at == p.n {
		p.at = 0
		n, first := work.PeekN(p.list[:])
		if p.n, p.seq = uint32(n), first; n == 0 {
			return nil, 0, false
		}
	}
	return p.list[p.at], p.seq + uint64(p.at), true
}

// start marks request seq, returned by next, as started. No flush can have happened since next,
// because the queues are flushed only while no Fill runs, and no Fill begins a message afterwards.
func (p *peeked) start(work *queue.Work[*sendWQE], seq uint64) {
	work.MarkStarted(seq)
	p.at++
}

// batchWork lists the work to complete once the current batch has been sent.
type batchWork struct {
	done     []run // requests of the send queue
	answered int32 // number of answered requests of the peer
	over     bool  // the batch contains the Terminate, so nothing may follow
}

// sends records that request seq will be complete once the current batch has been sent.
func (b *batchWork) sends(seq uint64) {
	if n := len(b.done); n > 0 && b.done[n-1].end == seq {
		b.done[n-1].end++
		return
	}
	b.done = append(b.done, run{seq, seq + 1})
}

// lookAhead is the number of requests peeked at together.
const lookAhead = 8

// A run is the range first to end-1 of requests of the send queue.
type run struct{ first, end uint64 }

// A txMessage is the message being sent, segment by segment. One message of RDMAP is one message of
// DDP. [RDMAP-3.1-3]
type txMessage struct {
	active bool
	op     rdmap.Opcode
	msn    ddp.MSN
	cut    ddp.Cutter
	w      *sendWQE     // request of our own message, or nil
	seq    uint64       // sequence number of w
	in     *inboundRead // the peer's request, if this is a Read Response, or nil
	read   rdmap.ReadRequest
	// Payload of the last segment, if already copied from far memory; otherwise nil.
	rest []byte
}

// fill adds FPDUs to the batch, in this order: a Terminate, always as the last FPDU; the ready
// message; the rest of the current message; then, by turns, answers to the peer's requests and
// requests of our queue. Only messages of RDMAP in segments of DDP are sent; many may share a TCP
// segment.
func (t *sender) fill(b *frameio.Batch) {
	t.copies.used, t.cur.rest = 0, nil // a new batch has a new arena
	t.refreshMSS()
	for !b.FullFor(t.peerPredicts()) && !t.batch.over { // [MPA-5.1-4] [I-35]
		if !t.life.open.Load() { // [MPA-7.1.2-15]
			return
		}
		// One segment needs at most two FPDUs of room in the arena, and MaxSGE pieces of the batch.
		if t.copies.used > arenaSize-2*mpa.MaxFPDU || b.Pieces() < MaxSGE {
			b.LeaveMore()
			return
		}
		if p := t.life.term.Load(); p != nil { // [RDMAP-7.1-3] [RDMAP-5.4-8] [I-35]
			h := rdmap.TerminateOp.UntaggedHeader(ddp.FirstMSN, 0, true, 0)
			t.control(b, h, *p)
			t.batch.over = true
			return
		}
		if t.life.Load().ended() {
			return
		}
		switch {
		case t.rtr != 0: // [MPA2-5-2]
			t.sendRTR(b)
		case t.nudge.Load() && !t.cur.active:
			t.nudge.Store(false)
			t.frame(b, rdmap.Write.TaggedHeader(1, 0, true).Append(t.hdr[:0]), nil, 0, false)
		case t.cur.active: // [I-52] [RDMAP-3.1-1]
			t.segment(b)
		default: // [RDMAP-6.1-1]
			if !t.next(b) {
				return
			}
		}
	}
}

// peerPredicts reports whether the peer can predict the memory for the next segment. The peer can
// for a Read Response, because the peer has sent the Read Request. The peer can for any segment if
// the peer's consumer uses a [ulp.Source], as is assumed if ours does.
func (t *sender) peerPredicts() bool { return t.lends || t.cur.in != nil }

// sent completes the batch's Sends and Writes, and frees the slots of the answered requests: TCP has
// all bytes of the batch.
func (t *sender) sent() {
	t.active.touch()
	t.copies.release()
	if t.batch.answered > 0 {
		t.inbound.free(int(t.batch.answered)) // [I-20]
		t.batch.answered = 0
	}
	t.queue.finishDirect()
	for _, r := range t.batch.done {
		t.queue.finish(r.first, r.end) // [RDMAP-5.5-4] [RDMAP-5.5-11] [DDP-5.4-1]
	}
	t.batch.done = t.batch.done[:0]
	if t.batch.over {
		t.life.termSent.happen()
	}
	if !t.begun && t.stats.sentFPDUs.Load() > 0 {
		t.begun = true
		t.firstSent()
	}
	if t.life.Load().closing() {
		t.queue.maybeFinish()
	}
}

// firstSent is called after the first FPDU was sent. It adds an Initiator to the nudger of the
// device, unless Interop.NoNudge is set.
func (t *sender) firstSent() {
	if t.nudges {
		t.mem.dev.nudger.add(t)
	}
}

// next begins the next message. It returns false if no message may begin now.
func (t *sender) next(b *frameio.Batch) bool {
	for range 2 {
		t.turn = !t.turn // [I-54]
		if t.turn {
			if in := t.inbound.start(); in != nil {
				t.answer(b, in)
				return true
			}
		} else if t.nextRequest(b) {
			return true
		}
	}
	return false
}

func headerLen(op rdmap.Opcode) int {
	if op.Tagged() {
		return ddp.TaggedLen
	}
	return ddp.UntaggedLen
}

// nextRequest begins the request at the head of the send queue, if possible, and reports whether a
// request began. Requests begin in the order of posting.
func (t *sender) nextRequest(b *frameio.Batch) bool {
	if t.invalidating.Load() {
		return false
	}
	w, seq, ok := t.ahead.next(&t.queue.work)
	if !ok {
		return false
	}
	if (w.fence || w.op == OpLocalInvalidate) && !t.reads.mayPass(0) { // [RDMAP-5.5-9]
		return false
	}
	if w.op.reads() {
		ord := int(t.reads.limit.Load())
		if ord == 0 { // the request was posted before start-up found that the peer serves no Reads
			t.ahead.start(&t.queue.work, seq)
			w.status = StatusFlushed
			t.queue.finish(seq, seq+1)
			return true
		}
		if !t.reads.mayPass(ord - 1) { // [RDMAP-6.1-5] [RDMAP-6.1-3] [MPA2-9.1-3] [I-20]
			return false
		}
	}
	// [RDMAP-5.5-10] [RDMAP-5.1-5] [RDMAP-5.2.1-7] [RDMAP-5.3-9] [DDP-5.3-1]
	// [RDMAPX-5.2.1-12] [RDMAPX-6.3-6] [I-53]
	t.ahead.start(&t.queue.work, seq)
	msg := ops[w.op].msg
	switch w.op {
	case OpRead:
		t.sendRead(b, w, seq)
	case OpFetchAdd, OpCmpSwap:
		t.sendAtomic(b, w, seq)
	case OpImmediate, OpImmediateSE:
		t.control(b, msg.UntaggedHeader(t.nextMSN(rdmap.QueueSend), 0, true, 0), w.imm[:])
		t.batch.sends(seq)
	case OpLocalInvalidate:
		t.localInvalidate(w.stag, seq)
	default:
		hl := headerLen(msg)
		if t.short(b, w, seq, msg, hl) {
			return true
		}
		t.cur = txMessage{active: true, op: msg, w: w, seq: seq, cut: ddp.NewCutter(w.length, int(t.mss.mulpdu.Load()), hl)}
		if !msg.Tagged() {
			t.cur.msn = t.nextMSN(rdmap.QueueSend)
		}
	}
	return true
}

// nextMSN returns the number of the next message of queue qn. [DDP-4.3-6]
func (t *sender) nextMSN(qn int) ddp.MSN {
	m := t.msn[qn]
	t.msn[qn] = m.Next()
	return m
}

// short sends a message of a single short FPDU with at most one piece of payload. short returns
// false for all other messages, to be handled by segment. Most messages are short, and short costs
// less than segment.
func (t *sender) short(b *frameio.Batch, w *sendWQE, seq uint64, msg rdmap.Opcode, hl int) bool {
	if w.length > smallFPDU || w.nsg > 1 || t.enc.Markers {
		return false
	}
	ulpdu := hl + int(w.length)
	total := mpa.FPDULen(ulpdu)
	if total > smallFPDU || ulpdu > int(t.mss.mulpdu.Load()) {
		return false
	}
	payload := w.inline[:w.inlineLen]
	if w.nsg == 1 && w.length > 0 {
		ref, ok := t.piece(b, &w.sg[0], 0, w.length)
		if !ok {
			return false
		}
		if ref.Pins() {
			if ref.Guarded() || ref.Far() {
				ref.Release()
				return false
			}
			b.Pin(ref)
		}
		payload = ref.B()
	}
	p := t.enc.AppendLength(b.Header(total)[:0], ulpdu)
	if msg.Tagged() {
		p = msg.TaggedHeader(w.remote.STag, w.remote.TO, true).Append(p)
	} else {
		p = msg.UntaggedHeader(t.nextMSN(rdmap.QueueSend), 0, true, w.stag).Append(p)
	}
	p = append(p, payload...)
	t.enc.AppendTrailer(p, ulpdu, t.crc(p))
	t.stats.sentFPDUs.Add(1)
	t.stats.sentMessages.Add(1)
	t.stats.sentBytes.Add(uint64(w.length))
	t.mss.since += int(w.length)
	t.batch.sends(seq)
	return true
}

// piece pins n bytes at offset off of an element of a request. If the batch has pinned the region
// already, ref has no separate pin. ok is false if the memory is not accessible.
func (t *sender) piece(b *frameio.Batch, s *SGE, off, n uint64) (ref regmem.Ref, ok bool) {
	var pin regmem.Ref
	if s.Region != nil && !s.Region.r.Far() {
		if p, ok := b.Pinned(s.Region.r); ok {
			pin = p
		}
	}
	ref, out := s.pin(&t.mem, pin, off, n, regmem.LocalRead)
	return ref, out == regmem.OK
}

// segment adds the next segment of the current message. If the memory of the message is not
// accessible any more, segment ends the stream.
func (t *sender) segment(b *frameio.Batch) {
	m := &t.cur
	if _, left, room := m.cut.Rest(); room <= copiedPayload && int(left) > room && t.copied(b) {
		return
	}
	off, n, last, _ := m.cut.Next()
	var room [MaxSGE]regmem.Ref
	refs := room[:0]
	if m.in != nil && n > 0 { // Read Response: source checked and read for each segment [I-43] [I-61] [RDMAP-5.2.2-8]
		r := &m.read
		ref, out := t.mem.access(r.SourceSTag, r.SourceTO+off, uint64(n), regmem.RemoteRead)
		switch { // a refused ref is neither far nor guarded
		case t.fetches(ref):
			var ok bool
			ref, ok = t.fetchNext(ref, func(n uint64) (regmem.Ref, regmem.Outcome) {
				return t.mem.access(r.SourceSTag, r.SourceTO+off, n, regmem.RemoteRead)
			})
			if !ok {
				out = regmem.NoRegion
			}
		case !touchable(ref):
			ref.Release()
			out = regmem.NoRegion
		}
		if out != regmem.OK {
			// off fits 32 bits, because off is within the bounds of the Read.
			t.failAnswer(m.in, uint32(off), readFault(out))
			return
		}
		refs = append(refs, ref)
	}
	h := m.appendHeader(t.hdr[:0], off, last)
	if m.w != nil && n > 0 {
		if refs = t.gather(b, refs, m.w, off, uint64(n)); refs == nil {
			return
		}
	}
	// Payload copied from far memory does not change any more, and has no pin.
	moving := m.w != nil && changeable(m.w) || m.in != nil && n > 0 && refs[0].Pins()
	t.frame(b, h, refs, n, t.enc.CRC && moving)
	if last {
		t.endMessage()
	}
}

// endMessage records that the last segment of the current message is in the batch.
func (t *sender) endMessage() {
	m := &t.cur
	t.stats.sentMessages.Add(1)
	if m.in != nil {
		t.batch.answered++
		t.inbound.answered(false)
		t.stats.servedReads.Add(1)
		t.stats.servedBytes.Add(uint64(m.read.Size))
	} else {
		t.batch.sends(m.seq)
	}
	t.cur = txMessage{}
}

// gather appends to refs n pinned bytes at offset off of the payload of request w. If the payload
// is not accessible any more, gather fails the request, ends the stream, and returns nil.
func (t *sender) gather(b *frameio.Batch, refs []regmem.Ref, w *sendWQE, off, n uint64) []regmem.Ref {
	if w.inlineLen > 0 {
		return append(refs, regmem.Of(w.inline[off:off+n:off+n]))
	}
	ok := true
	for i := 0; ok && n > 0; i++ {
		s := &w.sg[i]
		l := s.length()
		if off >= l {
			off -= l
			continue
		}
		k := min(l-off, n)
		var ref regmem.Ref
		switch ref, ok = t.piece(b, s, off, k); {
		case !ok:
		case t.fetches(ref) && w.nsg == 1:
			ref, ok = t.fetchNext(ref, func(n uint64) (regmem.Ref, regmem.Outcome) {
				return s.pin(&t.mem, regmem.Ref{}, off, n, regmem.LocalRead)
			})
		case t.fetches(ref):
			ref, ok = t.copies.fetch(ref)
		case !touchable(ref):
			ref.Release()
			ok = false
		}
		if ok {
			refs = append(refs, ref)
		}
		off = 0
		n -= k
	}
	if ok {
		return refs
	}
	regmem.ReleaseAll(refs)
	t.failRequest(w) // [I-34] [RDMAP-7.1-2] [RDMAPX-8.1-1]
	return nil
}

// fetches reports whether the payload in ref must be copied to the arena before building the FPDU.
// Far memory always must; guarded memory, for example a mapped file, must if the stream has CRCs,
// because the memory may change between the CRC and the write to TCP.
func (t *sender) fetches(ref regmem.Ref) bool { return ref.Far() || t.enc.CRC && ref.Guarded() }

// farTail is the largest payload of a last segment to copy together with the segment before it,
// because each access to far memory is a system call. For example, a message of 64 KiB does not fit
// into an FPDU, and ends in a short segment.
const farTail = 8 << 10

// fetchNext copies the payload of the current segment, pinned by ref, from far memory. If the last
// segment of the message follows and is short, fetchNext copies the last payload too, and keeps the
// copy for the next call. longer pins n bytes from the start of the payload. The result is false if
// the payload is not accessible any more.
func (t *sender) fetchNext(ref regmem.Ref, longer func(n uint64) (regmem.Ref, regmem.Outcome)) (regmem.Ref, bool) {
	m := &t.cur
	if rest := m.rest; rest != nil {
		m.rest = nil
		ref.Release()
		return regmem.Of(rest), true
	}
	n := ref.Len()
	_, left, room := m.cut.Rest()
	if left > 0 && left <= uint64(min(room, farTail)) && n+int(left)+mpa.MaxFPDU <= len(t.copies.room()) {
		if both, out := longer(uint64(n) + left); out == regmem.OK {
			if got, ok := t.copies.fetch(both); ok {
				ref.Release()
				m.rest = got.B()[n:]
				return regmem.Of(got.B()[:n:n]), true
			}
		}
	}
	return t.copies.fetch(ref)
}

// touchable reports whether memory can be read now; only guarded memory may fault.
func touchable(ref regmem.Ref) bool {
	return !ref.Guarded() || ref.Probe() == nil
}

// failRequest completes request w with StatusLocalAccess and ends the stream, because local memory
// of w is not accessible any more.
func (t *sender) failRequest(w *sendWQE) {
	w.status = StatusLocalAccess
	seq := t.cur.seq
	t.cur = txMessage{}
	t.queue.finish(seq, seq+1)
	t.life.fault(rdmap.TerminateRDMAP(rdmap.Catastrophic, nil), ErrLocalAccess)
}

// frame adds one FPDU with the DDP header hdr and n bytes of payload. It releases the pins in refs.
// moving means that the FPDU has a CRC and the payload may change before sending. frame then copies
// the payload first, so that a change cannot make the CRC wrong.
func (t *sender) frame(b *frameio.Batch, hdr []byte, refs []regmem.Ref, n int, moving bool) {
	t.stats.sentFPDUs.Add(1)
	t.stats.sentBytes.Add(uint64(n))
	t.mss.since += n
	ulpdu := len(hdr) + n
	switch total := mpa.FPDULen(ulpdu); {
	case t.enc.Markers:
		t.frameMarked(b, hdr, refs)
		return
	case total <= smallFPDU: // the whole FPDU fits into one header of the batch
		h := b.Header(total)
		p := append(t.enc.AppendLength(h[:0], ulpdu), hdr...)
		p = take(p, refs) // [DDP-4.4-1]
		t.enc.AppendTrailer(p, ulpdu, t.crc(p))
		return
	case moving:
		a := t.copies.room()
		refs[0] = regmem.Of(take(a[:0], refs))
		refs = refs[:1]
		t.copies.used += n
	}
	h := b.Header(2 + len(hdr))
	t.enc.AppendLength(h[:0], ulpdu)
	copy(h[2:], hdr) // [DDP-4.4-1]
	crc := t.crc(h)
	if t.enc.CRC { // the bytes are about to be sent, so reading them now costs little
		for i := range refs {
			crc = mpa.CRC(crc, refs[i].B())
		}
	}
	for i := range refs {
		b.Data(refs[i])
		refs[i] = regmem.Ref{}
	}
	tr := b.Header(mpa.PadLen(ulpdu) + 4)
	t.enc.AppendTrailer(tr[:0], ulpdu, crc)
}

// smallFPDU is the length of the longest FPDU built in one piece, in a header of the batch.
const smallFPDU = frameio.MaxHeader

func (t *sender) crc(b []byte) uint32 {
	if t.enc.CRC {
		return mpa.CRC(0, b)
	}
	return 0
}

// take appends the bytes of refs to p and releases refs. Bytes of a mapping that has gone become
// zero.
func take(p []byte, refs []regmem.Ref) []byte {
	for i := range refs {
		n := len(p)
		p = p[:n+len(refs[i].B())]
		if regmem.Copy(p[n:], refs[i].B(), refs[i].Guarded()) != nil {
			clear(p[n:])
		}
		refs[i].Release()
		refs[i] = regmem.Ref{}
	}
	return p
}

// changeable reports whether the memory of w may change before sending: the consumer says so, or a
// peer may write to the region by STag. Windows are not considered: a consumer who sends from
// memory under a writable window, or changes posted memory, must set Volatile or expect a CRC
// error.
func changeable(w *sendWQE) bool {
	if w.volatile {
		return true
	}
	for i := range w.sg[:w.nsg] {
		if m := w.sg[i].Region; m != nil && !m.r.Far() && m.r.Rights()&(regmem.RemoteWrite|regmem.RemoteAtomic) != 0 {
			return true
		}
	}
	return false
}

// frameMarked adds an FPDU for a peer with markers. frameMarked copies the payload, because a
// marker interrupts the payload every 512 bytes.
func (t *sender) frameMarked(b *frameio.Batch, hdr []byte, refs []regmem.Ref) {
	var room [MaxSGE + 1][]byte
	parts := append(room[:0], hdr)
	for i := range refs {
		parts = append(parts, refs[i].B())
	}
	p := t.enc.Append(t.copies.room()[:0], parts...)
	t.copies.used += len(p)
	regmem.ReleaseAll(refs)
	b.Bytes(p)
}

// control adds a message of a single segment with payload body, mostly an RDMAP header, or nil.
func (t *sender) control(b *frameio.Batch, h ddp.Untagged, body []byte) {
	refs := [1]regmem.Ref{regmem.Of(body)}
	t.frame(b, h.Append(t.hdr[:0]), refs[:min(1, len(body))], len(body), false)
	t.stats.sentMessages.Add(1)
}

// refreshMSS fits the MULPDU to the current size of TCP segments, unless it is fixed by
// Interop.FPDUSize. The current message keeps the old segment size.
func (t *sender) refreshMSS() {
	if !t.mss.fixed { // reading the clock takes a good part of the time of a short message
		t.mss.refresh(time.Since(t.active.born), &t.link, t.enc.Markers)
	}
}
