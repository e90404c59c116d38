package iwarp

import (
	"sync"
	"sync/atomic"
	"time"

	"viaduct/internal/frameio"
	"viaduct/internal/regmem"
	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
)

// txState is the state of sending. There is no lock, because only the holder of frameio's send role
// uses the state; others may only read mulpdu.
type txState struct {
	enc    mpa.Encoder
	mulpdu atomic.Int32
	msn    [4]ddp.MSN // number of the next message, by queue
	cur    txMessage
	opID   uint32 // identifier of the next Atomic Request [I-68]

	turn    bool    // true: a request of the peer is next; false: one of our queue [I-54]
	rtr     mpa.RTR // the ready message that must be sent first, or 0
	begun   bool    // whether the first FPDU was sent
	invalid bool    // whether a local invalidation is in progress

	peeked
	batchWork

	asked time.Duration // time since born when the MSS was last checked; 0 for never
	since int           // bytes sent since asked
	hdr   [ddp.UntaggedLen]byte
	arena *arena // holds the FPDUs and payload to which the current batch refers
	used  int    // bytes used of the arena
}

// peeked holds requests not yet begun, at the front of the send queue. Peeked requests stay in the
// queue.
type peeked struct {
	ahead    [lookAhead]*sendWQE
	aheadAt  int // index in ahead of the request that begins next
	aheadN   int
	aheadSeq uint64 // sequence number of ahead[0]
}

// batchWork lists the work to complete once the current batch has been sent.
type batchWork struct {
	done     []run // requests of the send queue
	answered int   // number of answered requests of the peer
	over     bool  // the batch contains the Terminate, so nothing may follow
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
	cut    ddp.Cutter
	w      *sendWQE     // request of our own message, or nil
	seq    uint64       // sequence number of w
	in     *inboundRead // the peer's request, if this is a Read Response, or nil
	read   rdmap.ReadRequest
	msn    ddp.MSN
	// Payload of the last segment, if already copied from far memory; otherwise nil.
	rest []byte
}

// engine is the QueuePair as a [frameio.Protocol]: engine builds batches of FPDUs and handles
// received bytes.
type engine QueuePair

var (
	_ frameio.Protocol = (*engine)(nil)
	_ frameio.Planner  = (*engine)(nil)
)

// Fill implements [frameio.Protocol]. Fill adds FPDUs to the batch, in this order: a Terminate,
// always as the last FPDU; the ready message; the rest of the current message; then, by turns,
// answers to the peer's requests and requests of our queue. Only messages of RDMAP in segments of
// DDP are sent; many may share a TCP segment.
func (e *engine) Fill(b *frameio.Batch) {
	q := (*QueuePair)(e)
	t := &q.tx
	t.used, t.cur.rest = 0, nil // a new batch has a new arena
	q.refreshMSS()
	for !b.FullFor(q.peerPredicts()) && !t.over { // [MPA-5.1-4] [I-35]
		if !q.life.open.Load() { // [MPA-7.1.2-15]
			return
		}
		// One segment needs at most two FPDUs of room in the arena, and MaxSGE pieces of the batch.
		if t.used > arenaSize-2*mpa.MaxFPDU || b.Pieces() < MaxSGE {
			b.LeaveMore()
			return
		}
		if p := q.life.term.Load(); p != nil { // [RDMAP-7.1-3] [RDMAP-5.4-8] [I-35]
			h := rdmap.TerminateOp.UntaggedHeader(ddp.FirstMSN, 0, true, 0)
			q.control(b, h, *p)
			t.over = true
			return
		}
		if q.life.Load().ended() {
			return
		}
		switch {
		case t.rtr != 0: // [MPA2-5-2]
			q.sendRTR(b)
		case q.nudge.Load() && !t.cur.active:
			q.nudge.Store(false)
			q.frame(b, rdmap.Write.TaggedHeader(1, 0, true).Append(t.hdr[:0]), nil, 0, false)
		case t.cur.active: // [I-52] [RDMAP-3.1-1]
			q.segment(b)
		default: // [RDMAP-6.1-1]
			if !q.next(b) {
				return
			}
		}
	}
}

