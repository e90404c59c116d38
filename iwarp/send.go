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

// txState belongs to the send role of frameio, except mulpdu, which others
// may read.
type txState struct {
	enc    mpa.Encoder
	mulpdu atomic.Int32
	msn    [4]ddp.MSN // next of each queue
	cur    txMessage
	opID   uint32 // identifier of the next Atomic Request [I-68]

	turn    bool    // whose turn it is: the peer's requests or our queue [I-54]
	rtr     mpa.RTR // the ready message that has to go first
	begun   bool    // the first FPDU of all was sent
	invalid bool    // a local invalidation is in progress

	lookedAt
	inBatch

	asked time.Duration // when the MSS was last looked at, since the stream was made; 0 for never
	since int           // bytes sent since then
	hdr   [ddp.UntaggedLen]byte
	arena *arena // FPDUs and payload that the batch in progress refers to
	used  int    // bytes of it
}

// Those lookedAt are requests of the send queue that have not begun. Each belongs to the
// queue still.
type lookedAt struct {
	ahead    [lookAhead]*sendWQE
	aheadAt  int // the next of them
	aheadN   int
	aheadSeq uint64 // number of ahead[0]
}

// What is inBatch the batch in progress will have done when it is sent.
type inBatch struct {
	done     []run // requests of the send queue
	answered int   // requests of the peer
	over     bool  // the Terminate is in it, nothing may follow
}

// lookAhead is how many requests are taken under one lock of the send queue.
const lookAhead = 8

// A run is a range of requests of the send queue.
type run struct{ first, end uint64 }

// A txMessage is the message that is being cut into segments: one of RDMAP, one
// of DDP. [RDMAP-3.1-3]
type txMessage struct {
	active bool
	op     rdmap.Opcode
	cut    ddp.Cutter
	w      *sendWQE     // own message
	seq    uint64       // of w
	in     *inboundRead // request of a Read Response
	read   rdmap.ReadRequest
	msn    ddp.MSN
	rest   []byte // far payload of its last segment, if that was fetched already
}

// engine is the face of a QueuePair towards frameio.
type engine QueuePair

var (
	_ frameio.Protocol = (*engine)(nil)
	_ frameio.Planner  = (*engine)(nil)
)

