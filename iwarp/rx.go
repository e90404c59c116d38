package iwarp

import (
	"errors"
	"fmt"

	"viaduct/internal/budget"
	"viaduct/internal/frameio"
	"viaduct/internal/regmem"
	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
)

// rxState belongs to the receive role of frameio.
type rxState struct {
	dec    mpa.Decoder
	first  bool         // the first FPDU was seen
	queues [4]ddp.Queue // by queue number
	op     rdmap.Opcode // of the message in progress on queue 0
	head   ddp.Untagged // its first header, whose RsvdULP counts [DDP-4.3-4] [I-47]
	recv   *recvWQE     // its buffer
	done   []Completion // receives to be published
	n      receivedCounts
	held   regmem.Ref   // pin that serves every access to its region during one Receive
	kick   bool         // something may be sent because of what came
	long   *longSegment // made when first needed

	fullSend     int          // payload of the last segment that began a message on queue 0 and did not end it
	lastSend     uint32       // length of the last message on queue 0 of more than one segment
	sendGuess    int          // that of the one in progress, by guess; 0 if none was made
	fullResponse int          // payload of the last segment of a Read Response that did not end it
	ahead        []regmem.Ref // pins of memory where what comes is guessed to belong
	staged       int          // bytes that were read and not looked at
	next         []byte       // of them, while the source is asked

	see budget.Budget // whether it looks ahead for Writes
}

// Receive implements [frameio.Protocol]: it takes whole FPDUs, verifies each
// before anything of it is believed, and places and delivers what they hold.
// With CRCs off, a long one may be begun before all of it has come.
func (e *engine) Receive(p []byte, mayDirect bool) (n, direct int, err error) {
	q := (*QueuePair)(e)
	r := &q.rx
	q.touch()
	if q.life.load().ended() {
		// tearDown waits for the receive role once: from then on what is posted
		// and what has completed is its own.
		q.dropLong()
		return len(p), 0, nil
	}
	enough := false
	for !q.life.load().ended() { // nothing that follows is looked at [DDP-7.1-16] [MPA-8-8]
		if l := r.long; l != nil && l.trailer > 0 {
			if len(p)-n < l.trailer {
				break
			}
			if err := q.verifyLong(p[n : n+l.trailer]); err != nil {
				q.badFPDU(err)
				break
			}
			n += l.trailer
			l.trailer = 0
			q.endLong()
			continue
		}
		if enough = q.full(p[n:], len(p)-n); enough {
			break
		}
		u, k, err := r.dec.Next(p[n:])
		if err != nil { // [MPA-6-1] [MPA-6-5]
			q.badFPDU(err)
			break
		}
		if k == 0 {
			if mayDirect {
				direct = q.beginLong(p[n:], longMin) // [I-22]
			}
			if direct > 0 {
				n = len(p)
			}
			break
		}
		n += k    // [MPA-3-8]
		q.fpdu(u) // [DDP-3-4] [DDP-3-8]
	}
	if q.life.load().ended() {
		n, direct = len(p), 0
		q.dropLong()
	}
	q.publish()
	if enough {
		err = frameio.ErrEnough
	}
	return n, direct, err
}

// Drained implements [frameio.Protocol].
func (e *engine) Drained() {}

// publish shows what one read has brought: completions, and answers to be
// sent.
func (q *QueuePair) publish() {
	r := &q.rx
	r.letGo()
	r.n.publish(&q.stats)
	if len(r.done) > 0 {
		q.recvCQ.pushAll(r.done)
		clear(r.done)
		r.done = r.done[:0]
	}
	if r.kick {
		r.kick = false
		q.fc.Kick()
	}
}

// badFPDU ends the stream after an invalid FPDU. As Responder no Terminate can
// be sent before a valid one came. [MPA-8-2] [MPA-8-9] [MPA-8-10] [I-23] [I-38]
func (q *QueuePair) badFPDU(err error) {
	code := mpa.CodeCRC
	if me, ok := errors.AsType[*mpa.Error](err); ok {
		code = me.Code
	}
	if ce, ok := errors.AsType[*mpa.CRCError](err); ok && !q.rx.first && ce.Field == 0 {
		// Linux sends the Terminate of a failed start-up without CRC. [I-31]
		if h, n, perr := ddp.ParseUntagged(ce.ULPDU); perr == nil && h.QN == rdmap.QueueTerminate {
			if t, _, perr := rdmap.ParseTerminate(ce.ULPDU[n:]); perr == nil {
				err = fmt.Errorf("%w; it looks like a Terminate: %w", err, terminateError(t, true, ce.ULPDU[n:], nil))
			}
		}
	}
	q.fault(rdmap.TerminateMPA(uint8(code)), err)
}

// fpdu handles the ULPDU of a valid FPDU.
func (q *QueuePair) fpdu(u []byte) {
	q.rx.n.fpdus++
	if len(u) == 0 || len(u) < ddp.HeaderLen(u[0]) { // [I-25]
		q.fault(rdmap.TerminateMPA(uint8(mpa.CodeMarker)), fmt.Errorf("iwarp: ULPDU of %d bytes", len(u)))
		return
	}
	swallow := false
	if !q.rx.first {
		q.rx.first = true
		swallow = q.firstFPDU(u)
	}
	if ddp.IsTagged(u[0]) {
		q.tagged(u)
	} else {
		q.untagged(u, swallow)
	}
}