// peerPredicts reports whether the peer can predict the memory for the next segment. The peer can
// for a Read Response, because the peer has sent the Read Request. The peer can for any segment if
// the peer's consumer uses a [RecvSource], as is assumed if ours does.
func (q *QueuePair) peerPredicts() bool { return q.supply != nil || q.tx.cur.in != nil }

// Sent implements [frameio.Protocol]. TCP has all bytes of the batch: the batch's Sends and Writes
// complete, and the slots of the answered requests are free.
func (e *engine) Sent() {
	q := (*QueuePair)(e)
	t := &q.tx
	q.active.touch()
	if t.arena != nil {
		arenas.Put(t.arena)
		t.arena = nil
	}
	if t.answered > 0 {
		q.inbound.free(t.answered) // [I-20]
		t.answered = 0
	}
	q.finishDirect()
	for _, r := range t.done {
		q.finish(r.first, r.end) // [RDMAP-5.5-4] [RDMAP-5.5-11] [DDP-5.4-1]
	}
	t.done = t.done[:0]
	if t.over {
		q.life.termSent.happen()
	}
	if !t.begun && q.stats.sentFPDUs.Load() > 0 {
		t.begun = true
		q.firstSent()
	}
	if q.life.Load().closing() {
		q.maybeFinish()
	}
}

// next begins the next message. It returns false if no message may begin now.
func (q *QueuePair) next(b *frameio.Batch) bool {
	t := &q.tx
	for range 2 {
		t.turn = !t.turn // [I-54]
		if t.turn {
			if in := q.inbound.start(); in != nil {
				q.answer(b, in)
				return true
			}
		} else if q.nextRequest(b) {
			return true
		}
	}
	return false
}

// sends records that request seq will be complete once the current batch has been sent.
func (t *txState) sends(seq uint64) {
	if n := len(t.done); n > 0 && t.done[n-1].end == seq {
		t.done[n-1].end++
		return
	}
	t.done = append(t.done, run{seq, seq + 1})
}

func headerLen(op rdmap.Opcode) int {
	if op.Tagged() {
		return ddp.TaggedLen
	}
	return ddp.UntaggedLen
}

// peek returns the next request of the send queue, without starting the request. ok is false if no
// request is waiting to start.
func (q *QueuePair) peek() (w *sendWQE, seq uint64, ok bool) {
	t := &q.tx
	if t.aheadAt == t.aheadN {
		t.aheadAt = 0
		if t.aheadN, t.aheadSeq = q.sq.PeekN(t.ahead[:]); t.aheadN == 0 {
			return nil, 0, false
		}
	}
	return t.ahead[t.aheadAt], t.aheadSeq + uint64(t.aheadAt), true
}

// started marks request seq, returned by peek, as started. No flush can have happened since peek,
// because the queues are flushed only while no Fill runs, and no Fill begins a message afterwards.
func (q *QueuePair) started(seq uint64) {
	q.sq.MarkStarted(seq)
	q.tx.aheadAt++
}

// nextRequest begins the request at the head of the send queue, if possible, and reports whether a
// request began. Requests begin in the order of posting.
func (q *QueuePair) nextRequest(b *frameio.Batch) bool {
	t := &q.tx
	if t.invalid {
		if !q.invalidated.Swap(false) {
			return false
		}
		t.invalid = false
	}
	w, seq, ok := q.peek()
	if !ok {
		return false
	}
	if (w.fence || w.op == OpLocalInvalidate) && !q.mayPass(0) { // [RDMAP-5.5-9]
		return false
	}
	if w.op.reads() {
		ord := int(q.ord.Load())
		if ord == 0 { // the request was posted before start-up found that the peer serves no Reads
			q.started(seq)
			w.status = StatusFlushed
			q.finish(seq, seq+1)
			return true
		}
		if !q.mayPass(ord - 1) { // [RDMAP-6.1-5] [RDMAP-6.1-3] [MPA2-9.1-3] [I-20]
			return false
		}
	}
	// [RDMAP-5.5-10] [RDMAP-5.1-5] [RDMAP-5.2.1-7] [RDMAP-5.3-9] [DDP-5.3-1]
	// [RDMAPX-5.2.1-12] [RDMAPX-6.3-6] [I-53]
	q.started(seq)
	msg := ops[w.op].msg
	switch w.op {
	case OpRead:
		q.sendRead(b, w, seq)
	case OpFetchAdd, OpCmpSwap:
		q.sendAtomic(b, w, seq)
	case OpImmediate, OpImmediateSE:
		q.control(b, msg.UntaggedHeader(q.nextMSN(rdmap.QueueSend), 0, true, 0), w.imm[:])
		t.sends(seq)
	case OpLocalInvalidate:
		q.localInvalidate(w.stag, seq)
	default:
		hl := headerLen(msg)
		if q.short(b, w, seq, msg, hl) {
			return true
		}
		t.cur = txMessage{active: true, op: msg, w: w, seq: seq, cut: ddp.NewCutter(w.length, int(t.mulpdu.Load()), hl)}
		if !msg.Tagged() {
			t.cur.msn = q.nextMSN(rdmap.QueueSend)
		}
	}
	return true
}

