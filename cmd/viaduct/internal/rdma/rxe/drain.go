package rxe

import "viaduct/cmd/viaduct/internal/rdma/abi"

// A drainState is the progress of a send queue towards being drained. In the state SQD no request
// is begun. The queue is drained when all requests begun before are complete.
type drainState uint32

const (
	drained drainState = iota
	draining
	drainingTold // the program requested an event when the queue is drained
)

func (q *QP) startDraining(tell bool) {
	s := draining
	if tell {
		s = drainingTold
	}
	q.drain.Store(uint32(s))
}

// draining reports whether the queue pair is in SQD and the send queue is not drained yet.
func (q *QP) draining() bool {
	return drainState(q.drain.Load()) != drained && q.attrs.Load().State == abi.SQD
}

// endDraining marks the send queue as drained. It is called in SQD when no request is in progress.
// send.mu is locked.
func (q *QP) endDraining() {
	if drainState(q.drain.Swap(uint32(drained))) == drainingTold {
		q.event(abi.AsyncSQDrained)
	}
}
