package iwarp

import (
	"viaduct/internal/regmem"
	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
)

// A RecvSource chooses the memory of each message when the message begins to arrive, instead of
// receives that are posted ahead. Memory is bound only while it is in use, the last used memory is
// reused first, and a waiting consumer can receive bytes where it wants them. Messages are reported
// as usual: by completions with the given ID.
//
// All methods except Keep are called in the receive role of the stream: one at a time, by the
// goroutine that has the role. They must neither block nor call methods of the stream.
//
// A consumer may lend memory for a time, for example that of a waiting read, and take it back by
// [QueuePair.Reclaim].
type RecvSource interface {
	// NextRecv returns the memory of the next message. head is what has come
	// of it so far, perhaps nothing; size is the length in bytes of its first
	// segment, and last says that there is no other. Without memory the stream
	// ends, as it does where no receive is posted.
	NextRecv(head []byte, size int, last bool) (wr RecvWR, ok bool)

	// Reclaim is told the ID of the message in progress when lent memory is
	// asked back; see [QueuePair.Reclaim]. It returns other memory for it, laid
	// out alike, to which what has come is moved; or nil to leave it where it is.
	Reclaim(id uint64) []SGE

	// Full reports that what comes next is better left alone until the consumer
	// has dealt with what came before. It is asked before each message. stream tells
	// how much has come of what comes next, which may take a system call.
	Full(stream Pending) bool

	// Keep reports, after the handler of the completion queue was called, whether
	// what was left alone stays so for a consumer that is about to poll: for a
	// millisecond at most. It is called without a role.
	Keep() bool

	// Guess tells what the next messages will be if they are like the last one;
	// the zero value if it can't tell. Whatever comes may be written there.
	Guess() RecvGuess
}

// A RecvGuess is what a RecvSource expects to come. Until it is asked again,
// NextRecv gives messages memory that is either the next part of Payload or no part
// of it.
type RecvGuess struct {
	Open    int    // length of the message in progress, 0 if that is not known
	Header  int    // length of the header of each that follows, at most 32
	Size    int    // of the payload of each
	Payload []byte // lent memory where their payloads go, one behind the other
	Partial int    // how many of them may be put there before they have come whole
}

// A Pending reports how many unread bytes have arrived on a stream. It must not be kept.
type Pending interface {
	// Has reports whether that is n bytes, with the headers of all layers.
	Has(n int) bool

	// IsSend reports whether it begins with a Send, which takes a receive; as far as
	// that can be told before its checksum was looked at.
	IsSend() bool
}

// Reclaim ends the use of memory that was lent to the stream's RecvSource, which no longer returns
// it. A message in progress there is moved, and nothing reads into the memory any more. Reclaim
// waits for a goroutine that is receiving, but never for the peer.
func (q *QueuePair) Reclaim() { q.fc.WithReceiver(q.reclaim) }

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
	q.move(to, r.recv.sg[:r.recv.nsg], uint64(n))
	r.recv.reset()
	r.recv.nsg = copy(r.recv.sg[:], to)
}

// move copies the first n bytes of a list to another, as far as both are there still.
func (q *QueuePair) move(to, from []SGE, n uint64) {
	for off := uint64(0); off < n; {
		src, out := q.pieceOf(from, off, n-off)
		if out != regmem.OK {
			return
		}
		dst, out := q.pieceOf(to, off, uint64(src.Len()))
		k := dst.Len()
		if out == regmem.OK {
			dst.CopyFrom(src.B()[:k])
			dst.Release()
		}
		src.Release()
		if out != regmem.OK {
			return
		}
		off += uint64(k)
	}
}

// full reports whether Receive should leave the rest for later. next are the next bytes, of which
// staged have arrived.
func (q *QueuePair) full(next []byte, staged int) bool {
	r := &q.rx
	if q.supply == nil || r.recv != nil || !q.fc.Leaves() {
		return false
	}
	r.staged, r.next = staged, next
	full := q.supply.Full((*engine)(q))
	r.next = nil
	return full
}

// IsSend implements [Pending].
func (e *engine) IsSend() bool {
	p := e.rx.next
	if e.rx.dec.Markers || len(p) < mpa.LengthLen+2 || ddp.IsTagged(p[mpa.LengthLen]) {
		return false
	}
	_, op := rdmap.ParseControl(p[mpa.LengthLen+1])
	return op.IsSend()
}

// Has implements [Pending].
func (e *engine) Has(n int) bool { return e.rx.staged >= n || e.rx.staged+e.fc.Pending() >= n }

// nextRecv asks the source.
func (q *QueuePair) nextRecv(head []byte, size int, last bool) *recvWQE {
	if q.rq.used.Load() >= int64(q.rq.depth) {
		return nil
	}
	wr, ok := q.supply.NextRecv(head, size, last)
	if !ok {
		return nil
	}
	w, err := newRecvWQE(&wr, q)
	if err != nil {
		return nil
	}
	q.rq.used.Add(1)
	return w
}

// Deliver implements [frameio.Deliverer].
func (e *engine) Deliver() (keep bool) {
	q := (*QueuePair)(e)
	q.tell()
	return q.supply != nil && q.supply.Keep()
}

// tell calls the handlers of the completion queues. It must be called without a role.
func (q *QueuePair) tell() {
	q.sendCQ.deliver()
	if q.recvCQ != q.sendCQ {
		q.recvCQ.deliver()
	}
}

// flushSource reports that no message will come any more, by the completion that a posted receive
// would have.
func (q *QueuePair) flushSource() {
	if q.supply != nil && !q.flushed.Swap(true) {
		q.rq.used.Add(1)
		q.recvCQ.push(&Completion{QP: q, Op: OpRecv, Status: StatusFlushed})
	}
}
