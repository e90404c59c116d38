package vi

import (
	"context"

	"viaduct/internal/attend"
)

// PostSend posts a descriptor to the send queue. It never blocks. If the VI is not connected, the
// descriptor completes at once as flushed.
//
// An error in the descriptor appears in its status. ErrOverrun reports a full queue: d was not
// posted, and the VI moves to Error.
func (v *VI) PostSend(d *Descriptor) error { // [VIA 6.4.4] [VIA 2.3]
	if err := v.send.prepare(d); err != nil {
		return err
	}
	if ep := v.conn.Load(); ep != nil && ep.direct != nil && ep.direct.SendOne(d) {
		return nil
	}
	if err := v.send.post(d); err != nil { // [VIA-1.3-1] [VIA-2.3-2]
		return err
	}
	v.sendDoorbell()
	return nil
}

// PostSends posts descriptors in order and rings the doorbell once, which is faster than posting
// one by one. PostSends stops at the first error and returns the number of posted descriptors.
func (v *VI) PostSends(ds []*Descriptor) (n int, err error) {
	if n, err = v.send.postAll(ds); n > 0 {
		v.sendDoorbell()
	}
	return n, err
}

func (v *VI) sendDoorbell() {
	if ep := v.conn.Load(); ep != nil {
		ep.link.SendPosted()
		return
	}
	v.flushUnconnected() // [VIA-2.2-11]
}

// PostRecv posts a descriptor to the receive queue. It never blocks. Without a connection the
// descriptor waits in the queue for a connection; in state Error the descriptor completes at once
// as flushed. The engine may use all of the descriptor's memory as scratch space, even if the
// message is shorter, like an io.Reader.
func (v *VI) PostRecv(d *Descriptor) error { // [VIA 6.4.4] [VIA 2.3]
	if err := v.recv.prepare(d); err != nil {
		return err
	}
	if err := v.recv.post(d); err != nil {
		return err
	}
	v.recvDoorbell()
	return nil
}

// PostRecvs is PostSends for the receive queue.
func (v *VI) PostRecvs(ds []*Descriptor) (n int, err error) {
	if n, err = v.recv.postAll(ds); n > 0 {
		v.recvDoorbell()
	}
	return n, err
}

func (v *VI) recvDoorbell() {
	if ep := v.conn.Load(); ep != nil {
		ep.link.RecvPosted()
		return
	}
	if v.State() == Error || v.closed.Load() { // [VIA-2.3-1] [VIA-2.2-11]
		v.flushUnconnected()
	}
}

// flushUnconnected flushes the queue if the VI is not connected, so that no descriptor waits there.
// It closes a race: a post first queues the descriptor and then checks the connection, while the
// end of a connection first removes the connection and then flushes the queue. So at least one of
// the two flushes the descriptor. The end of the VI works in the same order.
func (v *VI) flushUnconnected() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if ep := v.conn.Load(); ep != nil {
		// The VI was connected in between, so the post is an ordinary post.
		ep.link.SendPosted()
		ep.link.RecvPosted()
		return
	}
	v.send.flush(StatusFlushed)
	if v.State() == Error || v.closed.Load() {
		v.recv.flush(StatusFlushed)
	}
}

// overrun handles a post of d to a full queue. It raises an asynchronous error and moves the VI to
// Error. [VIA 5.3] [VIA-5.2-5] [VIA-8.3-22]
func (v *VI) overrun(d *Descriptor) {
	v.nic.async.raise(ErrorDescriptor{VI: v, OpCode: d.Control.Op(), Resource: ResourceVI, Code: ErrorVIOverrun})
	v.toError()
}

// ReportPostError reports that the memory of a posted descriptor itself is misaligned, not
// registered or of another protection tag. The NIC then raises the asynchronous error Post
// Descriptor and moves the VI to Error. Go descriptors need no registration; a C library whose
// descriptors are in registered memory makes these checks and calls ReportPostError.
func (v *VI) ReportPostError(d *Descriptor) { // [VIA 5.3] [VIA-5.2-2] [VIA-5.3-2]
	v.nic.async.raise(ErrorDescriptor{VI: v, Descriptor: d, Resource: ResourceDescriptor, Code: ErrorPostDesc})
	v.toError()
}

// ReportCompletionError reports a completion that could not be written because the memory of the
// descriptor was unmapped. The NIC then raises the asynchronous error Completion Protection and
// moves the VI to Error. A C library whose descriptors are in memory of the program calls
// ReportCompletionError, but never from OnDone.
func (v *VI) ReportCompletionError(d *Descriptor) { // [VIA 5.2] [VIA-5.2-9]
	v.nic.async.raise(ErrorDescriptor{VI: v, Descriptor: d, OpCode: d.Control.Op(),
		Resource: ResourceDescriptor, Code: ErrorCompProt})
	v.toError()
}

