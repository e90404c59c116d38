package nvme

import "viaduct/iwarp"

// A readQueue keeps RDMA Reads beyond [iwarp.QueuePair.ORD] out of the send queue. In the send
// queue, a Read waiting for an earlier Read would delay every later request, even the responses to
// other commands.
//
// The zero value with qp set is ready for use. All Reads of the stream must go through the
// readQueue. One goroutine at a time may use it. Memory is reused, so posting allocates only while
// the queue grows.
type readQueue struct {
	qp *iwarp.QueuePair

	started int            // number of Reads posted and not done
	waiting []iwarp.SendWR // requests not yet posted, from index first on
	first   int
}

// post posts a Read, or keeps the request until enough earlier requests are done. The memory of a
// kept request is lent as if the request were posted. The errors are the errors of
// [iwarp.QueuePair.Post]; the errors of a kept request come from done.
func (r *readQueue) post(wr iwarp.SendWR) error {
	if r.started >= r.qp.ORD() {
		if r.qp.ORD() == 0 {
			return iwarp.ErrNoReads
		}
		wr.SG = append([]iwarp.SGE(nil), wr.SG...)
		r.waiting = append(r.waiting, wr)
		return nil
	}
	if err := r.qp.Post(wr); err != nil {
		return err
	}
	r.started++
	return nil
}

// done posts the next waiting request, if any. It is called for each completion of a request posted
// by post. An error is the error of [iwarp.QueuePair.Post] for the waiting request, now dropped: the
// stream has ended, or the request was invalid. After an error, done posts no other request.
func (r *readQueue) done() error {
	r.started--
	if r.first == len(r.waiting) {
		return nil
	}
	wr := r.waiting[r.first]
	r.waiting[r.first] = iwarp.SendWR{}
	if r.first++; r.first == len(r.waiting) {
		r.waiting, r.first = r.waiting[:0], 0
	}
	return r.post(wr)
}
