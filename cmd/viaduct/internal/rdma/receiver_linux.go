//go:build linux && (amd64 || arm64)

package rdma

import (
	"sync"
	"time"

	"viaduct/cmd/viaduct/internal/rdma/abi"
	"viaduct/iwarp"
)

// A receiver gives arriving messages the memory of receive entries, which are
// taken when the message begins, from the ring of the queue pair or a shared one.
type receiver struct {
	q *queuePair

	mu   sync.Mutex
	ring recvRing       // guarded by mu; without memory if the queue is shared
	bad  abi.Completion // guarded by mu; of an entry that ended the stream
	has  bool           // guarded by mu; bad is set
	ids  []uint64       // guarded by mu; of entries that were taken and have not completed
	seq  uint64         // guarded by mu; number of ids[0], as the stream is told it
	sg   [abi.MaxSGE]iwarp.SGE
	gone bool // guarded by mu

	ahead     [abi.RQELen]byte // guarded by mu; an entry that was taken for the message that is about to begin
	hasAhead  bool             // guarded by mu
	waits     bool             // guarded by mu; a message is left at the stream until there is an entry
	since     time.Time        // guarded by mu; of the wait
	impatient bool             // guarded by mu; nothing is left any more: the stream is to end
	messages  int              // guarded by mu; that came by a link
}

var _ iwarp.RecvSource = (*receiver)(nil)

// NextRecv implements [iwarp.RecvSource].
func (r *receiver) NextRecv([]byte, int, bool) (wr iwarp.RecvWR, ok bool) {
	r.mu.Lock()
	if r.gone {
		r.mu.Unlock()
		// The queue pair was destroyed. As with the kernel's siw, the connection just ends: a Terminate
		// would blame a peer that has done nothing wrong.
		r.q.abort()
		return wr, false
	}
	defer r.mu.Unlock()
	var e abi.RecvEntry
	valid, ok := r.takeLocked(&e)
	if !ok {
		return wr, false
	}
	status := abi.WCLocQPOp
	if valid {
		wr.SG, status = r.q.gather(r.sg[:0], e.SGE[:e.NumSGE], abi.AccessLocalWrite)
	}
	if status != abi.WCSuccess {
		r.bad, r.has = abi.Completion{ID: e.ID, Op: abi.WROpReceive, Status: status, QP: r.q.num}, true
		return wr, false
	}
	r.ids = append(r.ids, e.ID)
	// From 1 on: 0 is what the stream itself says at its end.
	wr.ID = r.seq + uint64(len(r.ids))
	return wr, true
}

// completed returns the program's ID of an entry that was taken. They complete in order.
func (r *receiver) completed(n uint64) (id uint64, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n <= r.seq || n > r.seq+uint64(len(r.ids)) {
		return 0, false
	}
	k := n - r.seq
	id = r.ids[k-1]
	r.ids = r.ids[k:]
	r.seq = n
	return id, true
}

// takeLocked takes the next entry; valid is false if it can't be one.
func (r *receiver) takeLocked(e *abi.RecvEntry) (valid, ok bool) {
	if r.gone || r.has {
		return false, false
	}
	var raw [abi.RQELen]byte
	switch {
	case r.hasAhead:
		raw, r.hasAhead, ok = r.ahead, false, true
	case r.q.srq != nil:
		ok = r.q.srq.take(&raw)
	default:
		ok = r.ring.take(&raw)
	}
	return ok && abi.ParseRecv(&raw, e), ok
}

// peek shows the entry of the next message without taking it; valid is false if it can't be one.
func (r *receiver) peek(e *abi.RecvEntry) (there, valid bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone || r.has {
		return false, false
	}
	switch {
	case r.hasAhead:
	case r.q.srq != nil:
		r.hasAhead = r.q.srq.take(&r.ahead)
	default:
		r.hasAhead = r.ring.take(&r.ahead)
	}
	return r.hasAhead, r.hasAhead && abi.ParseRecv(&r.ahead, e)
}

// consume takes the entry that peek has shown: its message is there.
func (r *receiver) consume() {
	r.mu.Lock()
	r.hasAhead = false
	r.messages++
	r.mu.Unlock()
}

// linked is how many messages came by a link.
func (r *receiver) linked() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.messages
}

// flush completes the entry that ended the stream, and those of the queue pair's own
// ring. Those of a shared one serve others.
func (r *receiver) flush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone {
		return
	}
	if r.has {
		r.q.rcq.push(r.bad)
		r.has = false
	}
	var e abi.RecvEntry
	if r.q.srq != nil {
		if r.hasAhead {
			r.takeLocked(&e)
			r.q.rcq.push(abi.Completion{ID: e.ID, Op: abi.WROpReceive, Status: abi.WCFlush, QP: r.q.num})
		}
		return
	}
	for range r.ring.n + 1 { // and the one that was taken ahead
		if _, ok := r.takeLocked(&e); !ok {
			return
		}
		r.q.rcq.push(abi.Completion{ID: e.ID, Op: abi.WROpReceive, Status: abi.WCFlush, QP: r.q.num})
	}
}

// stop ends the use of the ring.
func (r *receiver) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone {
		return
	}
	r.gone = true
	if r.q.srq == nil {
		r.q.x.arena.drop(r.ring.mem, r.ring.key)
	}
}

// depth is how many messages may be there whose completions were not passed on: one
// for each entry.
func (r *receiver) depth() int {
	if r.q.srq != nil {
		return int(r.q.srq.ring.n) + 1
	}
	return int(r.ring.n) + 1
}

// notReadyFor bounds how long a message waits for a receive.
const notReadyFor = 2 * time.Second

// Full implements [iwarp.RecvSource]: a message for which the program has posted no
// receive yet stays at the stream for a while. iWARP has no "receiver not ready", and the
// end of the stream would be right; but a program that was written for networks which have
// it posts its receives when it gets round to it, and TCP holds its peer up until then.
func (r *receiver) Full(stream iwarp.Pending) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waits = false
	if r.gone || r.has || r.hasAhead || r.impatient || !stream.IsSend() || r.readyLocked() {
		r.since = time.Time{}
		return false
	}
	if r.since.IsZero() {
		r.since = time.Now()
	}
	r.waits = time.Since(r.since) < notReadyFor
	return r.waits
}

// readyLocked reports whether there is an entry for the next message. Of a shared queue
// it is taken at once, before another queue pair does.
func (r *receiver) readyLocked() bool {
	if r.q.srq == nil {
		return r.ring.valid()
	}
	r.hasAhead = r.q.srq.take(&r.ahead)
	return r.hasAhead
}

// Keep implements [iwarp.RecvSource]: the stream is looked at again in a millisecond.
func (r *receiver) Keep() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.waits
}

// hurry lets messages for which there is no receive end the stream from now on.
func (r *receiver) hurry() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.impatient = true
}

// Nothing is lent and nothing guessed: the memory is another process's.
func (*receiver) Reclaim(uint64) []iwarp.SGE { return nil }
func (*receiver) Guess() (g iwarp.RecvGuess) { return g }
