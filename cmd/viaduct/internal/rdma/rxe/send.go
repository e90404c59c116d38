package rxe

import (
	"fmt"
	"sync"
	"time"

	"viaduct/cmd/viaduct/internal/rdma/abi"
)

// A sendSide is the state of the requester. The requester executes the entries of the send queue.
type sendSide struct {
	mu     sync.Mutex
	ring   ring        // guarded by mu
	entry  sendEntry   // guarded by mu
	held   bool        // guarded by mu; entry is a copy of the head of the ring
	pieces pieces      // guarded by mu; the program's memory of the entry's payload
	wait   wait        // guarded by mu
	again  *time.Timer // guarded by mu; tries the head again
}

// empty removes all posted entries. mu is locked.
func (s *sendSide) empty() {
	s.held, s.wait = false, wait{}
	if s.again != nil {
		s.again.Stop()
	}
	if s.ring.mem != nil {
		s.ring.reset()
	}
}

func (s *sendSide) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = false
	if s.again != nil {
		s.again.Stop()
	}
	s.ring.drop()
}

// An outcome is the result of trying to execute a request.
type outcome uint8

const (
	done     outcome = iota
	notReady         // the responder has no receive for the request
	noAnswer         // there is no responder, or the responder is not ready
	busy             // the responder is executing another request, for which this one may not wait
	noRoom           // the socket has no room for more packets
)

// A peer is the other end of a connection.
type peer interface {
	// respond executes a request. status is valid if the outcome is done. timer is the timer field
	// of the responder if the outcome is notReady.
	respond(r *request) (o outcome, status Status, timer uint8)
}

// A request is a send entry being executed.
type request struct {
	from  *QP
	entry *sendEntry
	local *pieces // the requester's memory, unless the payload is inline
	short bool    // the caller must not wait for requests of other queue pairs
}

// Posted returns the number of requests in the send queue. It returns 1 while a request is
// executed.
func (q *QP) Posted() uint64 {
	if !q.send.mu.TryLock() {
		return 1
	}
	defer q.send.mu.Unlock()
	if q.send.ring.mem == nil {
		return 0
	}
	return uint64(q.send.ring.waiting())
}

// Ready reports whether the program may post sends. It is true also in the error state, where sends
// are flushed.
func (q *QP) Ready() bool { return q.attrs.Load().State >= abi.RTS }

// briefMost is the greatest payload of a brief request in bytes. [Region] copies so few bytes without
// waiting for a program that provides the memory, for example through userfaultfd.
const briefMost = 4 << 10

// Brief reports whether a single request with a short payload waits to be begun. The next Doorbell
// executes such a request about as fast as the program could be woken.
func (q *QP) Brief() bool {
	s := &q.send
	if !s.mu.TryLock() {
		return false
	}
	defer s.mu.Unlock()
	if s.ring.mem == nil || s.held {
		return false
	}
	begun := uint32(0)
	if l := q.link.Load(); l != nil {
		begun = uint32(len(l.posted))
	}
	if s.ring.waiting() != begun+1 {
		return false
	}
	s.entry.take(s.ring.slot(s.ring.at + begun))
	return s.entry.size <= briefMost
}

// Doorbell executes the posted entries: short entries before Doorbell returns, the others in
// another goroutine.
func (q *QP) Doorbell() { q.kick(true) }

// A doorbell executes entries at once up to a cost of shortRoom. The cost of an entry is the bytes
// of payload plus entryCost. Copying 64 KiB takes less time than waking another goroutine, and less
// than the doorbell itself.
const (
	shortRoom = 192 << 10
	entryCost = 192
)

// kick makes a goroutine work on the send queue: the caller, unless another goroutine is working
// already. With short, the caller leaves long entries to a new goroutine.
func (q *QP) kick(short bool) {
	if q.calls.Add(1) == 1 {
		q.work(short)
	}
}

// A progress is the result of a step: more if the next step can follow, idle if all must wait for
// the next kick.
type progress uint8

const (
	more progress = iota
	idle
	tooLong // takes too long for the caller
)