// mayPass reports whether at most n Reads and Atomics are outstanding. If more are, the next
// completed Read or Atomic wakes the send role.
func (q *QueuePair) mayPass(n int) bool {
	if q.reads.Len() <= n {
		return true
	}
	q.blocked.Store(true)
	return q.reads.Len() <= n
}

// nextMSN returns the number of the next message of queue qn. [DDP-4.3-6]
func (q *QueuePair) nextMSN(qn int) ddp.MSN {
	m := q.tx.msn[qn]
	q.tx.msn[qn] = m.Next()
	return m
}

// short sends a message of a single short FPDU with at most one piece of payload. short returns
// false for all other messages, to be handled by segment. Most messages are short, and short costs
// less than segment.
func (q *QueuePair) short(b *frameio.Batch, w *sendWQE, seq uint64, msg rdmap.Opcode, hl int) bool {
	t := &q.tx
	if w.length > smallFPDU || w.nsg > 1 || t.enc.Markers {
		return false
	}
	ulpdu := hl + int(w.length)
	total := mpa.FPDULen(ulpdu)
	if total > smallFPDU || ulpdu > int(t.mulpdu.Load()) {
		return false
	}
	payload := w.inline[:w.inlineLen]
	if w.nsg == 1 && w.length > 0 {
		ref, ok := q.piece(b, &w.sg[0], 0, w.length)
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
		p = msg.UntaggedHeader(q.nextMSN(rdmap.QueueSend), 0, true, w.stag).Append(p)
	}
	p = append(p, payload...)
	t.enc.AppendTrailer(p, ulpdu, t.crc(p))
	q.stats.sentFPDUs.Add(1)
	q.stats.sentMessages.Add(1)
	q.stats.sentBytes.Add(uint64(w.length))
	t.since += int(w.length)
	t.sends(seq)
	return true
}

// piece pins n bytes at offset off of an element of a request. If the batch has pinned the region
// already, ref has no separate pin. ok is false if the memory is not accessible.
func (q *QueuePair) piece(b *frameio.Batch, s *SGE, off, n uint64) (ref regmem.Ref, ok bool) {
	if s.Region != nil {
		r := s.Region.r
		if pin, ok := b.Pinned(r); ok && !r.Far() {
			p, out := q.mem.within(pin, r.Base()+s.Off+off, n, regmem.LocalRead)
			return regmem.Of(p), out == regmem.OK
		}
	}
	ref, out := s.pin(&q.mem, off, n, regmem.LocalRead)
	return ref, out == regmem.OK
}

