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
	queues [4]ddp.Queue // by queue number
	first  bool         // the first FPDU was seen
	kick   bool         // something may be sent because of what came
	op     rdmap.Opcode // of the message in progress on queue 0
	longOp rdmap.Opcode // of the last segment that was read into place
	head   ddp.Untagged // its first header, whose RsvdULP counts [DDP-4.3-4] [I-47]
	recv   *recvWQE     // its buffer
	done   []Completion // receives to be published
	far    *farWrites   // nil while the device has no far regions
	held   regmem.Ref   // pin that serves every access to its region during one Receive
	seg    segment      // being taken, or the last one

	fullSend     int          // payload of the last segment that began a message on queue 0 and did not end it
	lastSend     uint32       // length of the last message on queue 0 of more than one segment
	sendGuess    uint32       // that of the one in progress, by guess; 0 if none was made
	fullResponse int          // payload of the last segment of a Read Response that did not end it
	ahead        []regmem.Ref // pins of memory where what comes is predicted to belong
	staged       int          // bytes that were read and not looked at
	next         []byte       // of them, while the source is asked

	see budget.Budget // whether it looks ahead for Writes
}

// Receive implements [frameio.Protocol]: it takes whole FPDUs, verifies each
// before anything of it is believed, and places and delivers what they hold.
// With CRCs off, a long one may be begun before all of it has come.
func (e *engine) Receive(p []byte, mayPlan bool) (n, missing int, err error) {
	q := (*QueuePair)(e)
	r := &q.rx
	if q.life.Load().ended() {
		// tearDown waits for the receive role once: from then on what is posted
		// and what has completed is its own.
		r.seg.drop()
		return len(p), 0, nil
	}
	if r.far == nil && q.dev.far.Load() {
		r.far = new(farWrites)
	}
	enough := false
	for n < len(p) && !q.life.Load().ended() { // nothing that follows is looked at [DDP-7.1-16] [MPA-8-8]
		if k := r.seg.trailer; k > 0 {
			if len(p)-n < k || !q.endLong(p[n:n+k]) {
				break
			}
			n += k
			continue
		}
		if enough = q.full(p[n:], len(p)-n); enough {
			break
		}
		u, k, err := r.dec.Next(p[n:])
		if err != nil { // [MPA-6-1] [MPA-6-5]
			q.placePostponed() // first, and with what is wrong with it
			q.badFPDU(err)
			break
		}
		if k == 0 {
			if mayPlan {
				missing = q.beginLong(p[n:], longMin, nil) // [I-22]
			}
			if missing > 0 {
				n = len(p)
			}
			break
		}
		if !r.dec.Markers {
			r.far.taking(p[n:])
		}
		n += k    // [MPA-3-8]
		q.fpdu(u) // [DDP-3-4] [DDP-3-8]
	}
	q.placePostponed()
	r.far.taking(nil)
	if q.life.Load().ended() {
		n, missing = len(p), 0
		r.seg.drop()
	}
	q.publish()
	if enough {
		err = frameio.ErrEnough
	}
	return n, missing, err
}

// Drained implements [frameio.Protocol].
func (e *engine) Drained() {}

// publish shows what one read has brought: completions, and answers to be
// sent.
func (q *QueuePair) publish() {
	r := &q.rx
	if !q.fc.Polled() {
		q.note()
	}
	r.letGo()
	if !r.seg.long {
		r.seg.u = nil
	}
	if len(r.done) > 0 {
		q.recvCQ.pushAll(r.done)
		r.done = r.done[:0] // what is behind it refers to the stream alone
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
	q.stats.recvFPDUs.Add(1)
	if len(u) == 0 || len(u) < ddp.HeaderLen(u[0]) { // [I-25]
		q.placePostponed()
		q.fault(rdmap.TerminateMPA(uint8(mpa.CodeMarker)), fmt.Errorf("iwarp: ULPDU of %d bytes", len(u)))
		return
	}
	swallow := false
	if !q.rx.first {
		q.rx.first = true
		swallow = q.firstFPDU(u)
	}
	q.take(u, swallow)
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
