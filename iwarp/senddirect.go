package iwarp

import (
	"sync/atomic"

	"viaduct/internal/regmem"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
)

// A directSend is a request that goes past the send queue: a Send or Write of one
// short FPDU that finds the queue empty, with the completions of all that was in it
// published. Most of what such a request costs would be its way through the queue. There
// is one at a time, until TCP, or the peer through shared memory, has all of it.
type directSend struct {
	// state is the number of the request, shifted, and what became of it. The send
	// role begins one; whatever takes it out of the pending ones completes it.
	state atomic.Uint64

	// These are written before state, by the send role.
	id uint64
	op Op
}

const (
	directSent       = iota // complete; so is what there never was
	directUnsignaled        // pending, and has no completion if it is sent
	directSignaled          // pending
	directFlushed           // was flushed, and has a completion

	directBits = 2 // of these
)

// pending reports whether there is one that is neither sent nor flushed.
func (d *directSend) pending() bool {
	k := d.state.Load() & (1<<directBits - 1)
	return k == directUnsignaled || k == directSignaled
}

// take ends the pending request, if there is one, and reports what it was.
func (d *directSend) take(end uint64) (kind uint64, ok bool) {
	s := d.state.Load()
	kind = s & (1<<directBits - 1)
	if kind != directUnsignaled && kind != directSignaled {
		return kind, false
	}
	if d.state.CompareAndSwap(s, s-kind+end) {
		return kind, true
	}
	return d.take(end) // its completion was asked for just now
}

// tell asks for a completion of request n, which began without. It is false if n is
// sent already.
func (d *directSend) tell(n uint64) bool {
	n <<= directBits
	return d.state.CompareAndSwap(n+directUnsignaled, n+directSignaled) || d.state.Load() == n+directFlushed
}

// sendDirect sends wr at once if it can go past the send queue. It returns the number
// of the request. If it is false nothing has happened, and the way through the queue
// finds what is wrong with wr, if anything is.
func (q *QueuePair) sendDirect(wr *SendWR, signaled bool) (n uint64, ok bool) {
	if !q.ready.Load() || !q.sq.Empty() || wr.Op > OpWrite {
		return 0, false
	}
	size, err := q.checkSG(wr.SG)
	if err != nil || size > smallFPDU || q.checkOp(wr, size) != nil {
		return 0, false
	}
	if mpa.FPDULen(headerLen(ops[wr.Op].msg)+int(size)) > smallFPDU || q.reserve(1) == 0 {
		return 0, false
	}
	ok = q.fc.SendNow(func() bool {
		n = q.beginDirect(wr, int(size), signaled)
		return n != 0
	})
	if !ok {
		q.sqUsed.Add(-1)
	}
	return n, ok
}

// beginDirect makes the FPDU of a request of size bytes, and returns its number, or 0 if
// it has to go another way. [send role]
func (q *QueuePair) beginDirect(wr *SendWR, size int, signaled bool) (n uint64) {
	t := &q.tx
	if !q.life.Load().posts() { // nothing is flushed before this has ended
		return 0
	}
	if !q.sq.Empty() || !q.sendOpen.Load() || q.term.Load() != nil || t.rtr != 0 || q.nudge.Load() || t.enc.Markers {
		return 0
	}
	q.refreshMSS()
	msg := ops[wr.Op].msg
	hl := headerLen(msg)
	ulpdu := hl + size
	if ulpdu > int(t.mulpdu.Load()) {
		return 0
	}
	p := q.fc.Frame(mpa.FPDULen(ulpdu))
	at := mpa.LengthLen + hl
	for i := range wr.SG {
		s := &wr.SG[i]
		k := s.length()
		if k == 0 {
			continue
		}
		ref, out := s.pin(q, 0, k, regmem.LocalRead)
		if out != regmem.OK {
			return 0
		}
		plain := !ref.Guarded() && !ref.Far()
		if plain {
			at += copy(p[at:], ref.B())
		}
		ref.Release()
		if !plain {
			return 0
		}
	}
	d := &q.direct
	n = d.state.Load()>>directBits + 1
	d.id, d.op = wr.ID, wr.Op
	kind := uint64(directUnsignaled)
	if signaled {
		kind = directSignaled
	}
	d.state.Store(n<<directBits + kind)
	h := t.enc.AppendLength(p[:0], ulpdu)
	if msg.Tagged() {
		msg.TaggedHeader(wr.Remote.STag, wr.Remote.TO, true).Append(h)
	} else {
		msg.UntaggedHeader(q.nextMSN(rdmap.QueueSend), 0, true, wr.Invalidate).Append(h)
	}
	p = p[:at]
	t.enc.AppendTrailer(p, ulpdu, t.crc(p))
	q.stats.sentFPDUs.Add(1)
	q.stats.sentMessages.Add(1)
	q.stats.sentBytes.Add(uint64(size))
	t.since += size
	return n
}

// finishDirect completes the request that went past the queue, if the batch had one:
// when TCP has all of its bytes, as any. [send role]
func (q *QueuePair) finishDirect() {
	d := &q.direct
	switch kind, ok := d.take(directSent); {
	case !ok:
	case kind == directUnsignaled:
		q.sqUsed.Add(-1)
	default:
		q.sendCQ.push(&Completion{ID: d.id, QP: q, Op: d.op})
	}
}

// flushDirect is the end of the stream for it.
func (q *QueuePair) flushDirect() {
	d := &q.direct
	if _, ok := d.take(directFlushed); ok {
		q.sendCQ.push(&Completion{ID: d.id, QP: q, Op: d.op, Status: StatusFlushed})
	}
}
