package roce

import (
	"viaduct/internal/rocecore"
	"viaduct/internal/wire/ib"
)

// A host implements rocecore.Host for a queue pair. Its methods are called with the lock of the
// roceudp.Pair held.
type host struct {
	memory
	*QueuePair
}

// NextReceive implements rocecore.Host.
func (q *host) NextReceive() (rocecore.Receive, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.receives.Pop()
}

// RequestDone implements rocecore.Host. An unsignaled request that has succeeded has no completion.
func (q *host) RequestDone(r *rocecore.Request, c rocecore.Completion) {
	q.posted.Add(-1)
	if r.Unsignaled && c.Status == rocecore.OK {
		return
	}
	e := Completion{ID: r.ID, QP: q.QueuePair, Op: opOf[r.Op], Status: Status(c.Status), Value: c.Value}
	if r.Op == rocecore.Read && c.Status == rocecore.OK {
		e.Len = r.Buf.Len()
	}
	q.cfg.SendCQ.q.Push(e)
}

// Received implements rocecore.Host.
func (q *host) Received(r rocecore.Receive, a rocecore.Arrival) {
	e := Completion{ID: r.ID, QP: q.QueuePair, Op: OpRecv, Status: Status(a.Status), Len: a.Len, Solicited: a.Solicited,
		HasImm: a.HasImm, Imm: a.Imm, Invalidated: a.HasInv, Key: a.Key, SourceQPN: a.Source}
	if a.Write {
		e.Op = OpRecvWrite
	}
	q.cfg.RecvCQ.q.Push(e)
}

// Refused implements rocecore.Host. It does nothing: the peer gets a NAK, and Failed reports the
// error to the owner of the queue pair.
func (q *host) Refused(ib.Syndrome) {}

// Failed implements rocecore.Host. It moves the queue pair to the error state. [ROCE-RESP-16]
func (q *host) Failed(rocecore.Status) {
	q.state.CompareAndSwap(ready, inError)
	q.flushReceives()
}

// flushReceives completes all posted receives with StatusFlushed. Later calls of PostRecv complete
// their receives at once in the same way.
func (q *QueuePair) flushReceives() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.flushing = true
	for {
		r, ok := q.receives.Pop()
		if !ok {
			return
		}
		q.cfg.RecvCQ.q.Push(Completion{ID: r.ID, QP: q, Op: OpRecv, Status: StatusFlushed})
	}
}
