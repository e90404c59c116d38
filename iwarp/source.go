package iwarp

import (
	"viaduct/internal/regmem"
	"viaduct/iwarp/ddp"
	"viaduct/iwarp/mpa"
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

	// Lend begins and Return ends a time in which NextRecv may hand out memory
	// that somebody lends; see [QueuePair.PollLent]. A message in progress stays
	// where it is when that time ends; open tells Lend that there is one.
	Lend(open bool)
	Return()
	// Reclaim is told the ID of the message in progress when lent memory is
	// asked back; see [QueuePair.Reclaim]. It returns other memory for it, laid
	// out alike, to which what has come is moved; or nil to leave it where it is.
	Reclaim(id uint64) []SGE

	// Full reports that what comes next is better left alone until somebody
	// looks again. It is asked before each message while memory is lent. The
	// stream tells how much has come of what comes next, if that matters, which
	// takes a system call.
	Full(stream Pending) bool

	// Guess returns lent memory where the payload of the next message would go
	// if that is like the last one, and the length of the message's header
	// before it, at most 32 bytes; nothing if it can't tell. Whatever comes may
	// be written there.
	Guess() (header int, payload []byte)
}

// A Pending tells how many bytes have arrived on a stream that were not looked at
// yet, with the headers of all layers. It must not be kept.
type Pending interface{ Pending() int }

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
	got = q.fc.PollBetween(q.lend, q.giveBack)
	return got, q.leftover.Load()
}

// lend and giveBack are called in the receive role.
func (q *QueuePair) lend() {
	q.rx.lent = true
	q.leftover.Store(false)
	q.supply.Lend(q.rx.recv != nil)
}

func (q *QueuePair) giveBack() {
	q.rx.lent = false
	q.supply.Return()
}

// Reclaim takes back memory that was lent to the stream's RecvSource, if a
// message in progress is there: it is moved. It waits for whoever receives just
// now, but never for the peer.
func (q *QueuePair) Reclaim() { q.fc.WithReceiver(q.reclaim) }

func (q *QueuePair) reclaim() {
	r := &q.rx
	if r.recv == nil {
		return
	}
	to := q.supply.Reclaim(r.recv.id)
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
func (q *QueuePair) full(staged int) bool {
	r := &q.rx
	if !r.lent || r.recv != nil {
		return false
	}
	r.staged = staged
	return q.supply.Full((*engine)(q))
}

// Pending implements [Pending].
func (e *engine) Pending() int { return e.rx.staged + e.fc.Pending() }

// Guess implements [frameio.Guesser]: a message whose payload goes to lent memory
// will probably follow the one before.
func (e *engine) Guess() (header int, place []byte) {
	q := (*QueuePair)(e)
	r := &q.rx
	if !r.lent || r.recv != nil || r.dec.Markers || !r.first || r.long == nil || r.long.active || q.dead.Load() {
		return 0, nil
	}
	h, place := q.supply.Guess()
	if r.firstSize > 0 && h+len(place) > r.firstSize {
		place = place[:max(0, r.firstSize-h)]
	}
	if len(place) < longMin || h > maxGuessHeader {
		return 0, nil
	}
	r.place = place
	return mpa.LengthLen + ddp.UntaggedLen + h, place
}

const maxGuessHeader = 32

// Guessed implements [frameio.Guesser]. What was guessed is the length of the
// segment too.
func (e *engine) Guessed(header []byte, n int) (direct int, ok bool) {
	q := (*QueuePair)(e)
	at := q.rx.place
	q.rx.place = nil
	_, ulpdu, err := q.rx.dec.Need(header)
	if err != nil || mpa.LengthLen+ulpdu != len(header)+len(at) || q.beginLong(header) == 0 {
		return 0, false
	}
	l := q.rx.long
	for at = at[:n]; len(at) > 0; {
		iov := q.longPlaces(l.iov[:0], len(at))
		k := 0
		for _, b := range iov {
			if &b[0] != &at[0] {
				copy(b, at)
			}
			at = at[len(b):]
			k += len(b)
		}
		clear(iov)
		l.iov = iov[:0]
		q.longPlaced(k)
		if k == 0 { // its place is gone already
			q.failLong(nil)
			return 0, true
		}
	}
	return l.size - l.placed, true
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