// Fill implements [frameio.Protocol]: it adds FPDUs to the batch. A Terminate
// goes before everything else and ends the direction; then the RTR; then the message
// in progress, whole; then, by turns, answers to the peer's requests and our own
// queue. Nothing but messages of RDMAP in segments of DDP is ever sent; many may go
// into one TCP segment.
func (e *engine) Fill(b *frameio.Batch) {
	q := (*QueuePair)(e)
	t := &q.tx
	t.used, t.cur.rest = 0, nil // the arena is another
	q.refreshMSS()
	for !b.FullFor(q.tellsAhead()) && !t.over { // [MPA-5.1-4] [I-35]
		if !q.sendOpen.Load() { // [MPA-7.1.2-15]
			return
		}
		if t.used > arenaSize-2*mpa.MaxFPDU || b.Pieces() < MaxSGE { // each may be taken twice
			b.LeaveMore()
			return
		}
		if p := q.term.Load(); p != nil { // [RDMAP-7.1-3] [RDMAP-5.4-8] [I-35]
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

// tellsAhead reports whether the peer can tell the next segment ahead: the rest of an
// answer that it asked for, or, where the consumer's messages are a stream to a
// [RecvSource], as they are here, any.
func (q *QueuePair) tellsAhead() bool { return q.supply != nil || q.tx.cur.in != nil }

// Sent implements [frameio.Protocol]: Sends and Writes complete when TCP has
// all of their bytes, and slots of the peer's requests are free when TCP has their
// answers.
func (e *engine) Sent() {
	q := (*QueuePair)(e)
	t := &q.tx
	q.touch()
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
		q.termSent.happen()
	}
	if !t.begun && q.stats.sentFPDUs.Load() > 0 {
		t.begun = true
		q.firstSent()
	}
	if q.life.Load().closing() {
		q.maybeFinish()
	}
}

// next begins the next message. It reports whether there was one.
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

// sends notes that request seq is complete when the batch is sent.
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

// peek returns the next request of the send queue. It is started by started.
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

// started starts the request that peek returned. No flush comes between: the
// queues are flushed when no Fill runs, and none begins a message afterwards.
func (q *QueuePair) started(seq uint64) {
	q.sq.MarkStarted(seq)
	q.tx.aheadAt++
}

// nextRequest begins the request at the head of the send queue, if it may
// begin. Requests begin in the order of posting.
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
		if ord == 0 { // posted before start-up told so
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

// mayPass reports whether no more than n Reads and Atomics are outstanding. If
// not, the completion of one rings the doorbell.
func (q *QueuePair) mayPass(n int) bool {
	if q.reads.Len() <= n {
		return true
	}
	q.blocked.Store(true)
	return q.reads.Len() <= n
}

// nextMSN returns the number of the next message of a queue. [DDP-4.3-6]
func (q *QueuePair) nextMSN(qn int) ddp.MSN {
	m := q.tx.msn[qn]
	q.tx.msn[qn] = m.Next()
	return m
}

// short sends a message that is one short FPDU with at most one piece of
// payload, which is what there are many of. It reports whether it did; whatever
// is not plain is left to segment.
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

// piece gives n bytes at offset off of an element of a request. Those of a
// region that the batch has pinned already come without a pin of their own.
func (q *QueuePair) piece(b *frameio.Batch, s *SGE, off, n uint64) (ref regmem.Ref, ok bool) {
	if s.Region != nil {
		r := s.Region.r
		if pin, ok := b.Pinned(r); ok && !r.Far() {
			p, out := regmem.Within(pin, r.Base()+s.Off+off, n, q.pd.dom, q, regmem.LocalRead)
			return regmem.Of(p), out == regmem.OK
		}
	}
	ref, out := s.pin(q, off, n, regmem.LocalRead)
	return ref, out == regmem.OK
}

// segment adds the next segment of the message in progress. If memory for it is gone, it
// ends the stream.
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
		ref, out := q.dev.reg.Access(r.SourceSTag, r.SourceTO+off, uint64(n), q.pd.dom, q, regmem.RemoteRead)
		switch { // what was refused is neither
		case ref.Far():
			var ok bool
			ref, ok = t.fetchNext(ref, func(n uint64) (regmem.Ref, regmem.Outcome) {
				return q.dev.reg.Access(r.SourceSTag, r.SourceTO+off, n, q.pd.dom, q, regmem.RemoteRead)
			})
			if !ok {
				out = regmem.NoRegion
			}
		case !touchable(ref):
			ref.Release()
			out = regmem.NoRegion
		}
		if out != regmem.OK {
			q.failAnswer(m.in, uint32(off), readFault(out)) // the bounds were good for the whole of it
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
	// What was fetched does not change any more.
	moving := m.w != nil && changeable(m.w) || m.in != nil && n > 0 && refs[0].Pins()
	q.frame(b, h, refs, n, t.enc.CRC && moving)
	if last {
		q.endMessage()
	}
}

// endMessage notes that the last segment of the message in progress is in the
// batch.
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

// gather pins n bytes at offset off of the payload of a request. If its memory
// is gone the request fails, and the stream with it: nil.
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
		case ref.Far() && w.nsg == 1:
			ref, ok = t.fetchNext(ref, func(n uint64) (regmem.Ref, regmem.Outcome) { return s.pin(q, off, n, regmem.LocalRead) })
		case ref.Far():
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

// fetch copies far bytes, which it gives back, to the arena. It is false if they are gone.
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

// farTail is how long the last segment of a message may be that is fetched with the one before: each access
// to far memory is a call. Messages of 64 KiB, which no FPDU holds, end in such.
const farTail = 8 << 10

// fetchNext is fetch for all payload of the segment in progress. Of a message that ends in a short segment that one is
// fetched too, if it is there; longer pins the first n bytes from where the payload begins.
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

// touchable tells whether memory that may fault can be read now.
func touchable(ref regmem.Ref) bool {
	return !ref.Guarded() || regmem.Guard(func() { mpa.CRC(0, ref.B()) }) == nil
}

// failRequest ends the stream because local memory of a request is gone.
func (q *QueuePair) failRequest(w *sendWQE) {
	w.status = StatusLocalAccess
	seq := q.tx.cur.seq
	q.tx.cur = txMessage{}
	q.finish(seq, seq+1)
	q.fault(rdmap.TerminateRDMAP(rdmap.Catastrophic, nil), ErrLocalAccess)
}

// frame adds one FPDU: the DDP header and n bytes of payload. It takes the
// pins over. moving says that the payload has a CRC and may change before it is
// sent: it is then copied first, so that a change can't spoil it.
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
	case total <= smallFPDU: // in one piece
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
	if t.enc.CRC { // while it is about to be used anyway
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

// smallFPDU is the longest FPDU that is made in one piece: what a batch gives
// out at a time.
const smallFPDU = frameio.MaxHeader

func (t *txState) crc(b []byte) uint32 {
	if t.enc.CRC {
		return mpa.CRC(0, b)
	}
	return 0
}

// take appends what is pinned to p and gives the pins back. Bytes of a mapping
// that has gone are zero.
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

// changeable tells whether a peer may write to the memory, by a region's own
// STag. A consumer that sends from under a window that a peer may write to, or changes
// what is posted, has to expect a CRC error.
func changeable(w *sendWQE) bool {
	for i := range w.sg[:w.nsg] {
		if m := w.sg[i].Region; m != nil && !m.r.Far() && m.r.Rights()&(regmem.RemoteWrite|regmem.RemoteAtomic) != 0 {
			return true
		}
	}
	return false
}

// arenaSize is room for a few of the largest FPDUs: about a batch.
const arenaSize = 384 << 10

// An arena holds bytes that a batch refers to until it is sent.
type arena [arenaSize]byte

var arenas = sync.Pool{New: func() any { return new(arena) }}

// room returns what is left of the arena.
func (t *txState) room() []byte {
	if t.arena == nil {
		t.arena = arenas.Get().(*arena)
	}
	return t.arena[t.used:]
}

// frameMarked is frame for a peer that wants markers. They cut payload at
// every 512 bytes, so it is copied.
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

// control adds a message whose payload is an RDMAP header: one segment.
func (q *QueuePair) control(b *frameio.Batch, h ddp.Untagged, body []byte) {
	refs := [1]regmem.Ref{regmem.Of(body)}
	q.frame(b, h.Append(q.tx.hdr[:0]), refs[:min(1, len(body))], len(body), false)
	q.stats.sentMessages.Add(1)
}

// mssBytes and mssAge say how long a size is believed. [I-27]
const (
	mssBytes = 4 << 20
	mssAge   = time.Second
)

// refreshMSS fits MULPDU to the TCP segments of the moment; the message in
// progress keeps its size. [MPA-4.5-6] [MPA-4.5-3] [DDP-3-1] [DDP-3-2] [I-27]
func (q *QueuePair) refreshMSS() {
	t := &q.tx
	if q.set.fixedSize {
		return
	}
	now := time.Since(q.born)
	if t.asked != 0 && t.since < mssBytes && now-t.asked < mssAge {
		return
	}
	t.since, t.asked = 0, max(now, 1)
	var size int
	if q.fc != nil {
		size = segmentSizeBy(q.fc, q.conn)
	} else {
		size = segmentSize(q.conn)
	}
	t.mulpdu.Store(int32(mpa.MULPDU(size, t.enc.Markers)))
}
