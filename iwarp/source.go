package iwarp

import (
	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
)

// A RecvSource chooses the memory of each message when the message begins to arrive, so that no
// receives are posted in advance. Memory is bound only while in use, the last used memory is reused
// first, and a waiting consumer can receive bytes directly into a buffer. Messages are reported as
// usual, by completions with the given ID.
//
// All methods except Keep are called in the receive role of the stream: one at a time, by the
// goroutine with the role. The methods must neither block nor call methods of the stream.
//
// A consumer may lend memory for a time, for example the buffer of a waiting read, and take the
// memory back by [QueuePair.Reclaim].
type RecvSource interface {
	// NextRecv returns the memory of the next message. head is the arrived part of the message, and
	// may be empty. size is the length in bytes of the first segment, and last is true if the
	// message has no other segment. If ok is false, the stream ends, as without a posted receive.
	NextRecv(head []byte, size int, last bool) (wr RecvWR, ok bool)

	// Reclaim is called by [QueuePair.Reclaim] with the ID of the current message. It returns other
	// memory for the message, with the same layout, for moving the arrived bytes. It returns nil to
	// leave the message in place.
	Reclaim(id uint64) []SGE

	// Full reports whether the stream should not receive the next message before the consumer has
	// handled earlier ones. Full is called before each message. stream reports how much of the next
	// messages has arrived; the report may take a system call.
	Full(stream Pending) bool

	// Keep reports whether messages refused by Full stay unread for a consumer about to poll, for
	// at most a millisecond. It is called without a role, after the handler of the completion
	// queue.
	Keep() bool

	// Guess predicts the next messages, assuming that the next messages are like the last message.
	// It returns the zero value if no prediction is possible. Any arriving bytes may be written to
	// the memory named by the guess.
	Guess() RecvGuess
}

// A RecvGuess is the prediction of a RecvSource. Until the next call of Guess, NextRecv must give
// messages either the next part of Payload, or memory outside of Payload.
type RecvGuess struct {
	Open    int    // length of the current message in bytes; 0 if unknown
	Header  int    // length of the header of each following message, at most 32
	Size    int    // payload bytes of each following message; 0 if none is predicted
	Payload []byte // lent memory for the payloads, one after the other
	Partial int    // number of payloads that may be read into Payload before they are complete
}

// A Pending reports on the unread bytes of a stream. A Pending is valid only during the call of
// Full.
type Pending interface {
	// Has reports whether at least n bytes have arrived, including the headers of all layers.
	Has(n int) bool

	// IsSend reports whether the bytes begin with a Send, which needs a receive. The result is
	// provisional, because the checksum was not verified.
	IsSend() bool
}

// Reclaim makes the stream stop using the memory lent by the RecvSource; the RecvSource must not
// return the lent memory any more. A current message in the lent memory is moved to other memory.
// After Reclaim has returned, nothing reads into the lent memory. Reclaim waits for a goroutine
// that is receiving, but never for the peer.
func (q *QueuePair) Reclaim() { q.link.fc.WithReceiver(q.reclaim) }

func (q *QueuePair) reclaim() {
	r := &q.rx
	if q.life.Load().ended() || r.recv == nil {
		return
	}
	to := q.supply.Reclaim(r.recv.id)
	if to == nil {
		return
	}
	n, _ := r.queues[0].Open()
	if r.Open() && r.seg.op.IsSend() {
		n += uint32(r.Placed())
	}
	q.mem.move(to, r.recv.sg[:r.recv.nsg], uint64(n))
	r.recv.reset()
	r.recv.nsg = copy(r.recv.sg[:], to)
}

// full reports whether Receive should leave the next bytes unread. next holds the unread bytes;
// staged is the number of arrived bytes. full is false inside a message, and if no source is set.
func (q *QueuePair) full(next []byte, staged int) bool {
	r := &q.rx
	if q.supply == nil || r.recv != nil || !q.link.fc.Leaves() {
		return false
	}
	r.staged, r.next = staged, next
	full := q.supply.Full((*engine)(q))
	r.next = nil
	return full
}

// IsSend implements [Pending]. It returns false if the opcode has not arrived, and on streams with
// markers.
func (e *engine) IsSend() bool {
	p := e.rx.next
	if e.rx.dec.Markers || len(p) < mpa.LengthLen+2 || ddp.IsTagged(p[mpa.LengthLen]) {
		return false
	}
	_, op := rdmap.ParseControl(p[mpa.LengthLen+1])
	return op.IsSend()
}

// Has implements [Pending]. It asks the kernel only if too few bytes are staged.
func (e *engine) Has(n int) bool { return e.rx.staged >= n || e.rx.staged+e.link.fc.Pending() >= n }

// nextRecv returns the receive for the next message, from the source. It returns nil if RecvDepth
// completions are not polled, or if the source has no receive or an invalid one.
func (q *QueuePair) nextRecv(head []byte, size int, last bool) *recvWQE {
	if q.rq.used.Load() >= int64(q.rq.depth) {
		return nil
	}
	wr, ok := q.supply.NextRecv(head, size, last)
	if !ok {
		return nil
	}
	w, err := newRecvWQE(&wr, &q.mem)
	if err != nil {
		return nil
	}
	q.rq.used.Add(1)
	return w
}

// Deliver implements [frameio.Deliverer]: it calls the handlers of the completion queues. keep is
// the answer of RecvSource.Keep, or false without a source.
func (e *engine) Deliver() (keep bool) {
	q := (*QueuePair)(e)
	q.callHandlers()
	return q.supply != nil && q.supply.Keep()
}

// callHandlers calls the handlers of the completion queues. The caller has no role of frameio.
func (q *QueuePair) callHandlers() {
	q.sends.cq.deliver()
	if q.recvCQ != q.sends.cq {
		q.recvCQ.deliver()
	}
}

// flushSource reports, once, that no more messages will come, by a completion like for a flushed
// receive. Without a source, flushSource does nothing.
func (q *QueuePair) flushSource() {
	if q.supply != nil && !q.flushed.Swap(true) {
		q.rq.used.Add(1)
		q.recvCQ.push(&Completion{QP: q, Op: OpRecv, Status: StatusFlushed})
	}
}