// segment adds the next segment of the current message. If the memory of the message is not
// accessible any more, segment ends the stream.
func (q *QueuePair) segment(b *frameio.Batch) {
	t := &q.tx
	m := &t.cur
	if _, left, room := m.cut.Rest(); room <= copiedPayload && int(left) > room && q.copied(b) {
		return
	}
	off, n, last, _ := m.cut.Next()
	var room [MaxSGE]regmem.Ref
	refs := room[:0]
	if m.in != nil && n > 0 { // Read Response: source checked and read for each segment [I-43] [I-61] [RDMAP-5.2.2-8]
		r := &m.read
		ref, out := q.mem.access(r.SourceSTag, r.SourceTO+off, uint64(n), regmem.RemoteRead)
		switch { // a refused ref is neither far nor guarded
		case t.fetches(ref):
			var ok bool
			ref, ok = t.fetchNext(ref, func(n uint64) (regmem.Ref, regmem.Outcome) {
				return q.mem.access(r.SourceSTag, r.SourceTO+off, n, regmem.RemoteRead)
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
			q.failAnswer(m.in, uint32(off), readFault(out))
			return
		}
		refs = append(refs, ref)
	}
	h := m.appendHeader(t.hdr[:0], off, last)
	if m.w != nil && n > 0 {
		if refs = q.gather(b, refs, m.w, off, uint64(n)); refs == nil {
			return
		}
	}
	// Payload copied from far memory does not change any more, and has no pin.
	moving := m.w != nil && changeable(m.w) || m.in != nil && n > 0 && refs[0].Pins()
	q.frame(b, h, refs, n, t.enc.CRC && moving)
	if last {
		q.endMessage()
	}
}

// endMessage records that the last segment of the current message is in the batch.
func (q *QueuePair) endMessage() {
	t := &q.tx
	m := &t.cur
	q.stats.sentMessages.Add(1)
	if m.in != nil {
		t.answered++
		q.inbound.answered(false)
		q.stats.servedReads.Add(1)
		q.stats.servedBytes.Add(uint64(m.read.Size))
	} else {
		t.sends(m.seq)
	}
	t.cur = txMessage{}
}

// gather appends to refs n pinned bytes at offset off of the payload of request w. If the payload
// is not accessible any more, gather fails the request, ends the stream, and returns nil.
func (q *QueuePair) gather(b *frameio.Batch, refs []regmem.Ref, w *sendWQE, off, n uint64) []regmem.Ref {
	t := &q.tx
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
		switch ref, ok = q.piece(b, s, off, k); {
		case !ok:
		case t.fetches(ref) && w.nsg == 1:
			ref, ok = t.fetchNext(ref, func(n uint64) (regmem.Ref, regmem.Outcome) { return s.pin(&q.mem, off, n, regmem.LocalRead) })
		case t.fetches(ref):
			ref, ok = t.fetch(ref)
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
	q.failRequest(w) // [I-34] [RDMAP-7.1-2] [RDMAPX-8.1-1]
	return nil
}

// fetches reports whether the payload in ref must be copied to the arena before building the FPDU.
// Far memory always must; guarded memory, for example a mapped file, must if the stream has CRCs,
// because the memory may change between the CRC and the write to TCP.
func (t *txState) fetches(ref regmem.Ref) bool { return ref.Far() || t.enc.CRC && ref.Guarded() }

// fetch copies the bytes of ref to the arena, and releases ref. It returns false if the bytes are
// not accessible any more.
func (t *txState) fetch(ref regmem.Ref) (regmem.Ref, bool) {
	p := t.room()[:ref.Len():ref.Len()]
	err := ref.CopyTo(p)
	ref.Release()
	if err != nil {
		return regmem.Ref{}, false
	}
	t.used += len(p)
	return regmem.Of(p), true
}

// farTail is the largest payload of a last segment to copy together with the segment before it,
// because each access to far memory is a system call. For example, a message of 64 KiB does not fit
// into an FPDU, and ends in a short segment.
const farTail = 8 << 10

// fetchNext copies the payload of the current segment, pinned by ref, from far memory. If the last
// segment of the message follows and is short, fetchNext copies the last payload too, and keeps the
// copy for the next call. longer pins n bytes from the start of the payload. The result is false if
// the payload is not accessible any more.
func (t *txState) fetchNext(ref regmem.Ref, longer func(n uint64) (regmem.Ref, regmem.Outcome)) (regmem.Ref, bool) {
	m := &t.cur
	if rest := m.rest; rest != nil {
		m.rest = nil
		ref.Release()
		return regmem.Of(rest), true
	}
	n := ref.Len()
	_, left, room := m.cut.Rest()
	if left > 0 && left <= uint64(min(room, farTail)) && n+int(left)+mpa.MaxFPDU <= len(t.room()) {
		if both, out := longer(uint64(n) + left); out == regmem.OK {
			if got, ok := t.fetch(both); ok {
				ref.Release()
				m.rest = got.B()[n:]
				return regmem.Of(got.B()[:n:n]), true
			}
		}
	}
	return t.fetch(ref)
}

// touchable reports whether memory can be read now; only guarded memory may fault.
func touchable(ref regmem.Ref) bool {
	return !ref.Guarded() || ref.Probe() == nil
}

// failRequest completes request w with StatusLocalAccess and ends the stream, because local memory
// of w is not accessible any more.
func (q *QueuePair) failRequest(w *sendWQE) {
	w.status = StatusLocalAccess
	seq := q.tx.cur.seq
	q.tx.cur = txMessage{}
	q.finish(seq, seq+1)
	q.life.fault(rdmap.TerminateRDMAP(rdmap.Catastrophic, nil), ErrLocalAccess)
}

// frame adds one FPDU with the DDP header hdr and n bytes of payload. It releases the pins in refs.
// moving means that the FPDU has a CRC and the payload may change before sending. frame then copies
// the payload first, so that a change cannot make the CRC wrong.
func (q *QueuePair) frame(b *frameio.Batch, hdr []byte, refs []regmem.Ref, n int, moving bool) {
	t := &q.tx
	q.stats.sentFPDUs.Add(1)
	q.stats.sentBytes.Add(uint64(n))
	t.since += n
	ulpdu := len(hdr) + n
	switch total := mpa.FPDULen(ulpdu); {
	case t.enc.Markers:
		q.frameMarked(b, hdr, refs)
		return
	case total <= smallFPDU: // the whole FPDU fits into one header of the batch
		h := b.Header(total)
		p := append(t.enc.AppendLength(h[:0], ulpdu), hdr...)
		p = take(p, refs) // [DDP-4.4-1]
		t.enc.AppendTrailer(p, ulpdu, t.crc(p))
		return
	case moving:
		a := t.room()
		refs[0] = regmem.Of(take(a[:0], refs))
		refs = refs[:1]
		t.used += n
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

func (t *txState) crc(b []byte) uint32 {
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

// arenaSize is the size of a few of the largest FPDUs, about a batch.
const arenaSize = 384 << 10

// An arena holds bytes referenced by a batch until the batch is sent.
type arena [arenaSize]byte

var arenas = sync.Pool{New: func() any { return new(arena) }}

// room returns the unused part of the arena.
func (t *txState) room() []byte {
	if t.arena == nil {
		t.arena = arenas.Get().(*arena)
	}
	return t.arena[t.used:]
}

// frameMarked adds an FPDU for a peer with markers. frameMarked copies the payload, because a
// marker interrupts the payload every 512 bytes.
func (q *QueuePair) frameMarked(b *frameio.Batch, hdr []byte, refs []regmem.Ref) {
	t := &q.tx
	var room [MaxSGE + 1][]byte
	parts := append(room[:0], hdr)
	for i := range refs {
		parts = append(parts, refs[i].B())
	}
	p := t.enc.Append(t.room()[:0], parts...)
	t.used += len(p)
	regmem.ReleaseAll(refs)
	b.Bytes(p)
}

// control adds a message of a single segment with payload body, mostly an RDMAP header, or nil.
func (q *QueuePair) control(b *frameio.Batch, h ddp.Untagged, body []byte) {
	refs := [1]regmem.Ref{regmem.Of(body)}
	q.frame(b, h.Append(q.tx.hdr[:0]), refs[:min(1, len(body))], len(body), false)
	q.stats.sentMessages.Add(1)
}

// mssBytes and mssAge limit the use of a TCP segment size: after mssBytes bytes, or at age mssAge,
// the size is read again. [I-27]
const (
	mssBytes = 4 << 20
	mssAge   = time.Second
)

// refreshMSS fits the MULPDU to the current size of TCP segments, unless fixed by Config.FPDUSize.
// The current message keeps the old segment size. [MPA-4.5-6] [MPA-4.5-3] [DDP-3-1] [DDP-3-2]
// [I-27]
func (q *QueuePair) refreshMSS() {
	t := &q.tx
	if q.set.fixedSize {
		return
	}
	now := time.Since(q.active.born)
	if t.asked != 0 && t.since < mssBytes && now-t.asked < mssAge {
		return
	}
	t.since, t.asked = 0, max(now, 1)
	var size int
	if q.link.fc != nil {
		size = segmentSizeBy(q.link.fc, q.link.conn)
	} else {
		size = segmentSize(q.link.conn)
	}
	t.mulpdu.Store(int32(mpa.MULPDU(size, t.enc.Markers)))
}
