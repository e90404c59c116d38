package iwarp

import (
	"errors"
	"fmt"

	"viaduct/internal/frameio"
	"viaduct/internal/placer"
	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
)

// rxState belongs to the receive role of frameio.
type rxState struct {
	placer.Placer
	dec    mpa.Decoder
	queues [4]ddp.Queue // by queue number
	first  bool         // the first FPDU was seen
	kick   bool         // something may be sent because of what came
	op     rdmap.Opcode // of the message in progress on queue 0
	head   ddp.Untagged // its first header, whose RsvdULP counts [DDP-4.3-4] [I-47]
	recv   *recvWQE     // its buffer
	done   []Completion // receives to be published
	far    *farWrites   // nil while the device has no far regions
	seg    segment      // being taken, or the last one
	staged int          // bytes that were read and not looked at
	next   []byte       // of them, while the source is asked
	guess
}

// Receive implements [frameio.Protocol].
func (e *engine) Receive(p []byte, mayPlan bool) (n, missing int, err error) {
	q := (*QueuePair)(e)
	r := &q.rx
	if q.life.Load().ended() {
		// tearDown waits for the receive role once: from then on what is posted
		// and what has completed is its own.
		r.Drop()
		return len(p), 0, nil
	}
	if r.far == nil && q.dev.far.Load() {
		r.far = new(farWrites)
	}
	n, missing, err = r.Placer.Receive(p, mayPlan)
	q.placePostponed()
	r.far.taking(nil)
	if q.life.Load().ended() {
		n, missing = len(p), 0
		r.Drop()
	}
	q.publish()
	return n, missing, err
}

// Plan implements [frameio.Planner].
func (e *engine) Plan(p *frameio.Plan) error {
	e.rx.Plan(p)
	return nil
}

// Landed implements [frameio.Planner].
func (e *engine) Landed(p *frameio.Plan, frame, behind int) (taken, missing int, err error) {
	q := (*QueuePair)(e)
	if q.rx.Missing() > 0 {
		q.note()
	}
	taken, missing, err = q.rx.Landed(p, frame, behind)
	if len(p.Predicted) > 0 {
		q.publish()
	}
	return taken, missing, err
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
	r.LetGo()
	if !r.Open() {
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
