package vi

import (
	"context"

	"viaduct/internal/attend"
)

// PostSend posts a descriptor to the send queue. It never blocks. On a VI
// that is not connected the descriptor completes at once as flushed.
//
// Errors in the descriptor show in its status. ErrOverrun: the queue already
// holds as many as it may; the VI goes to Error and d was not posted.
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

// PostSends posts descriptors in order and rings the doorbell once, which is faster than one by
// one. It stops at the first error and returns how many were posted.
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
// descriptor waits in the queue for one; in state Error it completes at once as flushed. As with an
// io.Reader, all of its memory may be used as scratch space, even if the message is shorter.
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

// flushUnconnected completes descriptors that must not wait for a connection. A post checks the
// connection after its descriptor is in the queue. The end of a connection removes it before it
// flushes the queue. So at least one of the two sees the other. The same holds for the end of the
// VI.
func (v *VI) flushUnconnected() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if ep := v.conn.Load(); ep != nil {
		// The VI was connected meanwhile, so this is an ordinary post.
		ep.link.SendPosted()
		ep.link.RecvPosted()
		return
	}
	v.send.flush(StatusFlushed)
	if v.State() == Error || v.closed.Load() {
		v.recv.flush(StatusFlushed)
	}
}

// overrun handles a post to a full queue. [VIA 5.3] [VIA-5.2-5] [VIA-8.3-22]
func (v *VI) overrun(d *Descriptor) {
	v.nic.async.raise(ErrorDescriptor{VI: v, OpCode: d.Control.Op(), Resource: ResourceVI, Code: ErrorVIOverrun})
	v.toError()
}

// ReportPostError reports that a posted descriptor is itself in memory that is misaligned, not
// registered or of another protection tag: it raises the asynchronous error Post Descriptor and
// moves the VI to Error. In Go descriptors need no registration. A C library whose descriptors are
// in registered memory checks them and calls this.
func (v *VI) ReportPostError(d *Descriptor) { // [VIA 5.3] [VIA-5.2-2] [VIA-5.3-2]
	v.nic.async.raise(ErrorDescriptor{VI: v, Descriptor: d, Resource: ResourceDescriptor, Code: ErrorPostDesc})
	v.toError()
}

// ReportCompletionError reports that the completion of a descriptor could not be written because
// its memory was unmapped: it raises the asynchronous error Completion Protection and moves the VI
// to Error. It is for a C library whose descriptors are in memory of the program. It must not be
// called from OnDone.
func (v *VI) ReportCompletionError(d *Descriptor) { // [VIA 5.2] [VIA-5.2-9]
	v.nic.async.raise(ErrorDescriptor{VI: v, Descriptor: d, OpCode: d.Control.Op(), Resource: ResourceDescriptor, Code: ErrorCompProt})
	v.toError()
}

// toError breaks the connection, or cancels the attempt at one; without either, an Idle VI goes to
// Error.
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
// Errors: ErrNotDone, ErrQueueEmpty, or with the descriptor a *StatusError.
func (v *VI) SendDone() (*Descriptor, error) { return v.send.done() } // [VIA-2.3-3] [VIA 6.4.4]

// RecvDone is SendDone for the receive queue.
func (v *VI) RecvDone() (*Descriptor, error) { return v.recv.done() }

// SendDoneN stores up to len(buf) completed descriptors of the send queue in buf, in order, and
// returns how many. It polls for arrivals only if none has completed. If n is 0, err is the error
// that SendDone would return. Otherwise err is nil, and each descriptor's Status holds its result.
func (v *VI) SendDoneN(buf []*Descriptor) (n int, err error) { return v.send.doneN(buf) }

// RecvDoneN is SendDoneN for the receive queue.
func (v *VI) RecvDoneN(buf []*Descriptor) (n int, err error) { return v.recv.doneN(buf) }

// SendWait is SendDone that waits until the head has completed. The error is ErrQueueEmpty at once
// for an empty queue, ErrTimeout after a deadline, and ErrResource for a queue that is attached to
// a completion queue.
func (v *VI) SendWait(ctx context.Context) (*Descriptor, error) { return v.send.wait(ctx) } // [VIA 6.4.4]

// RecvWait is SendWait for the receive queue.
func (v *VI) RecvWait(ctx context.Context) (*Descriptor, error) { return v.recv.wait(ctx) }

// SendNotify calls handler once, with the descriptor at the head of the send
// queue as soon as it has completed; it is dequeued then. Registrations are
// served in order. The handler runs in a goroutine of the NIC, one at a time;
// destroying the VI cancels it.
//
// Errors: ErrResource on a queue attached to a completion queue,
// ErrInvalidParameter.
func (v *VI) SendNotify(handler func(*Descriptor)) error { return v.send.addNotify(handler) } // [VIA 6.4.4]

// RecvNotify is SendNotify for the receive queue.
func (v *VI) RecvNotify(handler func(*Descriptor)) error { return v.recv.addNotify(handler) }

// Poll handles arrivals on the VI's connection, without blocking, and reports whether there were
// any. Done and Wait do it themselves. Poll is for consumers that watch memory for RDMA Writes.
func (v *VI) Poll() bool {
	if ep := v.conn.Load(); ep != nil {
		return ep.link.Poll()
	}
	return false
}

// progress drives the connection of a VI.
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

// Unpoll announces that the consumer will not poll for a while. Without it the next arrival is
// delayed by about a millisecond.
func (v *VI) Unpoll() {
	if ep := v.conn.Load(); ep != nil {
		ep.link.Unpoll()
	}
}
