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

// A receiver handles received FPDUs: it judges each segment, puts the payload into place, and
// completes messages. There is no lock, because only the holder of frameio's receive role uses a
// receiver.
type receiver struct {
	*shared
	sends *sendQueue // completes Reads and Atomics

	placer.Placer
	dec       mpa.Decoder
	responder *mpa.Responder // nil for an Initiator, and after the first FPDU
	queues    [4]ddp.Queue   // untagged queues, by queue number
	first     bool           // whether the first FPDU has arrived
	kick      bool           // whether received messages allow the send role to continue
	seg       segment        // the current segment, or the last one
	box       inbox          // the current message on queue 0
	far       *farWrites     // nil while the device has no far regions
	unread    *unread        // reports to the source, or nil without a source
	guess
}

// receive handles the FPDUs at the front of p, as [frameio.Protocol] requires. After the end of the
// stream, receive drops all bytes.
func (r *receiver) receive(p []byte, mayPlan bool) (n, missing int, err error) {
	if !r.life.Load().ended() {
		if r.far == nil && r.mem.dev.far.Load() {
			r.far = new(farWrites)
		}
		n, missing, err = r.Receive(p, mayPlan)
		r.placePostponed()
		r.far.taking(nil)
		r.publish()
	}
	if r.life.Load().ended() {
		// tearDown waits for the receive role once. After that, posted and completed requests
		// belong to tearDown.
		r.Drop()
		return len(p), 0, nil
	}
	return n, missing, err
}

// landed handles the bytes read into planned memory, as [frameio.Planner] requires.
func (r *receiver) landed(p *frameio.Plan, frame, behind int) (taken, missing int, err error) {
	if r.Missing() > 0 {
		r.active.note()
	}
	taken, missing, err = r.Landed(p, frame, behind)
	if len(p.Predicted) > 0 {
		r.publish()
	}
	return taken, missing, err
}

// publish publishes the results of a read: completions, and requests to answer. It also releases
// the placer's pin.
func (r *receiver) publish() {
	if !r.link.fc.Polled() {
		r.active.note()
	}
	r.LetGo()
	if !r.Open() {
		r.seg.u = nil
	}
	r.box.publish()
	if r.kick {
		r.kick = false
		r.link.fc.Kick()
	}
}

// atRest reports whether no message of the peer has begun and not ended, and no Read of ours waits
// for an answer.
func (r *receiver) atRest() bool {
	_, open := r.queues[rdmap.QueueSend].Open()
	return !open && r.reads.Len() == 0
}

// badFPDU ends the stream after an invalid FPDU. A Responder cannot send a Terminate before
// receiving a valid FPDU. [MPA-8-2] [MPA-8-9] [MPA-8-10] [I-23] [I-38]
func (r *receiver) badFPDU(err error) {
	code := mpa.CodeCRC
	if me, ok := errors.AsType[*mpa.Error](err); ok {
		code = me.Code
	}
	if ce, ok := errors.AsType[*mpa.CRCError](err); ok && !r.first && ce.Field == 0 {
		// Linux sends the Terminate of a failed start-up without CRC, so this FPDU may be such a
		// Terminate. [I-31]
		if h, n, perr := ddp.ParseUntagged(ce.ULPDU); perr == nil && h.QN == rdmap.QueueTerminate {
			if t, _, perr := rdmap.ParseTerminate(ce.ULPDU[n:]); perr == nil {
				err = fmt.Errorf("%w; it looks like a Terminate: %w", err, terminateError(t, true, ce.ULPDU[n:], nil))
			}
		}
	}
	r.life.fault(rdmap.TerminateMPA(uint8(code)), err)
}

// firstFPDU allows a Responder to send FPDUs, because the peer's first FPDU has arrived. kind is the
// kind of ready message that the FPDU may be, or 0. ready is true if the FPDU is a ready message on
// queue 0, which must not use up a receive. [MPA-7.1.2-15] [I-08] [I-21]
func (r *receiver) firstFPDU(kind mpa.RTR) (ready bool) {
	r.first = true
	if r.responder == nil {
		return false
	}
	ready = r.responder.FirstFPDU(kind) && kind == mpa.RTRSend
	r.responder = nil
	r.life.firstCame()
	r.life.open.Store(true)
	r.kick = true
	return ready
}

// rtrKind returns the kind of ready message that s may be, or 0 if s is none. f is the fault found
// by parse.
func (s *segment) rtrKind(f refusal) mpa.RTR {
	switch {
	case !f.ok():
	case s.op == rdmap.Write && s.size == 0:
		return mpa.RTRWrite
	case s.op.Tagged() || !s.last || s.un.MSN != ddp.FirstMSN:
	case s.op == rdmap.Send && s.size == 0:
		return mpa.RTRSend
	case s.op == rdmap.ReadRequestOp:
		if r, _, err := rdmap.ParseReadRequest(s.payload()); err == nil && r.Size == 0 {
			return mpa.RTRRead
		}
	}
	return 0
}