// toError moves the VI to Error. It breaks the connection or cancels the connection attempt, if
// any. In state Error it does nothing.
func (v *VI) toError() {
	v.mu.Lock()
	if ep := v.conn.Load(); ep != nil {
		v.mu.Unlock()
		ep.Break(false)
		return
	}
	defer v.mu.Unlock()
	if a := v.attempt; a != nil {
		v.attempt = nil
		a.cancel(ErrInvalidState)
	}
	if v.State() != Error {
		v.orderly = false
		v.setStateLocked(Error)
		v.send.flush(StatusFlushed)
		v.recv.flush(StatusFlushed)
	}
}

// SendDone returns the descriptor at the head of the send queue if it has completed. It never
// blocks, not even while another goroutine waits.
//
// Errors: ErrNotDone; ErrQueueEmpty; a *StatusError, together with the descriptor, if the
// descriptor failed.
func (v *VI) SendDone() (*Descriptor, error) { return v.send.done() } // [VIA-2.3-3] [VIA 6.4.4]

// RecvDone is SendDone for the receive queue.
func (v *VI) RecvDone() (*Descriptor, error) { return v.recv.done() }

// SendDoneN stores up to len(buf) completed descriptors of the send queue in buf, in order, and
// returns their number. It polls for arrivals only if no descriptor has completed. If n is 0, err
// is the error SendDone would return. Otherwise err is nil, and each descriptor's Status holds its
// result.
func (v *VI) SendDoneN(buf []*Descriptor) (n int, err error) { return v.send.doneN(buf) }

// RecvDoneN is SendDoneN for the receive queue.
func (v *VI) RecvDoneN(buf []*Descriptor) (n int, err error) { return v.recv.doneN(buf) }

// SendWait is SendDone, but waits until the descriptor at the head has completed. It returns
// ErrQueueEmpty at once for an empty queue, ErrTimeout after a deadline, and ErrResource for a
// queue attached to a completion queue.
func (v *VI) SendWait(ctx context.Context) (*Descriptor, error) { return v.send.wait(ctx) } // [VIA 6.4.4]

// RecvWait is SendWait for the receive queue.
func (v *VI) RecvWait(ctx context.Context) (*Descriptor, error) { return v.recv.wait(ctx) }

// SendNotify calls handler once, with the descriptor at the head of the send queue, when the
// descriptor has completed. The descriptor is dequeued then. Registrations are served in order.
// Handlers run in sequence in a goroutine of the NIC. Destroying the VI cancels the registration.
//
// Errors: ErrResource on a queue attached to a completion queue, ErrInvalidParameter.
func (v *VI) SendNotify(handler func(*Descriptor)) error { return v.send.addNotify(handler) } // [VIA 6.4.4]

// RecvNotify is SendNotify for the receive queue.
func (v *VI) RecvNotify(handler func(*Descriptor)) error { return v.recv.addNotify(handler) }

// Poll handles arrivals on the VI's connection, without blocking, and reports whether there were
// any. Without a connection it returns false. Done and Wait poll themselves. Poll is for consumers
// watching memory for RDMA Writes.
func (v *VI) Poll() bool {
	if ep := v.conn.Load(); ep != nil {
		return ep.link.Poll()
	}
	return false
}

// progress is a VI as an attend.SourceSleeper: a blocked consumer polls it and sleeps at it.
type progress VI

func (p *progress) Poll() bool { return (*VI)(p).Poll() }
func (p *progress) Unpoll()    { (*VI)(p).Unpoll() }

// Expects implements attend.SourceSleeper.
func (p *progress) Expects() bool {
	l := p.dozer()
	return l != nil && l.Expects()
}

// Near implements attend.SourceSleeper.
func (p *progress) Near() bool {
	l := p.dozer()
	return l != nil && l.Near()
}

// SleepAt implements attend.SourceSleeper.
func (p *progress) SleepAt(s *attend.Sleeper) bool {
	l := p.dozer()
	return l != nil && l.SleepAt(s)
}

func (p *progress) dozer() dozer {
	if ep := p.conn.Load(); ep != nil {
		l, _ := ep.link.(dozer)
		return l
	}
	return nil
}

// Unpoll announces a pause in the consumer's polling. Without Unpoll the next arrival is delayed by
// about a millisecond.
func (v *VI) Unpoll() {
	if ep := v.conn.Load(); ep != nil {
		ep.link.Unpoll()
	}
}