// firstFPDU opens the way for our FPDUs. It reports whether u is a ready
// message that must not use up a receive. [MPA-7.1.2-15] [I-08] [I-21]
func (q *QueuePair) firstFPDU(u []byte) (swallow bool) {
	if q.responder == nil {
		return false
	}
	kind := rtrKind(u)
	rtr := q.responder.FirstFPDU(kind)
	q.responder = nil
	q.firstCame()
	q.sendOpen.Store(true)
	q.rx.kick = true
	return rtr && kind == mpa.RTRSend
}

// rtrKind returns which kind of ready message u could be, 0 if none.
func rtrKind(u []byte) mpa.RTR {
	if ddp.IsTagged(u[0]) {
		h, n, err := ddp.ParseTagged(u)
		if _, op := rdmap.ParseControl(h.RsvdULP); err == nil && len(u) == n && op == rdmap.Write {
			return mpa.RTRWrite
		}
		return 0
	}
	h, n, err := ddp.ParseUntagged(u)
	_, op := rdmap.ParseControl(h.RsvdULP[0])
	switch {
	case err != nil || !h.Last || h.MSN != ddp.FirstMSN:
	case op == rdmap.Send && h.QN == rdmap.QueueSend && len(u) == n:
		return mpa.RTRSend
	case op == rdmap.ReadRequestOp && h.QN == rdmap.QueueReadRequest:
		if r, _, err := rdmap.ParseReadRequest(u[n:]); err == nil && r.Size == 0 {
			return mpa.RTRRead
		}
	}
	return 0
}

// ddpFault and rdmapFault end the stream because of the segment u, and tell both
// ULPs. [DDP-8.3-4] [SEC-6.1.1-6] [RDMAPX-6.1-2] [RDMAPX-8.1-2] [DDP-7.1-14] [DDP-7.1-15] [DDP-7.1-17] [RDMAP-7.1-3] [RDMAP-7.1-4]
func (q *QueuePair) ddpFault(f ddp.Fault, u []byte) { q.fault(rdmap.TerminateDDP(f, u), nil) }

func (q *QueuePair) rdmapFault(f rdmap.Fault, u []byte) { q.fault(rdmap.TerminateRDMAP(f, u), nil) }

// target gives the range that an STag names, pinned until letGo, if it allows
// what is needed. Messages that follow each other use the same memory as a rule,
// so that one pin serves many. The bytes are nil if they are far.
func (q *QueuePair) target(stag uint32, to, n uint64, need regmem.Rights) (p []byte, guarded bool, out regmem.Outcome) {
	r := &q.rx
	if m := regmem.RegionOf(r.held); m == nil || m.Handle() != stag || m.Far() {
		r.letGo()
		ref, out := q.dev.reg.Access(stag, to, n, q.pd.dom, q, need)
		r.held = ref
		return ref.B, ref.Guarded(), out
	}
	p, out = regmem.Within(r.held, to, n, q.pd.dom, q, need)
	return p, r.held.Guarded(), out
}

// put copies src to what target or place gave: nil stands for far memory, of which held
// is the very range.
func (r *rxState) put(dst, src []byte, guarded bool) error {
	if dst == nil {
		return r.held.CopyFrom(src)
	}
	return regmem.Copy(dst, src, guarded)
}

// place is target for memory of a request of ours.
func (q *QueuePair) place(s *SGE, off, n uint64) (p []byte, guarded bool, out regmem.Outcome) {
	if s.Region == nil {
		return s.Buf[off : off+n], false, regmem.OK
	}
	r := &q.rx
	if m := s.Region.r; regmem.RegionOf(r.held) == m && !m.Far() {
		p, out = regmem.Within(r.held, m.Base()+s.Off+off, n, q.pd.dom, q, regmem.LocalWrite)
		return p, r.held.Guarded(), out
	}
	r.letGo()
	ref, out := s.pin(q, off, n, regmem.LocalWrite)
	r.held = ref
	return ref.B, ref.Guarded(), out
}

// letGo gives the pin back.
func (r *rxState) letGo() {
	if r.held.Pins() {
		r.held.Release()
		r.held = regmem.Ref{}
	}
}

