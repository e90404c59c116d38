package iwarp

import (
	"math/bits"
	"sync/atomic"

	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/rdmap"
)

// A pendingRead is a Read or Atomic of ours whose answer is not complete.
type pendingRead struct {
	w      *sendWQE // nil for the RTR
	seq    uint64   // of w in the send queue
	msn    ddp.MSN  // of the request
	atomic bool
	id     uint32 // of an Atomic Request
	stag   uint32 // sink, as the request named it
	to     uint64
	size   uint32
	got    uint32 // bytes of the response that are placed
}

// A readRing keeps pendingReads in the order of their requests. The send role
// adds, the receive role removes; neither waits for the other. [RDMAP-5.2.2-6]
type readRing struct {
	slots      []pendingRead // made when first needed, by the send role
	size       int
	head, tail atomic.Uint32
}

func powerOf2(n int) int { return 1 << bits.Len(uint(max(n, 1)-1)) }

func (r *readRing) init(n int) { r.size = powerOf2(n) }

func (r *readRing) len() int { return int(r.tail.Load() - r.head.Load()) }

// add returns the slot to fill; push makes it visible. [send role]
func (r *readRing) add() *pendingRead {
	if r.slots == nil {
		r.slots = make([]pendingRead, r.size)
	}
	return &r.slots[r.tail.Load()&uint32(len(r.slots)-1)]
}

func (r *readRing) push() { r.tail.Add(1) }

// first returns the oldest, nil if there is none. [receive role]
func (r *readRing) first() *pendingRead { return r.at(0) }

// at returns the one that is i younger than the oldest, nil if there is none.
// [receive role]
func (r *readRing) at(i int) *pendingRead {
	h := r.head.Load() + uint32(i)
	if int32(r.tail.Load()-h) <= 0 {
		return nil
	}
	return &r.slots[h&uint32(len(r.slots)-1)]
}

// pop removes the oldest. [receive role]
func (r *readRing) pop() {
	*r.first() = pendingRead{}
	r.head.Add(1)
}

// An inboundRead is a Read or Atomic of the peer that is not fully answered.
type inboundRead struct {
	atomic bool
	n      uint8                                          // length of ulpdu
	ulpdu  [ddp.UntaggedLen + rdmap.AtomicRequestLen]byte // as it came, checked
}

// read and op return the RDMAP header of each kind.
func (in *inboundRead) read() rdmap.ReadRequest {
	r, _, _ := rdmap.ParseReadRequest(in.ulpdu[ddp.UntaggedLen:])
	return r
}

func (in *inboundRead) op() rdmap.AtomicRequest {
	r, _, _ := rdmap.ParseAtomicRequest(in.ulpdu[ddp.UntaggedLen:])
	return r
}

// An inboundRing keeps the peer's requests in the order they were delivered.
// The receive role adds, the send role answers and, when TCP has taken the
// last byte of an answer, removes. Each stream has its own. [RDMAP-5.2.1-8]
// [RDMAP-5.5-17] [RDMAP-8.1.2-6] [SEC-6.4.3.3-1] [SEC-A-3] [I-20]
type inboundRing struct {
	slots      []inboundRead // made when first needed, by the receive role
	size       int
	head, tail atomic.Uint32
	next       uint32       // the first that is not answered; send role
	reads      atomic.Int32 // of each kind
	atomics    atomic.Int32
}

func (r *inboundRing) init(n int) { r.size = powerOf2(n) }

func (r *inboundRing) len() int { return int(r.tail.Load() - r.head.Load()) }

// add returns the slot to fill; push makes it visible. [receive role]
func (r *inboundRing) add() *inboundRead {
	if r.slots == nil {
		r.slots = make([]inboundRead, r.size)
	}
	return &r.slots[r.tail.Load()&uint32(len(r.slots)-1)]
}

func (r *inboundRing) push(atomic bool) {
	if atomic {
		r.atomics.Add(1)
	} else {
		r.reads.Add(1)
	}
	r.tail.Add(1)
}

// start returns the next to be answered, nil if there is none. [send role]
func (r *inboundRing) start() *inboundRead {
	if r.next == r.tail.Load() {
		return nil
	}
	r.next++
	return &r.slots[(r.next-1)&uint32(len(r.slots)-1)]
}

// answered gives the peer its place back: once the last segment is about to be
// sent, the peer may have it and ask for more before the send call returns here.
// [send role]
func (r *inboundRing) answered(atomic bool) {
	if atomic {
		r.atomics.Add(-1)
	} else {
		r.reads.Add(-1)
	}
}

// free removes the n oldest. [send role]
func (r *inboundRing) free(n int) { r.head.Add(uint32(n)) }
