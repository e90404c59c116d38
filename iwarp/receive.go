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

// rxState is the state of receiving. There is no lock, because only the holder of frameio's receive
// role uses the state.
type rxState struct {
	placer.Placer
	dec    mpa.Decoder
	queues [4]ddp.Queue // untagged queues, by queue number
	first  bool         // whether the first FPDU has arrived
	kick   bool         // whether received messages allow the send role to continue
	op     rdmap.Opcode // opcode of the current message on queue 0
	// First header of the current message. The RsvdULP of later headers is not used. [DDP-4.3-4]
	// [I-47]
	head   ddp.Untagged
	recv   *recvWQE     // receive of the current message on queue 0
	done   []Completion // completions of receives that publish has not published
	far    *farWrites   // nil while the device has no far regions
	seg    segment      // the current segment, or the last one
	staged int          // bytes read and not handled, during a call of the source
	next   []byte       // the first of the staged bytes, during a call of the source
	guess
}

// Receive implements [frameio.Protocol]: it handles the FPDUs at the front of p. After the end of
// the stream, Receive drops all bytes.
func (e *engine) Receive(p []byte, mayPlan bool) (n, missing int, err error) {
	q := (*QueuePair)(e)
	r := &q.rx
	if q.life.Load().ended() {
		// tearDown waits for the receive role once. After that, posted and completed requests
		// belong to tearDown.
		r.Drop()
		return len(p), 0, nil
	}
	if r.far == nil && q.mem.dev.far.Load() {
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

// Plan implements [frameio.Planner]: it adds the memory for the missing and for the predicted
// payload.
func (e *engine) Plan(p *frameio.Plan) error {
	e.rx.Plan(p)
	return nil
}

// Landed implements [frameio.Planner]: it handles the bytes read into planned memory.
func (e *engine) Landed(p *frameio.Plan, frame, behind int) (taken, missing int, err error) {
	q := (*QueuePair)(e)
	if q.rx.Missing() > 0 {
		q.active.note()
	}
	taken, missing, err = q.rx.Landed(p, frame, behind)
	if len(p.Predicted) > 0 {
		q.publish()
	}
	return taken, missing, err
}

// Drained implements [frameio.Protocol]. It does nothing, because iWARP sends no acknowledgements.
func (e *engine) Drained() {}

// publish publishes the results of a read: completions, and requests to answer. It also releases
// the placer's pin.
func (q *QueuePair) publish() {
	r := &q.rx
	if !q.link.fc.Polled() {
		q.active.note()
	}
	r.LetGo()
	if !r.Open() {
		r.seg.u = nil
	}
	if len(r.done) > 0 {
		q.recvCQ.pushAll(r.done)
		// Stale entries of the array refer only to this stream and keep nothing else alive.
		r.done = r.done[:0]
	}
	if r.kick {
		r.kick = false
		q.link.fc.Kick()
	}
}

// badFPDU ends the stream after an invalid FPDU. A Responder cannot send a Terminate before
// receiving a valid FPDU. [MPA-8-2] [MPA-8-9] [MPA-8-10] [I-23] [I-38]
func (q *QueuePair) badFPDU(err error) {
	code := mpa.CodeCRC
	if me, ok := errors.AsType[*mpa.Error](err); ok {
		code = me.Code
	}
	if ce, ok := errors.AsType[*mpa.CRCError](err); ok && !q.rx.first && ce.Field == 0 {
		// Linux sends the Terminate of a failed start-up without CRC, so this FPDU may be such a
		// Terminate. [I-31]
		if h, n, perr := ddp.ParseUntagged(ce.ULPDU); perr == nil && h.QN == rdmap.QueueTerminate {
			if t, _, perr := rdmap.ParseTerminate(ce.ULPDU[n:]); perr == nil {
				err = fmt.Errorf("%w; it looks like a Terminate: %w", err, terminateError(t, true, ce.ULPDU[n:], nil))
			}
		}
	}
	q.life.fault(rdmap.TerminateMPA(uint8(code)), err)
}

// firstFPDU allows a Responder to send FPDUs, because u, the first FPDU of the peer, has arrived.
// swallow is true if u is a ready message, so that u must not use up a receive. [MPA-7.1.2-15]
// [I-08] [I-21]
func (q *QueuePair) firstFPDU(u []byte) (swallow bool) {
	if q.link.responder == nil {
		return false
	}
	kind := rtrKind(u)
	rtr := q.link.responder.FirstFPDU(kind)
	q.link.responder = nil
	q.life.firstCame()
	q.life.open.Store(true)
	q.rx.kick = true
	return rtr && kind == mpa.RTRSend
}

// rtrKind returns the possible kind of the ready message u, or 0 if u cannot be a ready message.
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
