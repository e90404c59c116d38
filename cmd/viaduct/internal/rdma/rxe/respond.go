package rxe

import (
	"encoding/binary"

	"viaduct/cmd/viaduct/internal/rdma/abi"
)

// A fault describes an invalid request by the resulting statuses and event.
type fault struct {
	requester Status
	receive   Status        // status of the receive that the message has taken, if any
	event     abi.AsyncType // event of the responder's queue pair
}

var (
	faultInvalid    = &fault{RemoteInvalid, RemoteInvalid, abi.AsyncQPRequest}
	faultAccess     = &fault{RemoteAccess, RemoteAccess, abi.AsyncQPAccess}
	faultLength     = &fault{RemoteInvalid, LocalLength, abi.AsyncQPRequest}
	faultReceive    = &fault{RemoteOperation, LocalProtection, abi.AsyncQPFatal}
	faultMalformed  = &fault{RemoteOperation, LocalQPOperation, abi.AsyncQPFatal}
	faultInvalidate = &fault{Success, RemoteInvalid, abi.AsyncQPRequest} // the payload was already acknowledged
)

// A verdict is the result of a request at the responder.
type verdict struct {
	outcome outcome
	status  Status // status at the requester, if fault is nil
	fault   *fault
}

var (
	good       = verdict{}
	rnr        = verdict{outcome: notReady}
	silent     = verdict{outcome: noAnswer}
	occupied   = verdict{outcome: busy}
	unsendable = verdict{status: LocalProtection} // the requester's memory is not accessible
)

func wrong(f *fault) verdict { return verdict{fault: f} }

// respond implements peer. The goroutine that serves all programs makes short requests. A short
// request does not wait for the lock, because another queue pair holds the lock during a long copy.
// The outcome is busy then.
func (q *QP) respond(r *request) (outcome, Status, uint8) {
	if !r.short {
		q.recv.mu.Lock()
	} else if !q.recv.mu.TryLock() {
		return busy, Success, 0
	}
	defer q.recv.mu.Unlock()
	a := q.attrs.Load()
	if !q.answers(a, r.from) {
		return noAnswer, Success, 0
	}
	defer q.recv.pieces.release()
	v := q.carryOut(a, r)
	if v.fault == nil {
		if v == good {
			q.received.Add(r.entry.size)
		}
		return v.outcome, v.status, a.MinRNR
	}
	if q.typ == UC {
		return done, Success, 0 // the message is dropped; the next message uses its receive
	}
	if q.recv.held {
		q.finishReceive(&completion{kind: doneRecv, status: v.fault.receive, solicited: true})
	}
	q.event(v.fault.event)
	q.fail()
	return done, v.fault.requester, 0
}

// answers reports whether the queue pair accepts requests from another. recv.mu is locked.
func (q *QP) answers(a *Attributes, from *QP) bool {
	return !q.recv.closed && q.typ == from.typ && a.State >= abi.RTR && a.State != abi.Err && a.DestQP == from.num
}

// carryOut executes a request at the responder. The checks have the same order as in the kernel's
// driver.
func (q *QP) carryOut(a *Attributes, r *request) verdict {
	e := r.entry
	if need := e.op.right(); a.Access&need != need {
		return wrong(faultInvalid)
	}
	switch e.op {
	case OpRead, OpCompareSwap, OpFetchAdd, OpAtomicWrite:
		if a.MaxDestReads == 0 {
			return wrong(faultInvalid)
		}
	}
	switch e.op {
	case OpRead:
		return q.read(r)
	case OpCompareSwap, OpFetchAdd, OpAtomicWrite:
		return q.atomic(r)
	case OpWrite, OpWriteImm:
		return q.write(r)
	}
	return q.receive(r)
}

// right returns the right both the responder's queue pair and the region must grant.
func (o Op) right() uint32 {
	switch o {
	case OpRead:
		return abi.AccessRemoteRead
	case OpWrite, OpWriteImm, OpAtomicWrite:
		return abi.AccessRemoteWrite
	case OpCompareSwap, OpFetchAdd:
		return abi.AccessRemoteAtomic
	}
	return 0
}

// target adds the n bytes of memory a request accesses to the responder's pieces. It returns false
// if the request may not access the bytes.
func (q *QP) target(r *remote, n uint64, right uint32) bool {
	reg, at, isWindow := q.space.find(q, r.key, r.addr, n, right)
	if !isWindow {
		reg, at = q.memory.Find(r.key, r.addr, n, right), r.addr
	}
	if reg == nil {
		return false
	}
	q.recv.pieces.add(reg, at, int(n))
	return true
}

