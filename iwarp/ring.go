package iwarp

import (
	"sync/atomic"

	"viaduct/internal/queue"
	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/rdmap"
)

// A pendingRead is a Read or Atomic of ours whose answer is not complete. reading.reads holds all
// pending Reads in the order of the requests: the send role adds, the receive role removes.
// [RDMAP-5.2.2-6]
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
	begun   int          // requests at the front that are being answered; for the send role
	reads   atomic.Int32 // unanswered requests of each kind
	atomics atomic.Int32
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
	in := r.At(r.begun)
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
	r.begun -= n
	for range n {
		r.Pop()
	}
}
