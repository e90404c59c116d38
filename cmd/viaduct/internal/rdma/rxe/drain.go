package rxe

import "viaduct/cmd/viaduct/internal/rdma/abi"

// A drainState says how far the send queue is on its way into the state SQD, in which no request is begun. It is
// drained when the request that was begun before is complete.
type drainState uint32

const (
	drained drainState = iota
	draining
	drainingTold // the program wants an event when it is drained
)

func (q *QP) startDraining(tell bool) {
	s := draining
	if tell {
		s = drainingTold
	}
	q.drain.Store(uint32(s))
}

// draining reports whether the queue is in SQD and not drained yet.
func (q *QP) draining() bool {
	return drainState(q.drain.Load()) != drained && q.attrs.Load().State == abi.SQD
}

// endDraining is called in SQD when no request is in progress. send.mu is locked.
func (q *QP) endDraining() {
	if drainState(q.drain.Swap(uint32(drained))) == drainingTold {
		q.event(abi.AsyncSQDrained)
	}
}