// fetch copies the payload of a request to the responder's memory to.
func (r *request) fetch(to *pieces) *copyError {
	if r.entry.inline != nil {
		return scatter(r.entry.inline, to)
	}
	return move(r.local, to)
}

// judge converts the error of a copy to the responder. f is the fault if the responder's memory has
// failed. err may be nil.
func judge(err *copyError, f *fault) verdict {
	switch {
	case err == nil:
		return good
	case err.reading:
		return unsendable
	case err.gone:
		return silent
	}
	return wrong(f)
}

func (q *QP) read(r *request) verdict {
	if r.entry.size == 0 {
		return good
	}
	if !q.target(&r.entry.remote, r.entry.size, abi.AccessRemoteRead) {
		return wrong(faultAccess)
	}
	switch err := move(&q.recv.pieces, r.local); {
	case err == nil:
		return good
	case !err.reading:
		return unsendable
	case err.gone:
		return silent
	}
	return wrong(faultAccess)
}

func (q *QP) write(r *request) verdict {
	e := r.entry
	if e.op == OpWriteImm && !q.takeReceive() {
		return rnr
	}
	if e.size > 0 {
		if !q.target(&e.remote, e.size, abi.AccessRemoteWrite) {
			return wrong(faultAccess)
		}
		if v := judge(r.fetch(&q.recv.pieces), faultAccess); v != good {
			return v
		}
	}
	if e.op == OpWriteImm {
		q.finishReceive(&completion{kind: doneRecvWriteImm, length: uint32(e.size), imm: e.imm,
			flags:     hasGRH | hasImmediate,
			solicited: e.flags&flagSolicited != 0})
	}
	return good
}

// receive stores a message in the next receive. Without a receive, the verdict is rnr.
func (q *QP) receive(r *request) verdict {
	e, to := r.entry, &q.recv.pieces
	if !q.takeReceive() {
		return rnr
	}
	switch re := &q.recv.entry; {
	case !re.valid:
		return wrong(faultMalformed)
	case re.elements.size() < e.size:
		return wrong(faultLength)
	case !to.addAll(q.memory, re.elements.list(), abi.AccessLocalWrite):
		return wrong(faultReceive)
	}
	if v := judge(r.fetch(to), faultReceive); v != good {
		return v
	}
	c := completion{kind: doneRecv, length: uint32(e.size), flags: hasGRH, solicited: e.flags&flagSolicited != 0}
	switch e.op {
	case OpSendImm:
		c.flags, c.imm = c.flags|hasImmediate, e.imm
	case OpSendInvalidate:
		if !q.space.invalidate(e.imm, q.memory) {
			return wrong(faultInvalidate)
		}
		c.flags, c.imm = c.flags|hasInvalidate, e.imm
	}
	q.finishReceive(&c)
	return good
}

// atomicLen is the number of bytes of an atomic operation.
const atomicLen = 8

// atomic executes an atomic operation. It is atomic with regard to other requests, but not to the
// programs' own instructions.
func (q *QP) atomic(r *request) verdict {
	e := r.entry
	if !q.target(&e.remote, atomicLen, e.op.right()) {
		return wrong(faultAccess)
	}
	if e.remote.addr%atomicLen != 0 {
		return wrong(faultInvalid)
	}
	var old [atomicLen]byte
	if v := q.swap(r, &old); v != good || e.op == OpAtomicWrite {
		return v
	}
	if scatter(old[:], r.local) != nil {
		return unsendable
	}
	return good
}

func (q *QP) swap(r *request, old *[atomicLen]byte) verdict {
	e := r.entry
	// Slow memory, for example of a file or of userfaultfd, is loaded before the lock is taken.
	if err := gather(old[:], &q.recv.pieces); err != nil {
		err.reading = false // the responder's memory was read, not the requester's
		return judge(err, faultAccess)
	}
	if !r.short {
		q.fabric.atomics.Lock()
	} else if !q.fabric.atomics.TryLock() {
		return occupied
	}
	defer q.fabric.atomics.Unlock()
	if err := gather(old[:], &q.recv.pieces); err != nil {
		err.reading = false
		return judge(err, faultAccess)
	}
	v := binary.LittleEndian.Uint64(old[:])
	switch {
	case e.op == OpAtomicWrite:
		v = binary.LittleEndian.Uint64(e.inline)
	case e.op == OpFetchAdd:
		v += e.remote.compare
	case v != e.remote.compare:
		return good
	default:
		v = e.remote.swap
	}
	var b [atomicLen]byte
	binary.LittleEndian.PutUint64(b[:], v)
	return judge(scatter(b[:], &q.recv.pieces), faultAccess)
}
