package iwarp

import (
	"fmt"
	"sync"
	"sync/atomic"

	"viaduct/internal/ulp"
	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/rdmap"
)

// receives holds the buffers for received messages: the stream's own queue, a shared queue, or a
// source of memory for arriving messages. Any goroutine may post; only the receive role takes.
type receives struct {
	*shared
	cq *CompletionQueue // gets the completions

	rq       recvQueue
	srq      *SharedReceiveQueue
	supply   ulp.Source[SendWR, RecvWR] // used instead of posted receives, or nil
	srqHeld  atomic.Int32               // buffers of srq whose completion was not polled
	flushed  atomic.Bool                // flushSource has run
	flushing sync.Mutex                 // held from taking a receive until its flushed completion is published
}

// post does the work of [QueuePair.PostRecv].
func (v *receives) post(wr *RecvWR) error {
	if v.srq != nil {
		return fmt.Errorf("%w: the stream has a shared receive queue", ErrInvalid)
	}
	if v.life.Load().ended() {
		return v.life.closedErr()
	}
	if v.life.peerEnd.has() {
		return ErrPeerClosed
	}
	w, err := newRecvWQE(wr, &v.mem)
	if err != nil {
		return err
	}
	if err := v.rq.post(w); err != nil {
		freeRecvWQE(w)
		return err
	}
	if v.life.peerEnd.has() || v.life.Load() == lifeFlushed {
		v.flush()
	}
	return nil
}

// next returns the receive for the next message, or nil if there is none. head is the arrived part
// of the message, size is the length of the first segment, and last means that no other segment
// follows.
func (v *receives) next(head []byte, size int, last bool) *recvWQE {
	switch {
	case v.supply != nil:
		return v.borrow(head, size, last)
	case v.srq != nil:
		return v.share()
	}
	w, _ := v.rq.take()
	return w
}

// share takes a receive of the shared queue. It returns nil if there is none, or if the stream
// already holds Config.SRQShare buffers of the shared queue.
func (v *receives) share() *recvWQE {
	if share := v.set.share; share > 0 && v.srqHeld.Load() >= share { // [SEC-6.4.3.1-1]
		return nil
	}
	w, ok := v.srq.take()
	if ok {
		v.srqHeld.Add(1)
		v.stats.srqTaken.Add(1)
	}
	return w
}

// borrow returns the receive for the next message, from the source. It returns nil if RecvDepth
// completions are not polled, or if the source has no receive or an invalid one.
func (v *receives) borrow(head []byte, size int, last bool) *recvWQE {
	if v.rq.used.Load() >= int64(v.rq.depth) {
		return nil
	}
	wr, ok := v.supply.NextRecv(head, size, last)
	if !ok {
		return nil
	}
	w, err := newRecvWQE(&wr, &v.mem)
	if err != nil {
		return nil
	}
	v.rq.used.Add(1)
	return w
}

// taken frees the slots of n receives whose completions a consumer has polled.
func (v *receives) taken(n int64) {
	if v.srq != nil {
		v.srq.q.used.Add(-n)
		v.srqHeld.Add(int32(-n))
	} else {
		v.rq.used.Add(-n)
	}
}

// flush completes the remaining receives with StatusFlushed, and calls the handler. The end of the
// stream and a PostRecv may call flush concurrently; completions still follow the order of posting.
// The caller must hold no role of frameio, because the handler may post.
func (v *receives) flush() {
	v.flushing.Lock()
	v.flushLocked()
	v.flushing.Unlock()
	v.cq.deliver()
}

func (v *receives) flushLocked() {
	v.flushSource()
	for {
		w, ok := v.rq.take()
		if !ok {
			return
		}
		c := Completion{ID: w.id, QP: v.qp, Op: OpRecv, Status: StatusFlushed}
		freeRecvWQE(w)
		v.cq.push(&c)
	}
}

// flushSource reports, once, that no more messages will come, by a completion like for a flushed
// receive. Without a source, flushSource does nothing.
func (v *receives) flushSource() {
	if v.supply != nil && !v.flushed.Swap(true) {
		v.rq.used.Add(1)
		v.cq.push(&Completion{QP: v.qp, Op: OpRecv, Status: StatusFlushed})
	}
}

// keeps returns the answer of [ulp.Source.Keep], or false without a source.
func (v *receives) keeps() bool { return v.supply != nil && v.supply.Keep() }

// An inbox holds the current message on queue 0, and completions of earlier messages. Only the
// receive role uses an inbox.
type inbox struct {
	recvs *receives

	op rdmap.Opcode // opcode of the current message
	// First header of the current message. The RsvdULP of later headers is not used. [DDP-4.3-4]
	// [I-47]
	head ddp.Untagged
	recv *recvWQE     // receive of the current message, or nil
	done []Completion // completions that publish has not published
}

// sg returns the memory of the current message.
func (b *inbox) sg() []SGE { return b.recv.sg[:b.recv.nsg] }

// size returns the length in bytes of the receive, or 0 if there is none.
func (b *inbox) size() uint64 {
	if b.recv == nil {
		return 0
	}
	return b.recv.length
}

// complete completes the current receive with status st and n bytes.
func (b *inbox) complete(st Status, n uint32) {
	w := b.recv
	b.recv = nil
	c := Completion{ID: w.id, QP: b.recvs.qp, Op: OpRecv, Status: st, Len: n}
	if st == StatusOK {
		c.Solicited = b.op.Solicited() // [RDMAP-5.3-6]
		c.STag, c.Invalidated = rdmap.InvalidateSTag(b.head)
	}
	freeRecvWQE(w)
	b.done = append(b.done, c)
}

// immediate adds the immediate data p to the completion of the last message.
func (b *inbox) immediate(p []byte) {
	c := &b.done[len(b.done)-1]
	c.HasImm = true
	copy(c.Imm[:], p)
}

// publish publishes the completions.
func (b *inbox) publish() {
	if len(b.done) > 0 {
		b.recvs.cq.pushAll(b.done)
		// Stale entries of the array refer only to this stream and keep nothing else alive.
		b.done = b.done[:0]
	}
}

// flush completes the current message as flushed, if there is one, and publishes the completions.
func (b *inbox) flush() {
	if b.recv != nil {
		b.complete(StatusFlushed, 0)
	}
	if len(b.done) > 0 {
		b.publish()
		b.done = nil
	}
}