// tagged handles a Tagged segment: a piece of an RDMA Write or of a Read
// Response. The order of checks is version, opcode, then what the opcode
// needs. [DDP-4.1-1] [I-42] [I-47]
func (q *QueuePair) tagged(u []byte) {
	h, n, err := ddp.ParseTagged(u)
	if err != nil { // [DDP-4.1-11] [I-44]
		q.ddpFault(ddp.VersionFault(u[0]), u)
		return
	}
	op, f := rdmap.CheckTagged(h.RsvdULP)
	if f != rdmap.OK {
		q.rdmapFault(f, u)
		return
	}
	p := u[n:]
	q.count(len(p), h.Last)
	if op == rdmap.ReadResponse {
		q.readResponse(h, p, u)
		return
	}
	if len(p) == 0 { // neither STag nor TO is looked at [DDP-5.2-10] [DDP-5.2-9] [RDMAP-5.1-8]
		return
	}
	// Everything is checked, for this segment as for each, before its first
	// byte is placed, at whatever offset. Nothing is told to the ULP. [DDP-4.2-5]
	// [DDP-4.2-8] [DDP-5.2-4] [DDP-8.3.1-1] [RDMAP-5.1-4] [RDMAP-5.1-6] [DDP-7.1-14] [RDMAP-5.1-2]
	// [RDMAP-3.2-4] [RDMAP-8.1.1-3] [SEC-6.2.1-1] [RDMAP-5.1-3]
	to, guarded, out := q.target(h.STag, h.TO, uint64(len(p)), regmem.RemoteWrite)
	if out != regmem.OK {
		q.ddpFault(writeFault(refine(out, h.TO, uint64(len(p)))), u)
		return
	}
	if err := q.rx.put(to, p, guarded); err != nil {
		q.ddpFault(ddp.InvalidSTag, u)
		return
	}
	q.rx.n.placed += uint64(len(p))
}

// count moves the counters for a segment with n bytes of payload.
func (q *QueuePair) count(n int, last bool) {
	c := &q.rx.n
	c.bytes += uint64(n)
	if last {
		c.messages++
		if n == 0 {
			c.empty++
		}
	} else if n < 64 {
		c.tiny++
	}
}

// checkResponse judges a segment of n bytes of a Read Response: it must be the
// next piece of the answer to our oldest request. [DDP-4.2-7] [RDMAP-5.2.2-5] [RDMAP-5.2.2-7] [RDMAP-5.2.2-4]
// [RDMAP-7.2-2] [I-45] [I-46]
func (q *QueuePair) checkResponse(h ddp.Tagged, n int) (*pendingRead, ddp.Fault, rdmap.Fault) {
	p := q.reads.Front()
	if p == nil || p.atomic {
		return nil, ddp.OK, rdmap.UnexpectedOpcode
	}
	if n > 0 {
		switch {
		case h.STag != p.stag:
			return nil, ddp.InvalidSTag, rdmap.OK
		case h.TO != p.to+uint64(p.got), uint64(n) > uint64(p.size-p.got):
			return nil, ddp.OutOfBounds, rdmap.OK
		}
	}
	if h.Last != (uint64(p.got)+uint64(n) == uint64(p.size)) && (n > 0 || h.Last || p.size == 0) {
		return nil, ddp.OK, rdmap.Unspecified
	}
	return p, ddp.OK, rdmap.OK
}

// readResponse places a segment of a Read Response where the request said, and
// completes the request with the last: here alone, the ULP of the other side
// sees nothing.
func (q *QueuePair) readResponse(h ddp.Tagged, b, u []byte) {
	p, df, rf := q.checkResponse(h, len(b))
	switch {
	case df != ddp.OK: // [I-45]
		q.ddpFault(df, u)
		return
	case rf != rdmap.OK: // [I-45] [I-46]
		q.rdmapFault(rf, u)
		return
	}
	if !q.scatterRead(p, b) {
		return
	}
	if h.Last { // [RDMAP-3.2-6] [RDMAP-5.5-6] [RDMAP-5.2.2-3] [RDMAP-5.5-16] [RDMAP-5.5-19]
		q.readDone()
	}
}

// scatterRead places the next bytes of a Read Response.
func (q *QueuePair) scatterRead(p *pendingRead, b []byte) bool {
	if len(b) == 0 {
		return true
	}
	if !q.scatter(p.w.sg[:p.w.nsg], uint64(p.got), b) { // our own memory is gone [I-34]
		q.sq.Update(p.seq, func(w **sendWQE) { (*w).status = StatusLocalAccess }) // with which it is flushed
		q.fault(rdmap.TerminateRDMAP(rdmap.Catastrophic, nil), ErrLocalAccess)
		return false
	}
	p.got += uint32(len(b))
	return true
}

// scatter copies b to the memory of a list, from offset off on.
func (q *QueuePair) scatter(sg []SGE, off uint64, b []byte) bool {
	for i := 0; len(b) > 0 && i < len(sg); i++ {
		s := &sg[i]
		l := s.length()
		if off >= l {
			off -= l
			continue
		}
		k := min(l-off, uint64(len(b)))
		p, guarded, out := q.place(s, off, k)
		if out != regmem.OK || q.rx.put(p, b[:k], guarded) != nil {
			return false
		}
		b = b[k:]
		off = 0
	}
	return true
}

// readDone completes our oldest Read or Atomic.
func (q *QueuePair) readDone() {
	p := q.reads.Front()
	w, seq := p.w, p.seq
	q.reads.Pop()
	if w != nil {
		q.finish(seq, seq+1)
	}
	if q.blocked.Load() && q.blocked.Swap(false) {
		q.rx.kick = true
	}
	if q.life.load().closing() {
		q.maybeFinish()
	}
}
