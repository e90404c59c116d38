package iwarp

import (
	"sync/atomic"

	"viaduct/internal/regmem"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
)

// A directSend is a request bypassing the send queue: a Send or Write of a short FPDU, posted while
// the queue is empty and all completions of the queue are published. The queue would be most of the
// cost of a short request. A stream has at most one pending directSend. A directSend is complete
// when TCP has all bytes, or the peer has all bytes through shared memory.
type directSend struct {
	// state is the number of the request, shifted left by directBits, plus the kind. The send role
	// begins a request. The goroutine that changes a pending kind to another kind completes the
	// request.
	state atomic.Uint64

	// The holder of the send role writes the following fields before changing state.
	id uint64
	op Op
}

const (
	directSent       = iota // complete; also the initial kind, before any request
	directUnsignaled        // the request is pending and has no completion when sent
	directSignaled          // the request is pending and has a completion when sent
	directFlushed           // the request was flushed and has a completion

	directBits = 2 // number of bits for the kind
)

// pending reports whether there is a request neither sent nor flushed.
func (d *directSend) pending() bool {
	k := d.state.Load() & (1<<directBits - 1)
	return k == directUnsignaled || k == directSignaled
}

// take changes the kind of the pending request to end, and returns the previous kind. ok is false
// if no request is pending.
func (d *directSend) take(end uint64) (kind uint64, ok bool) {
	s := d.state.Load()
	kind = s & (1<<directBits - 1)
	if kind != directUnsignaled && kind != directSignaled {
		return kind, false
	}
	if d.state.CompareAndSwap(s, s-kind+end) {
		return kind, true
	}
	return d.take(end) // a completion was requested just now
}

// signal requests a completion for request n, begun without a completion. It returns false if n is
// sent already, and true if n was flushed, because a flushed request has a completion.
func (d *directSend) signal(n uint64) bool {
	n <<= directBits
	return d.state.CompareAndSwap(n+directUnsignaled, n+directSignaled) || d.state.Load() == n+directFlushed
}

// sendDirect sends wr at once if wr can bypass the send queue, and returns the number of the
// request. If ok is false, sendDirect has done nothing; wr then goes through the queue, also to
// find errors of wr.
func (q *QueuePair) sendDirect(wr *SendWR, signaled bool) (n uint64, ok bool) {
	s := &q.sends
	if !q.link.ready.Load() || !s.work.Empty() || wr.Op > OpWrite {
		return 0, false
	}
	size, err := q.mem.checkList(wr.SG)
	if err != nil || size > smallFPDU || s.checkOp(wr, size) != nil {
		return 0, false
	}
	if mpa.FPDULen(headerLen(ops[wr.Op].msg)+int(size)) > smallFPDU || s.reserve(1) == 0 {
		return 0, false
	}
	ok = q.link.fc.SendNow(func() bool {
		n = q.tx.beginDirect(wr, int(size), signaled)
		return n != 0
	})
	if !ok {
		s.used.Add(-1)
	}
	return n, ok
}

// beginDirect builds the FPDU of a request of size bytes and returns the number of the request, or
// 0 if the request must go through the queue. Only the send role calls beginDirect.
func (t *sender) beginDirect(wr *SendWR, size int, signaled bool) (n uint64) {
	if !t.life.Load().posts() { // nothing is flushed until this call has returned
		return 0
	}
	if !t.queue.work.Empty() || !t.life.open.Load() || t.life.term.Load() != nil || t.rtr != 0 || t.nudge.Load() || t.enc.Markers {
		return 0
	}
	t.refreshMSS()
	msg := ops[wr.Op].msg
	hl := headerLen(msg)
	ulpdu := hl + size
	if ulpdu > int(t.mss.mulpdu.Load()) {
		return 0
	}
	p := t.link.fc.Frame(mpa.FPDULen(ulpdu))
	at := mpa.LengthLen + hl
	for i := range wr.SG {
		s := &wr.SG[i]
		k := s.length()
		if k == 0 {
			continue
		}
		ref, out := s.pin(&t.mem, regmem.Ref{}, 0, k, regmem.LocalRead)
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
	d := &t.queue.direct
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
		msg.UntaggedHeader(t.nextMSN(rdmap.QueueSend), 0, true, wr.Invalidate).Append(h)
	}
	p = p[:at]
	t.enc.AppendTrailer(p, ulpdu, t.crc(p))
	t.stats.sentFPDUs.Add(1)
	t.stats.sentMessages.Add(1)
	t.stats.sentBytes.Add(uint64(size))
	t.mss.since += size
	return n
}

// finishDirect completes the direct request of the sent batch, if any: TCP now has all bytes. Only
// the send role calls finishDirect.
func (s *sendQueue) finishDirect() {
	d := &s.direct
	switch kind, ok := d.take(directSent); {
	case !ok:
	case kind == directUnsignaled:
		s.used.Add(-1)
	default:
		s.cq.push(&Completion{ID: d.id, QP: s.qp, Op: d.op})
	}
}

// flushDirect completes the pending direct request, if any, as flushed.
func (s *sendQueue) flushDirect() {
	d := &s.direct
	if _, ok := d.take(directFlushed); ok {
		s.cq.push(&Completion{ID: d.id, QP: s.qp, Op: d.op, Status: StatusFlushed})
	}
}
