package iwarp

// A ReadQueue keeps RDMA Reads and Atomic Operations beyond [QueuePair.ORD] out of the send queue.
// There a Read that waits for an earlier one holds back every later request, even unrelated ones.
// For example, a server that answers many requests at a time, some of them by Reads, posts its
// Reads through a ReadQueue, and its answers to the stream.
//
// The zero value with QP set is ready. All Reads of the stream must go through it. It is not safe
// for concurrent use. Its memory is kept, so that posting allocates only while the queue grows.
type ReadQueue struct {
	QP *QueuePair

	started int      // posted and not done
	waiting []SendWR // from first on
	first   int
}

// Post posts a Read or an Atomic Operation, or keeps it until others are done. A kept one counts as
// lent like a posted one. The errors are those of [QueuePair.Post].
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

// Done posts the next waiting request. Call it for each completion of a request that was posted by
// Post. It returns the error of [QueuePair.Post]: the stream has ended or that request was invalid,
// and no request follows it.
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
