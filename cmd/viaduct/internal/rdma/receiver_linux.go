//go:build linux && (amd64 || arm64)

package rdma

import (
	"sync"
	"time"

	"viaduct/cmd/viaduct/internal/rdma/abi"
	"viaduct/internal/ulp"
	"viaduct/iwarp"
)

// A receiver assigns receive entries to arriving messages. An entry is taken when the message
// begins, from the ring of the queue pair or from a shared ring.
type receiver struct {
	q *queuePair

	mu   sync.Mutex
	ring recvRing       // guarded by mu; without memory if the queue is shared
	bad  abi.Completion // guarded by mu; for an entry that ended the stream
	has  bool           // guarded by mu; bad is set
	ids  []uint64       // guarded by mu; IDs of the entries that were taken and have not completed
	seq  uint64         // guarded by mu; number of the last completed entry; ids[0] has the next
	sg   [abi.MaxSGE]iwarp.SGE
	gone bool // guarded by mu; stop was called

	ahead     [abi.RQELen]byte // guarded by mu; an entry taken in advance for the next message
	hasAhead  bool             // guarded by mu
	waits     bool             // guarded by mu; a message waits at the stream for an entry
	since     time.Time        // guarded by mu; start of the wait
	impatient bool             // guarded by mu; messages do not wait any more: without an entry the stream ends
	messages  int              // guarded by mu; number of messages that came over a link
}

var _ ulp.Source[iwarp.SendWR, iwarp.RecvWR] = (*receiver)(nil)

// SetStream implements [ulp.Source]. A queue pair needs nothing that the stream does not export.
func (*receiver) SetStream(ulp.Stream[iwarp.SendWR]) {}

// NextRecv implements [ulp.Source].
func (r *receiver) NextRecv([]byte, int, bool) (wr iwarp.RecvWR, ok bool) {
	r.mu.Lock()
	if r.gone {
		r.mu.Unlock()
		// The queue pair was destroyed. As with the kernel's siw, the connection simply ends: a
		// Terminate would blame an innocent peer.
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
	// Numbers start at 1, because the stream itself uses 0 at the end.
	wr.ID = r.seq + uint64(len(r.ids))
	return wr, true
}

// completed returns the program's ID of the taken entry with number n. ok is false if no entry with
// the number waits for completion. Entries complete in order.
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

// takeLocked takes the next entry. ok is false if there is none; valid is false for an invalid
// entry.
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

// peek reads the entry for the next message, but does not take the entry. there is false if there
// is none; valid is false for an invalid entry.
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

// consume takes the entry read by peek, once the message is in place.
func (r *receiver) consume() {
	r.mu.Lock()
	r.hasAhead = false
	r.messages++
	r.mu.Unlock()
}

// linked returns how many messages came over a link.
func (r *receiver) linked() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.messages
}

// flush completes the entry that ended the stream, and the entries of the queue pair's own ring.
// The entries of a shared ring stay for other queue pairs.
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
	for range r.ring.n + 1 { // one more, for the entry that was taken in advance
		if _, ok := r.takeLocked(&e); !ok {
			return
		}
		r.q.rcq.push(abi.Completion{ID: e.ID, Op: abi.WROpReceive, Status: abi.WCFlush, QP: r.q.num})
	}
}

// stop ends the use of the ring, and frees the ring unless shared. A second call does nothing.
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

// depth returns how many messages may have arrived whose completions were not reported: a message
// for each entry, and another for the entry taken in advance.
func (r *receiver) depth() int {
	if r.q.srq != nil {
		return int(r.q.srq.ring.n) + 1
	}
	return int(r.ring.n) + 1
}

// notReadyFor bounds how long a message waits for a receive. Tests change it.
var notReadyFor = 2 * time.Second

// Full implements [ulp.Source]. A message without a posted receive stays at the stream for a
// while. iWARP has no "receiver not ready", so the stream could end at once. But programs written
// for networks with "receiver not ready", for example InfiniBand, may post their receives late.
// Until then, TCP slows down their peer.
func (r *receiver) Full(next ulp.Pending) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waits = false
	if r.gone || r.has || r.hasAhead || r.impatient || !next.IsSend() || r.readyLocked() {
		r.since = time.Time{}
		return false
	}
	if r.since.IsZero() {
		r.since = time.Now()
	}
	r.waits = time.Since(r.since) < notReadyFor
	return r.waits
}

// readyLocked reports whether there is an entry for the next message. An entry of a shared queue is
// taken at once, before another queue pair takes the entry.
func (r *receiver) readyLocked() bool {
	if r.q.srq == nil {
		return r.ring.valid()
	}
	r.hasAhead = r.q.srq.take(&r.ahead)
	return r.hasAhead
}

// Keep implements [ulp.Source]. If Keep returns true, the refused message stays unread, and
// the stream calls Full again within a millisecond.
func (r *receiver) Keep() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.waits
}

// hurry makes messages without a receive end the stream from now on.
func (r *receiver) hurry() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.impatient = true
}

// Reclaim implements [ulp.Source]. It returns nothing, because NextRecv lends no memory in advance:
// the memory belongs to another process.
func (*receiver) Reclaim(uint64) (wr iwarp.RecvWR, ok bool) { return wr, false }

// Guess implements [ulp.Source].
func (*receiver) Guess() (g ulp.Guess) { return g }
