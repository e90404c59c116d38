package vitcp

import (
	"errors"
	"fmt"

	"viaduct/internal/queue"
	"viaduct/internal/wire/vitcpwire"
	"viaduct/vi"
)

// maxAsked is the maximum number of outstanding RDMA Reads in one direction, whatever window the
// peer grants. The peer's number must not decide how much memory the local side uses.
const maxAsked = 256

// A readQueue holds the RDMA Reads of a direction without a complete response, oldest first. Of the
// Reads of this side, the send role pushes and the receive role pops. Of the peer's Reads, the
// receive role pushes and the send role pops. [VIT-2.2.2.2.6-2] [VIT-2.2.2.2.6-3] [V-26]
type readQueue[T any] struct {
	queue.Ring[T]
	limit uint32 // maximum number of outstanding Reads; fixed at set-up
}

func (q *readQueue[T]) init(limit uint32) {
	q.limit = limit
	q.Init(int(limit))
}

// full reports whether no further Read may be outstanding. [V-27]
func (q *readQueue[T]) full() bool { return q.Len() >= int(q.limit) }

// A readOut is a local RDMA Read without a complete response.
type readOut struct {
	d      *vi.Descriptor
	seq    uint64
	number vitcpwire.Number
}

// A readJob is an unanswered RDMA Read of the peer. A refused Read also waits for its turn, so that
// earlier Reads are answered first.
type readJob struct {
	r       vitcpwire.RDMA
	number  vitcpwire.Number
	refused bool
}

// beginReadRequest queues an RDMA Read of the peer for the send role. A Read of memory that the
// peer may not read, or beyond the MTU, is queued as refused; see readJob. [V-26] [V-42]
func (x *receiver) beginReadRequest(bool) error {
	if x.h.Flags&vitcpwire.EndOfMessage == 0 || x.payload != 0 { // [V-09]
		return framingf("RDMA Read Request %d of more than one segment, or with payload", uint32(x.h.Number))
	}
	if x.served.full() {
		return framingf("RDMA Read Request %d beyond the window of %d", uint32(x.h.Number), x.served.limit)
	}
	r := x.r
	job := readJob{r: r, number: x.h.Number}
	if r.Length > x.terms.mtu ||
		r.Length > 0 && !x.ep.CheckTarget(vi.MemHandle(r.Handle), r.Address, uint64(r.Length), false) {
		x.ep.AsyncError(vi.ErrorRDMARProt, vi.OpRDMARead) // [VIA-4.6-14] [VIA-5.2-8]
		// Earlier Reads are answered before the refused Read. The send role ends the connection
		// when it reaches the refused Read.
		job.refused = true
		x.deaf = true
	}
	x.served.Push(job)
	x.kick = true
	return nil
}

func (x *receiver) endReadRequest(bool) error {
	if !x.deaf {
		x.received(0)
	}
	return nil
}

func (x *receiver) beginResponse(bool) error {
	if n := x.reads.Front().d.Length; uint64(x.h.Offset)+uint64(x.payload) > uint64(n) {
		return framingf("RDMA Read Response %d has more than the %d bytes asked for", uint32(x.h.Number), n)
	}
	return nil
}

func (x *receiver) responseTarget(at uint32, n int) vi.Memory {
	ref, bad := x.scatter(x.reads.Front().d, at, n)
	if bad == 0 && ref.Len() == 0 {
		bad = vi.StatusFormatError // the program has changed the descriptor while it was posted
	}
	if bad != 0 { // [VIA-4.6-15]
		x.failRead(bad)
	}
	return ref
}

func (x *receiver) failResponse() { x.failRead(vi.StatusProtectionError) }

func (x *receiver) endResponse(void bool) error {
	if void { // [V-30]
		x.failRead(vi.StatusRDMAProtection)
		return nil
	}
	if n := x.reads.Front().d.Length; x.length() != n {
		return framingf("RDMA Read Response %d ends after %d of %d bytes", uint32(x.h.Number), x.length(), n)
	}
	x.endRead()
	return nil
}

// endRead completes the oldest RDMA Read. All bytes are in place.
func (x *receiver) endRead() {
	r := *x.reads.Front()
	x.reads.Pop()
	x.fresh = true
	if x.ep.FinishSend(r.d, r.seq, 0) { // [VIA-4.5-5]
		x.life.die(errors.New("vitcp: a send descriptor is in error"), nil, nil)
		return
	}
	if x.flow.blocked.Load() || x.ep.Fenced() {
		x.wake()
	}
}

// failRead completes the oldest RDMA Read with an error, and thereby breaks the connection.
func (x *receiver) failRead(bad vi.Status) {
	r := *x.reads.Front()
	x.reads.Pop()
	x.ep.FinishSend(r.d, r.seq, bad)
	x.life.die(fmt.Errorf("vitcp: RDMA Read %d: %w", uint32(r.number), (bad|vi.StatusDone|vi.StatusOpRDMARead).Err()),
		nil, nil)
}
