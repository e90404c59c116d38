package rxe

import (
	"sync"
	"sync/atomic"

	"viaduct/cmd/viaduct/internal/rdma/abi"
)

// A Config holds the parameters of a new queue pair.
type Config struct {
	Type           Type
	SignalAll      bool
	Limits         Limits
	Port           *Port
	Arena          Arena
	Memory         Memory
	Space          *Space
	SendCQ, RecvCQ *CQ
	SRQ            *SRQ // nil gives the queue pair its own receive queue
	// Event sends the program an asynchronous event. It may be called with the lock of a side held.
	// It is not called after Close has returned.
	Event func(abi.AsyncType)
	// Explain, if not nil, is called with a line about each connection and each failed request.
	Explain func(format string, args ...any)
	// Tell, if not nil, is called with a line for the user if the program's error does not show the
	// remedy.
	Tell func(line string)
}

// A QP is a queue pair.
type QP struct {
	fabric    *Fabric
	num       uint32
	typ       Type
	signalAll bool
	limits    Limits
	port      *Port
	memory    Memory
	space     *Space
	scq, rcq  *CQ
	srq       *SRQ
	event     func(abi.AsyncType)
	explain   func(format string, args ...any)
	tell      func(line string)

	changing sync.Mutex // held during a change of state with its effects; before all other locks
	link     atomic.Pointer[link]
	udLinks  atomic.Pointer[map[GID]*udLink]

	toldUnsent bool // guarded by sendSide.mu

	groups map[GID]bool // guarded by Fabric.mu; the joined groups

	mu    sync.Mutex                 // held while attrs is replaced
	attrs atomic.Pointer[Attributes] // read without a lock

	drain atomic.Uint32 // a drainState
	calls atomic.Int64  // doorbells since the send queue was last empty; not 0 while a goroutine works on it
	send  sendSide
	recv  recvSide

	sent, received atomic.Uint64 // bytes of payload
}

// A recvSide is the state of the responder.
type recvSide struct {
	mu     sync.Mutex
	closed bool      // guarded by mu
	ring   ring      // guarded by mu; without memory if there is an SRQ
	entry  recvEntry // guarded by mu
	held   bool      // guarded by mu; entry is a receive that was taken and is not complete
	pieces pieces    // guarded by mu; memory of the request in progress
}

// NewQP creates a queue pair in the state Reset. The error is ErrInvalid or ErrMemory.
func (f *Fabric) NewQP(c Config) (*QP, error) {
	l := c.Limits
	switch {
	case c.Type < RC || c.Type > UD,
		l.SendWR > MaxWR, c.SRQ == nil && l.RecvWR > MaxWR, l.SendSGE > MaxSGE, l.RecvSGE > MaxSGE,
		l.Inline > MaxInline:
		return nil, ErrInvalid
	}
	q := &QP{fabric: f, typ: c.Type, signalAll: c.SignalAll, port: c.Port, memory: c.Memory, space: c.Space,
		scq: c.SendCQ, rcq: c.RecvCQ, srq: c.SRQ, event: c.Event, explain: c.Explain, tell: c.Tell}
	if q.explain == nil {
		q.explain = func(string, ...any) {}
	}
	if q.tell == nil {
		q.tell = func(string) {}
	}
	q.attrs.Store(&Attributes{})
	// Elements and inline data share the same bytes of an entry, so the program may use all bytes
	// for either.
	room := (max(l.SendSGE*sgeLen, l.Inline, sgeLen) + sgeLen - 1) / sgeLen * sgeLen
	l.SendSGE, l.Inline = room/sgeLen, room
	var err error
	if q.send.ring, err = newRing(c.Arena, max(l.SendWR, 1), sendHeadLen+int(room)); err != nil {
		return nil, ErrMemory
	}
	l.SendWR = q.send.ring.mask
	if q.srq == nil {
		if q.recv.ring, err = newRing(c.Arena, max(l.RecvWR, 1), recvHeadLen+sgeLen*int(max(l.RecvSGE, 1))); err != nil {
			q.send.ring.drop()
			return nil, ErrMemory
		}
		l.RecvWR = q.recv.ring.mask
	}
	q.limits = l
	if !f.add(q) {
		q.send.ring.drop()
		q.recv.ring.drop()
		return nil, ErrMemory
	}
	return q, nil
}

// Num returns the queue pair number.
func (q *QP) Num() uint32 { return q.num }

// Type returns the type.
func (q *QP) Type() Type { return q.typ }

// Describe returns the actual limits, and the descriptions of the rings. It takes no lock, and must
// be called before the program can use the queue pair.
func (q *QP) Describe() (l Limits, recv, send abi.Body) {
	return q.limits, q.recv.ring.info(), q.send.ring.info()
}

// Query returns the response of query_qp.
func (q *QP) Query() abi.Body {
	const drainingAt = 112
	b := q.attrs.Load().put(q.limits, q.signalAll)
	if q.draining() {
		b.Put8(drainingAt, 1)
	}
	return b
}

// Attributes returns the current attributes.
func (q *QP) Attributes() Attributes { return *q.attrs.Load() }

// Passed returns the number of sent and of received bytes of payload.
func (q *QP) Passed() (sent, received uint64) { return q.sent.Load(), q.received.Load() }