// work executes entries until there are none, or the head has to wait. Only a single goroutine
// calls work at a time.
func (q *QP) work(short bool) {
	for {
		calls := q.calls.Load()
		if q.pass(short) == tooLong {
			go q.work(false)
			return
		}
		if q.calls.CompareAndSwap(calls, 0) {
			return
		}
	}
}

// pass executes entries until there are none, the head has to wait, or the next entry takes too
// long for the caller.
func (q *QP) pass(short bool) progress {
	if l := q.link.Load(); l != nil {
		return l.work(short)
	}
	room := shortRoom
	for {
		spent, p := q.step(short, room)
		if p != more {
			return p
		}
		room -= spent
	}
}

// step executes an entry or batch. It returns the cost, and whether to go on.
func (q *QP) step(short bool, room int) (spent int, p progress) {
	s := &q.send
	s.mu.Lock()
	defer s.mu.Unlock()
	a := q.attrs.Load()
	switch {
	case s.ring.mem == nil:
		return 0, idle
	case a.State == abi.Err, a.State == abi.SQE:
		if short && s.ring.waiting() > shortRoom/entryCost {
			return 0, tooLong
		}
		q.flushSendsLocked()
		return 0, idle
	case a.State == abi.SQD && s.held: // the request was begun before
	case a.State == abi.SQD:
		q.endDraining()
		return 0, idle
	case a.State != abi.RTS:
		return 0, idle
	}
	e := &s.entry
	if !s.held {
		switch n := s.ring.waiting(); {
		case n == 0:
			return 0, idle
		case n > 1 && q.typ != UD:
			if spent := q.carryOutBatch(a, short, room); spent > 0 {
				return spent, more
			}
		}
		e.take(s.ring.slot(s.ring.at))
		s.held = true
	}
	if short && (room < entryCost || e.size > uint64(room)) {
		return 0, tooLong
	}
	o, status, timer := q.execute(a, e, short)
	if o == busy {
		return 0, tooLong
	}
	if o != done {
		if q.wait(a, o, timer) {
			return 0, idle
		}
		status = RetryExceeded
		if o == notReady {
			status = RNRRetryExceeded
		}
	}
	s.wait = wait{}
	q.finish(&e.posted, status)
	if status != Success {
		q.explainFailure(a, &e.posted, status)
		q.fail()
		return 0, idle
	}
	q.sent.Add(e.size)
	return int(e.size) + entryCost, more
}

// finish completes the entry at the head of the queue. It frees the entry before the program can
// see the completion.
func (q *QP) finish(e *posted, status Status) {
	q.send.held = false
	q.send.ring.pop()
	if status == Success && !q.signalAll && e.flags&flagSignaled == 0 {
		return
	}
	c := completion{id: e.id, status: status, kind: e.op.done(), length: uint32(e.size), qp: q.num}
	if e.op == OpSendImm || e.op == OpWriteImm {
		c.flags = hasImmediate
	}
	q.scq.push(&c)
}

// wait schedules another attempt to execute the head. It returns false if the limit of the wait is
// exceeded.
func (q *QP) wait(a *Attributes, o outcome, timer uint8) bool {
	s, now := &q.send, time.Now()
	if s.wait.since.IsZero() || s.wait.why != o {
		s.wait = wait{why: o, since: now}
	}
	s.wait.timer = timer
	if s.wait.over(now, a) {
		return false
	}
	next := s.wait.next(now, a)
	if s.again == nil {
		s.again = time.AfterFunc(next, func() { q.kick(false) })
	} else {
		s.again.Reset(next)
	}
	return true
}

func (q *QP) flushSends() {
	q.send.mu.Lock()
	defer q.send.mu.Unlock()
	if q.failed() && q.link.Load() == nil { // the host of a link completes the requests of the link
		q.flushSendsLocked()
	}
}

// flushSendsLocked completes all posted entries as flushed.
func (q *QP) flushSendsLocked() {
	s := &q.send
	s.wait = wait{}
	for range s.ring.mask + 1 {
		if s.ring.mem == nil {
			return
		}
		if !s.held {
			if s.ring.waiting() == 0 {
				return
			}
			s.entry.take(s.ring.slot(s.ring.at))
		}
		q.finish(&s.entry.posted, Flushed)
	}
}

