package rxe

import (
	"sync"

	"viaduct/cmd/viaduct/internal/rdma/abi"
)

// Limits of a batch. A request with more payload than eachMost gains nothing from a batch.
const (
	batchMost  = 32
	eachMost   = 1 << 10
	chunksMost = 2 * batchMost
	// batchCost is the cost of an entry in shortRoom, besides the payload. It is low because the
	// entries of a batch share few system calls.
	batchCost = entryCost / 4
)

// A batch is the short Writes and Sends at the head of a send queue, executed together. One system
// call reads the payload of all requests. Another system call writes the payload, if access to the
// responder's process is allowed.
//
// The batch ends before the first entry that is invalid, long, of another kind, or has to wait. The
// entry stays in the queue and is later executed alone, so that every fault is found and reported
// in a single place.
type batch struct {
	jobs  []job
	size  int  // bytes of payload
	sends bool // Sends are allowed; false with an SRQ, whose receives are taken one by one
	from  copies
	to    copies
	buf   [batchMost * eachMost]byte
}

// A job is a request of a batch.
type job struct {
	posted
	remote  remote
	payload []byte // part of batch.buf
	read    int    // bytes read once this job and all before it have been read
	written int    // bytes written once this job and all before it have been written
	receive uint64 // id of the receive that a Send completes
}

var batches = sync.Pool{New: func() any { return &batch{jobs: make([]job, 0, batchMost)} }}

func (b *batch) release() {
	b.jobs, b.size = b.jobs[:0], 0
	b.from.reset()
	b.to.reset()
	batches.Put(b)
}

// keep shortens the batch to the jobs before the first whose upTo exceeds done.
func (b *batch) keep(done int, upTo func(*job) int) {
	for i := range b.jobs {
		if upTo(&b.jobs[i]) > done {
			b.jobs = b.jobs[:i]
			return
		}
	}
}

// carryOutBatch executes entries at the head of the send queue as a batch. It returns their cost in
// the caller's room, or 0 if none was executed. send.mu is locked.
func (q *QP) carryOutBatch(a *Attributes, short bool, room int) (spent int) {
	p, ok := q.peer(a).(*QP)
	if !ok || p == nil {
		return 0
	}
	b := batches.Get().(*batch)
	defer b.release()
	b.sends = p.srq == nil
	defer q.send.pieces.release()
	for len(b.jobs) < batchMost && q.collect(b, room) {
	}
	if len(b.jobs) < 2 {
		return 0
	}
	b.keep(b.from.read(), func(j *job) int { return j.read })
	p.respondBatch(q, b, short)
	for i := range b.jobs {
		q.finish(&b.jobs[i].posted, Success)
		q.sent.Add(b.jobs[i].size)
		spent += int(b.jobs[i].size) + batchCost
	}
	return spent
}

// collect adds the next entry of the send queue to the batch. It returns false if the entry does
// not belong to the batch.
func (q *QP) collect(b *batch, room int) bool {
	s, e := &q.send, &q.send.entry
	if s.ring.waiting() <= uint32(len(b.jobs)) || room < b.size+(len(b.jobs)+1)*batchCost {
		return false
	}
	e.take(s.ring.slot(s.ring.at + uint32(len(b.jobs))))
	if !e.valid || e.op != OpWrite && (e.op != OpSend || !b.sends) || e.size > eachMost || b.size+int(e.size) > room {
		return false
	}
	j := job{posted: e.posted, remote: e.remote, payload: b.buf[b.size : b.size+int(e.size)]}
	if e.inline != nil {
		copy(j.payload, e.inline)
	} else {
		first := len(s.pieces.list)
		if !s.pieces.addAll(q.memory, e.elements.list(), 0) || !b.from.add(s.pieces.list[first:], j.payload) {
			return false
		}
	}
	b.size += int(e.size)
	j.read = b.from.size
	b.jobs = append(b.jobs, j)
	return true
}

// respondBatch executes a batch at the responder, and shortens the batch to the executed jobs. If
// another goroutine has the lock, a short batch does not wait, and no job is executed.
func (q *QP) respondBatch(from *QP, b *batch, short bool) {
	if !short {
		q.recv.mu.Lock()
	} else if !q.recv.mu.TryLock() {
		b.jobs = b.jobs[:0]
		return
	}
	defer q.recv.mu.Unlock()
	defer q.recv.pieces.release()
	a := q.attrs.Load()
	if !q.answers(a, from) {
		b.jobs = b.jobs[:0]
		return
	}
	receives := uint32(0)
	for i := range b.jobs {
		if !q.place(a, b, &b.jobs[i], receives) {
			b.jobs = b.jobs[:i]
			break
		}
		if b.jobs[i].op == OpSend {
			receives++
		}
	}
	b.keep(b.to.write(), func(j *job) int { return j.written })
	for i := range b.jobs {
		j := &b.jobs[i]
		q.received.Add(j.size)
		if j.op != OpSend {
			continue
		}
		q.recv.ring.pop()
		q.rcq.push(&completion{id: j.receive, kind: doneRecv, length: uint32(j.size), qp: q.num, flags: hasGRH,
			solicited: j.flags&flagSolicited != 0})
	}
}

// place determines the responder's memory for a job. It returns false if the job cannot be executed
// in the batch. receives is the number of receives the earlier jobs complete.
func (q *QP) place(a *Attributes, b *batch, j *job, receives uint32) bool {
	to := &q.recv.pieces
	first := len(to.list)
	switch {
	case j.op == OpWrite && a.Access&abi.AccessRemoteWrite == 0:
		return false
	case j.op == OpWrite:
		if j.size > 0 && !q.target(&j.remote, j.size, abi.AccessRemoteWrite) {
			return false
		}
	default:
		r := &q.recv.ring
		if q.recv.held || r.mem == nil || r.waiting() <= receives {
			return false
		}
		e := &q.recv.entry
		e.take(r.slot(r.at + receives))
		if !e.valid || e.elements.size() < j.size || !to.addAll(q.memory, e.elements.list(), abi.AccessLocalWrite) {
			return false
		}
		j.receive = e.id
	}
	if !b.to.add(to.list[first:], j.payload) {
		return false
	}
	j.written = b.to.size
	return true
}
