package iwarp

// A ReadQueue keeps RDMA Reads and Atomic Operations beyond [QueuePair.ORD] out of the send queue.
// In the send queue, a Read waiting for an earlier Read delays every later request, even unrelated
// requests. For example, a server that answers many requests at a time, some of them by Reads,
// posts the Reads through a ReadQueue, and other answers to the stream directly.
//
// The zero value with QP set is ready for use. All Reads of the stream must go through the
// ReadQueue. A ReadQueue is not safe for concurrent use. Memory is reused, so posting allocates
// only while the queue grows.
type ReadQueue struct {
	QP *QueuePair

	started int      // number of Reads posted and not done
	waiting []SendWR // requests not yet posted, from index first on
	first   int
}

// Post posts a Read or an Atomic Operation, or keeps the request until enough earlier requests are
// done. The memory of a kept request is lent as if the request were posted. The errors are the
// errors of [QueuePair.Post]; the errors of a kept request come from Done.
func (r *ReadQueue) Post(wr SendWR) error {
	if r.started >= r.QP.ORD() {
		if r.QP.ORD() == 0 {
			return ErrNoReads
		}
		wr.SG = append([]SGE(nil), wr.SG...)
		r.waiting = append(r.waiting, wr)
		return nil
	}
	if err := r.QP.Post(wr); err != nil {
		return err
	}
	r.started++
	return nil
}

// Done posts the next waiting request, if any. Call Done for each completion of a request posted by
// Post. An error is the error of [QueuePair.Post] for the waiting request, now dropped: the stream
// has ended, or the request was invalid. After an error, Done posts no other request.
func (r *ReadQueue) Done() error {
	r.started--
	if r.first == len(r.waiting) {
		return nil
	}
	wr := r.waiting[r.first]
	r.waiting[r.first] = SendWR{}
	if r.first++; r.first == len(r.waiting) {
		r.waiting, r.first = r.waiting[:0], 0
	}
	return r.Post(wr)
}