// Modify changes attributes and state. The error is ErrInvalid; nothing has changed then. If slow
// is true, the caller must call Settle. Settle may wait for a copy to end.
func (q *QP) Modify(c Change) (slow bool, err error) {
	q.changing.Lock()
	defer q.changing.Unlock()
	old, a, err := q.change(&c)
	if err != nil {
		return false, err
	}
	q.joinWire(old, a)
	if old.State == a.State {
		return false, nil
	}
	switch a.State {
	case abi.RTR:
		if q.typ != UD {
			q.explain("queue pair %d: ready to receive from queue pair %d at %v", q.num, a.DestQP, a.Path.DGID)
		}
		if p := q.fabric.QP(a.DestQP); p != nil && q.typ != UD {
			go p.kick(false) // p may have waited for this state
		}
	case abi.RTS:
		if old.State == abi.SQD {
			go q.kick(false)
		}
	case abi.SQD:
		go q.kick(false) // finds out when the queue is drained
	case abi.Reset, abi.Err:
		return true, nil
	}
	return false, nil
}

// change applies a change to the attributes, and returns the old and the new attributes.
func (q *QP) change(c *Change) (old, now *Attributes, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	old = q.attrs.Load()
	if c.Mask&MaskCurState != 0 && c.CurState != old.State {
		return nil, nil, ErrInvalid
	}
	to := old.State
	if c.Mask&MaskState != 0 {
		to = c.State
	}
	if to > abi.Err || !mayChange(q.typ, change{old.State, to}, c.Mask) || !c.allowed(q.port) {
		return nil, nil, ErrInvalid
	}
	a := c.apply(*old)
	if to == abi.SQD && old.State != to {
		q.startDraining(c.Mask&MaskDrainNotify != 0)
	}
	q.attrs.Store(&a)
	return old, &a, nil
}

// fail moves the queue pair to the error state, and starts to flush posted requests and receives.
// It does nothing in the states Err and Reset.
func (q *QP) fail() {
	q.mu.Lock()
	old := q.attrs.Load()
	again := old.State == abi.Err || old.State == abi.Reset
	if !again {
		a := *old
		a.State = abi.Err
		q.attrs.Store(&a)
	}
	q.mu.Unlock()
	if !again {
		go q.flush()
	}
}

// Settle completes a change to the error or reset state. In the error state, Settle flushes both
// queues, the send queue first; in the reset state, Settle empties both.
func (q *QP) Settle() {
	switch q.attrs.Load().State {
	case abi.Err:
		q.flush()
	case abi.Reset:
		q.changing.Lock()
		if q.attrs.Load().State == abi.Reset {
			q.leaveWire()
		}
		q.changing.Unlock()
		q.send.mu.Lock()
		q.send.empty()
		q.send.mu.Unlock()
		q.recv.mu.Lock()
		q.recv.held = false
		if q.recv.ring.mem != nil {
			q.recv.ring.reset()
		}
		q.recv.mu.Unlock()
	}
}

// flush completes all posted requests, and then all posted receives, while the queue pair is in the
// error state. The program may reset the queue pair in between; later entries are not flushed.
func (q *QP) flush() {
	if l := q.link.Load(); l != nil {
		l.pair.Fail()
		q.kick(false) // flushes entries that were not posted to the link yet
	}
	q.flushSends()
	q.flushReceives()
	q.recv.mu.Lock()
	if q.srq != nil && !q.recv.closed && q.failed() {
		q.event(abi.AsyncQPLastWQE)
	}
	q.recv.mu.Unlock()
}

// failed reports whether the queue pair is in the error state.
func (q *QP) failed() bool { return q.attrs.Load().State == abi.Err }

// flushReceives completes the posted receives. Receives of an SRQ stay there, except for a receive
// already taken.
func (q *QP) flushReceives() {
	r := &q.recv
	r.mu.Lock()
	defer r.mu.Unlock()
	for range r.ring.mask + 1 {
		if !q.failed() {
			return
		}
		if r.closed || !r.held && (q.srq != nil || !q.takeOwn()) {
			return
		}
		q.finishReceive(&completion{kind: doneRecv, status: Flushed})
	}
}

// takeReceive takes the next receive for the request in progress, unless a receive is already held.
// It returns false if none is posted. recv.mu is locked.
func (q *QP) takeReceive() bool {
	if q.recv.held {
		return true
	}
	if q.srq == nil {
		return q.takeOwn()
	}
	q.recv.held = q.srq.take(&q.recv.entry)
	return q.recv.held
}

func (q *QP) takeOwn() bool {
	r := &q.recv
	if r.ring.mem == nil || r.ring.waiting() == 0 {
		return false
	}
	r.entry.take(r.ring.slot(r.ring.at))
	r.ring.pop()
	r.held = true
	return true
}

// finishReceive completes the held receive with c. recv.mu is locked.
func (q *QP) finishReceive(c *completion) {
	q.recv.held = false
	c.id, c.qp = q.recv.entry.id, q.num
	q.rcq.push(c)
}

// Busy reports whether the queue pair cannot be closed because of membership in a multicast group.
func (q *QP) Busy() bool { return q.fabric.attached(q) }

// Close destroys the queue pair. It waits for copies in progress. After Close returns, nothing is
// written to the queues.
func (q *QP) Close() {
	q.fabric.remove(q)
	q.mu.Lock()
	q.attrs.Store(&Attributes{})
	q.mu.Unlock()
	q.send.close()
	q.recv.mu.Lock()
	q.recv.closed = true
	q.recv.ring.drop()
	q.recv.mu.Unlock()
	q.changing.Lock()
	defer q.changing.Unlock()
	q.leaveWire()
}
