package iwarp

import "sync"

var recvWQEs = sync.Pool{New: func() any { return new(recvWQE) }}

func freeRecvWQE(w *recvWQE) {
	w.reset()
	recvWQEs.Put(w)
}

// Post adds a request to the send queue. It never waits for the peer. After an error the request
// was not posted, and the memory is not lent. The errors match:
//
//   - ErrQueueFull: SendDepth requests are posted whose completions were not polled;
//   - ErrInvalid, ErrRegistered: the request names invalid local memory;
//   - ErrTooLong: the payload exceeds MaxMessage, or MaxInline with Inline;
//   - ErrNoReads, ErrNotEnabled: the peer or the Config does not allow the operation;
//   - ErrPeerClosed: a Read or Atomic after the peer has closed its direction;
//   - ErrClosed: the stream is closed or has ended.
func (q *QueuePair) Post(wr SendWR) error {
	if !wr.More {
		if _, ok := q.sendDirect(&wr, !wr.Unsignaled); ok {
			q.sends.cq.deliver()
			return nil
		}
	}
	wrs := [1]SendWR{wr}
	if _, err := q.sends.post(wrs[:]); err != nil {
		return err
	}
	if wr.More {
		q.sends.waiting.Store(true)
	} else {
		q.sends.kick()
	}
	return nil
}

// PostBatch posts requests and starts sending them together. It returns the number n of posted
// requests. If n is less than len(wrs), the error is the reason why wrs[n] was refused.
func (q *QueuePair) PostBatch(wrs []SendWR) (n int, err error) {
	for n < len(wrs) && err == nil {
		var k int
		k, err = q.sends.post(wrs[n:min(n+postRun, len(wrs))])
		n += k
	}
	if n > 0 {
		q.sends.kick()
	}
	return n, err
}

// Flush sends the requests posted with More.
func (q *QueuePair) Flush() {
	if q.sends.waiting.Load() {
		q.sends.waiting.Store(false)
	}
	q.sends.kick()
}

// PostRecv adds a buffer to the receive queue. Messages use buffers in the order of posting, and a
// message without a buffer ends the stream. With a shared receive queue, post there instead.
//
// Errors: ErrQueueFull, ErrInvalid, ErrRegistered, ErrPeerClosed, ErrClosed.
func (q *QueuePair) PostRecv(wr RecvWR) error { return q.recvs.post(&wr) }

func newRecvWQE(wr *RecvWR, mem *memory) (*recvWQE, error) {
	n, err := mem.checkList(wr.SG)
	if err != nil {
		return nil, err
	}
	w := recvWQEs.Get().(*recvWQE)
	w.id, w.length = wr.ID, n
	w.nsg = copy(w.sg[:], wr.SG)
	return w, nil
}