// requests holds the operations supported by each type of queue pair.
var requests = map[Type]map[Op]bool{
	RC: {OpWrite: true, OpWriteImm: true, OpSend: true, OpSendImm: true, OpRead: true,
		OpCompareSwap: true, OpFetchAdd: true,
		OpLocalInvalidate: true, OpBindWindow: true, OpSendInvalidate: true, OpAtomicWrite: true},
	UC: {OpWrite: true, OpWriteImm: true, OpSend: true, OpSendImm: true, OpLocalInvalidate: true, OpBindWindow: true},
	UD: {OpSend: true, OpSendImm: true},
}

// unfit returns the status of an invalid entry, and otherwise Success.
func (q *QP) unfit(a *Attributes, e *sendEntry) Status {
	switch {
	case !e.valid, !requests[q.typ][e.op]:
		return LocalQPOperation
	case e.op.local():
		return Success
	case e.size > maxSize:
		return LocalLength
	case e.op == OpAtomicWrite && q.link.Load() != nil:
		return LocalQPOperation // RoCEv2 as implemented here has no packet for this operation
	}
	switch e.op {
	case OpCompareSwap, OpFetchAdd:
		if e.size < atomicLen {
			return LocalLength
		}
		fallthrough
	case OpRead:
		if a.MaxReads == 0 {
			return LocalQPOperation
		}
	}
	return Success
}

// performLocal executes an entry that needs no peer.
func (q *QP) performLocal(e *sendEntry) Status {
	if e.op == OpBindWindow {
		return q.space.bind(q, &e.bind)
	}
	if !q.space.invalidate(e.imm, q.memory) {
		return LocalQPOperation
	}
	return Success
}

// execute executes an entry. With short, execute does not wait for other queue pairs, and the
// outcome may be busy. send.mu is locked.
func (q *QP) execute(a *Attributes, e *sendEntry, short bool) (o outcome, status Status, timer uint8) {
	if status = q.unfit(a, e); status != Success {
		return done, status, 0
	}
	if e.op.local() {
		return done, q.performLocal(e), 0
	}
	local := &q.send.pieces
	defer local.release()
	if !local.addAll(q.memory, e.elements.list(), e.op.localRights()) {
		return done, LocalProtection, 0
	}
	r := &request{from: q, entry: e, local: local, short: short}
	if q.typ == UD {
		o, status = q.datagram(a, r)
		return o, status, 0
	}
	o, status = noAnswer, Success
	if p := q.peer(a); p != nil {
		o, status, timer = p.respond(r)
	}
	if q.typ == UC && o != busy && status != LocalProtection {
		return done, Success, 0 // the sender never learns the result
	}
	return o, status, timer
}

// peer returns the queue pair the connection leads to, or nil if the address has no queue pair with
// the number.
func (q *QP) peer(a *Attributes) peer {
	p := q.fabric.QP(a.DestQP)
	if p == nil || !p.port.owns(a.Path.DGID) {
		return nil
	}
	return p
}

// explainFailure reports why a request failed.
func (q *QP) explainFailure(a *Attributes, e *posted, status Status) {
	why := ""
	switch {
	case status == RetryExceeded && q.link.Load() != nil:
		why = ": no answer by RoCEv2"
	case status == RetryExceeded && !q.fabric.local(a.Path.DGID):
		why = ": no device here has that address"
	case status == RetryExceeded:
		switch p := q.fabric.QP(a.DestQP); {
		case p == nil:
			why = ": there is no such queue pair"
			if who := PortUser(a.Path.DGID.addr()); who != "" {
				why += " here, and " + who + " has UDP port 4791 of that address"
				q.tell(fmt.Sprintf("no queue pair %d at %v here: %s has UDP port 4791 of that address, and its queue pairs are not reached from here; give each viaduct run an address of its own, as in --device rxe0=127.0.0.2",
					a.DestQP, a.Path.DGID, who))
			}
		case p.attrs.Load().DestQP != q.num:
			why = ": that queue pair is not connected to this one"
		default:
			why = ": that queue pair is in the state " + p.attrs.Load().State.String()
		}
	}
	q.explain("queue pair %d -> %d at %v: %v of %d bytes failed: %v%s", q.num, a.DestQP,
		a.Path.DGID, e.op, e.size, status, why)
}
