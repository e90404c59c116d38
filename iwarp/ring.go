package iwarp

import (
	"sync/atomic"

	"viaduct/internal/queue"
	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/rdmap"
)

// A pendingRead is a Read or Atomic of ours whose answer is not complete.
type pendingRead struct {
	w      *sendWQE // the request; nil for the ready message
	seq    uint64   // sequence number of w in the send queue
	msn    ddp.MSN  // MSN of the request
	atomic bool
	id     uint32 // identifier of an Atomic Request
	stag   uint32 // STag of the sink in the request
	to     uint64
	size   uint32
	got    uint32 // bytes of the response that are placed
}

// pendingReads holds all pending Reads in the order of the requests: the send role adds, the receive
// role removes. [RDMAP-5.2.2-6]
type pendingReads struct {
	queue.Ring[pendingRead]
	limit   atomic.Int32 // largest number of outstanding requests, ORD
	blocked atomic.Bool  // the send queue waits for a request to complete
}

// mayPass reports whether at most n Reads and Atomics are outstanding. If more are, the next
// completed Read or Atomic wakes the send role.
func (r *pendingReads) mayPass(n int) bool {
	if r.Len() <= n {
		return true
	}
	r.blocked.Store(true)
	return r.Len() <= n
}

// unblock reports whether the send queue waits for a request to complete, and ends the waiting.
func (r *pendingReads) unblock() bool { return r.blocked.Load() && r.blocked.Swap(false) }

// check checks a segment of n bytes of a Read Response. It returns our oldest request,
// whose answer the segment must continue, or nil and a fault. [DDP-4.2-7] [RDMAP-5.2.2-5]
// [RDMAP-5.2.2-7] [RDMAP-5.2.2-4] [RDMAP-7.2-2] [I-45] [I-46]
func (r *pendingReads) check(h ddp.Tagged, n int) (*pendingRead, ddp.Fault, rdmap.Fault) {
	p := r.Front()
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
	if h.Last != (uint64(p.got)+uint64(n) == uint64(p.size)) {
		return nil, ddp.OK, rdmap.Unspecified
	}
	return p, ddp.OK, rdmap.OK
}

// An inboundRead is a Read or Atomic of the peer, not yet fully answered.
type inboundRead struct {
	atomic bool
	n      uint8                                          // length of ulpdu
	ulpdu  [ddp.UntaggedLen + rdmap.AtomicRequestLen]byte // the request as received, and checked
}

// read returns the RDMAP header of a Read; op returns the header of an Atomic.
func (in *inboundRead) read() rdmap.ReadRequest {
	r, _, _ := rdmap.ParseReadRequest(in.ulpdu[ddp.UntaggedLen:])
	return r
}

func (in *inboundRead) op() rdmap.AtomicRequest {
	r, _, _ := rdmap.ParseAtomicRequest(in.ulpdu[ddp.UntaggedLen:])
	return r
}

// An inboundRing holds the peer's requests in the order of their delivery. The receive role adds a
// request. The send role answers the request, and removes the request when TCP has the last byte of
// the answer. Each stream has a separate ring. [RDMAP-5.2.1-8] [RDMAP-5.5-17] [RDMAP-8.1.2-6]
// [SEC-6.4.3.3-1] [SEC-A-3] [I-20]
type inboundRing struct {
	queue.Ring[inboundRead]
	limit   atomic.Int32 // largest number of unanswered requests of each kind, IRD
	begun   int32        // requests at the front that are being answered; for the send role
	reads   atomic.Int32 // unanswered requests of each kind
	atomics atomic.Int32
}

// maxLimit returns the largest limit for which the ring has room; atomics is true if the peer may
// send Atomics. The ring has room for as many requests again whose answers are being sent. [I-64]
func (r *inboundRing) maxLimit(atomics bool) int {
	if atomics {
		return r.Cap() / 4
	}
	return r.Cap() / 2
}

// initFor makes room for the given limit.
func (r *inboundRing) initFor(limit int, atomics bool) {
	n := 2 * limit
	if atomics {
		n *= 2
	}
	r.Init(n)
}

// has reports whether a slot is free for a request. busy is reads or atomics.
func (r *inboundRing) has(busy *atomic.Int32) bool {
	return busy.Load() < r.limit.Load() && r.Len() < r.Cap()
}

// add appends a request. Only the receive role calls add.
func (r *inboundRing) add(in inboundRead) {
	if in.atomic {
		r.atomics.Add(1)
	} else {
		r.reads.Add(1)
	}
	r.Push(in)
}

// start returns the next request to answer, or nil if there is none. Only the send role calls
// start.
func (r *inboundRing) start() *inboundRead {
	in := r.At(int(r.begun))
	if in != nil {
		r.begun++
	}
	return in
}

// answered frees the peer's slot for another request. The send role calls answered just before the
// last segment of the answer is sent, because the peer may receive the segment and send another
// request before the send call returns here.
func (r *inboundRing) answered(atomic bool) {
	if atomic {
		r.atomics.Add(-1)
	} else {
		r.reads.Add(-1)
	}
}

// free removes the n oldest requests after TCP has the answers. Only the send role calls free.
func (r *inboundRing) free(n int) {
	r.begun -= int32(n)
	for range n {
		r.Pop()
	}
}
