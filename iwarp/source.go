package iwarp

import (
	"viaduct/internal/regmem"
)

// A RecvSource chooses the memory of each message when the message begins to
// come in, in place of receives that are posted ahead. So memory is bound only
// while it is in use, what was used last is used again first, and a consumer
// that waits can have bytes put where it wants them. What the messages are
// told by is the same: completions with the ID that was given.
//
// All methods are called in the receive role of the stream: one at a time, by
// whatever goroutine has the role. They must neither block nor call methods of
// the stream.
type RecvSource interface {
	// NextRecv returns the memory of the next message. head is what has come
	// of it so far, perhaps nothing; size is the length in bytes of its first
	// segment, and last says that there is no other. Without memory the stream
	// ends, as it does where no receive is posted.
	NextRecv(head []byte, size int, last bool) (wr RecvWR, ok bool)

	// Lend begins and Reclaim ends a time in which NextRecv may hand out
	// memory that somebody lends for so long; see [QueuePair.PollLent].
	Lend()
	// Reclaim is told the ID of the message that is in progress, if open is
	// set. It returns other memory for it, laid out alike, to which what has
	// come is moved; or nil to leave it where it is.
	Reclaim(id uint64, open bool) []SGE

	// Full reports that what comes next is better left alone until somebody
	// looks again. It is asked before each message while memory is lent.
	Full() bool
}

// PollLent looks at the connection without waiting, like the Poll of a
// completion queue, and lends memory to the stream's RecvSource meanwhile. got
// tells whether anything came, more that the source was full before all that
// had come was handled: then somebody has to poll again, who may be nobody but
// the caller.
func (q *QueuePair) PollLent() (got, more bool) {
	if !q.ready.Load() {
		return false, false
	}
	q.ring()
	got = q.fc.PollBetween(q.lend, q.reclaim)
	return got, q.leftover.Load()
}

// lend and reclaim are called in the receive role.
func (q *QueuePair) lend() {
	q.rx.lent = true
	q.leftover.Store(false)
	q.supply.Lend()
}

func (q *QueuePair) reclaim() {
	r := &q.rx
	r.lent = false
	if r.recv == nil {
		q.supply.Reclaim(0, false)
		return
	}
	to := q.supply.Reclaim(r.recv.id, true)
	if to == nil {
		return
	}
	n, _ := r.queues[0].Open()
	if l := r.long; l != nil && l.active && l.kind.IsSend() {
		n += uint32(l.placed)
	}
	off := uint64(0)
	walk(r.recv.sg[:r.recv.nsg], 0, uint64(n), func(s *SGE, from, k uint64) bool {
		if ref, out := s.pin(q, from, k, regmem.LocalWrite); out == regmem.OK {
			q.scatter(to, off, ref.B)
			ref.Release()
		}
		off += k
		return true
	})
	r.recv.reset()
	r.recv.nsg = copy(r.recv.sg[:], to)
}

// full tells whether Receive is to leave the rest for later.
func (q *QueuePair) full() bool {
	r := &q.rx
	return r.lent && r.recv == nil && q.supply.Full()
}

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

// flushSource tells that no message will come any more, by the completion that
// a posted receive would have.
func (q *QueuePair) flushSource() {
	if q.supply != nil && !q.flushed.Swap(true) {
		q.rq.used.Add(1)
		q.recvCQ.push(&Completion{QP: q, Op: OpRecv, Status: StatusFlushed})
	}
}
