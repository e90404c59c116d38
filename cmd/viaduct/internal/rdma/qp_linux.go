//go:build linux && (amd64 || arm64)

package rdma

import (
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
	"viaduct/iwarp"
)

// A queuePair is the program's queue pair. Before a connection, a queuePair is a pair of rings and
// a state. Once the queuePair is connected, an engine moves entries between rings and stream.
type queuePair struct {
	x          *context
	userHandle uint64
	async      notifier
	num        uint32
	at         int // descriptor through which it was created
	pd         *domain
	scq, rcq   *completionQueue
	srq        *sharedQueue // nil: the queue pair has its own receive queue
	req        abi.QPRequest
	doorbell   chan struct{} // holds one signal
	rung       atomic.Uint64 // doorbells of the program
	passed     passed

	recv receiver
	sq   sendRing // owned by the engine while that runs, otherwise guarded by mu

	mu        sync.Mutex
	state     abi.State // guarded by mu
	access    uint32    // guarded by mu
	engine    *engine   // guarded by mu; nil before the connection
	destroyed bool      // guarded by mu
}

func (k *command) createQP() {
	x := k.x
	r := abi.ParseCreateQP(k.Body)
	switch {
	case r.Type != abi.TypeRC:
		k.lacks(queuePairLacks[r.Type])
		k.fail(unix.EOPNOTSUPP)
		return
	case r.SendWR > maxQPWR, r.RecvWR > maxQPWR, r.SendSGE > abi.MaxSGE, r.RecvSGE > abi.MaxSGE,
		r.Inline > abi.MaxInline:
		k.fail(unix.EINVAL)
		return
	}
	q := &queuePair{x: x, userHandle: r.UserHandle, at: int(int32(k.Args[0])), req: r, doorbell: make(chan struct{}, 1)}
	x.mu.Lock()
	q.pd, q.scq, q.rcq = x.pds.m[r.PD], x.cqs.m[r.SendCQ], x.cqs.m[r.RecvCQ]
	if r.IsSRQ {
		q.srq = x.srqs.m[r.SRQ]
	}
	if q.pd == nil || q.scq == nil || q.rcq == nil || r.IsSRQ && q.srq == nil {
		x.mu.Unlock()
		k.fail(unix.EINVAL)
		return
	}
	q.async.ch = x.async
	q.countUsersLocked(1)
	x.mu.Unlock()

	var err error
	// One entry more than requested, because the last taken entry stays valid.
	if q.sq.ring, err = newRing(x.arena, max(r.SendWR, 1)+1, abi.SQELen); err == nil && q.srq == nil {
		if q.recv.ring.ring, err = newRing(x.arena, max(r.RecvWR, 1), abi.RQELen); err != nil {
			x.arena.drop(q.sq.mem, q.sq.key)
		}
	}
	if err != nil {
		x.mu.Lock()
		q.countUsersLocked(-1)
		x.mu.Unlock()
		k.fail(unix.ENOMEM)
		return
	}
	q.recv.q = q
	q.num = x.dev.addQP(q)
	x.mu.Lock()
	h, ok := x.qps.add(q)
	x.mu.Unlock()
	if !ok {
		q.destroy()
		k.fail(unix.ENOMEM)
		return
	}
	d := make(abi.Body, 32)
	d.Put32(0, q.num)
	d.Put32(4, q.sq.n)
	d.Put32(8, q.recv.ring.n)
	d.Put64(16, uint64(q.sq.key))
	d.Put64(24, uint64(q.recv.ring.key))
	if q.srq != nil {
		d.Put64(24, ^uint64(0)) // the queue pair has no receive ring of its own
	}
	if !k.answer(abi.Words(h, q.num, r.SendWR, r.RecvWR, r.SendSGE, r.RecvSGE, abi.MaxInline, 0), d) {
		x.mu.Lock()
		x.qps.remove(h)
		x.mu.Unlock()
		q.destroy()
	}
}

// countUsersLocked adds n to the use counts of the objects the queue pair uses. The caller holds
// context.mu.
func (q *queuePair) countUsersLocked(n int) {
	q.pd.users += n
	q.scq.users += n
	q.rcq.users += n
	if q.srq != nil {
		q.srq.users += n
	}
}

func (d *device) addQP(q *queuePair) uint32 {
	d.mu.Lock()
	defer d.mu.Unlock()
	for {
		n := d.nextQP
		if d.nextQP = (d.nextQP + 1) & 0xffffff; d.nextQP == 0 {
			d.nextQP = 2
		}
		if d.qps[n] == nil {
			d.qps[n] = q
			return n
		}
	}
}

// qp returns the queue pair with a number, or nil.
func (d *device) qp(num uint32) *queuePair {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.qps[num]
}

func (x *context) qp(h uint32) *queuePair {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.qps.m[h]
}

func (k *command) postSend() {
	q := k.x.qp(k.Body.U32(8))
	if q == nil {
		k.fail(unix.EINVAL)
		return
	}
	q.rung.Add(1)
	q.mu.Lock()
	e, state := q.engine, q.state
	if e == nil && state == abi.Err && !q.destroyed {
		q.flushSendsLocked()
	}
	q.mu.Unlock()
	switch {
	case e != nil:
		select {
		case q.doorbell <- struct{}{}:
		default:
		}
	case state != abi.Err:
		k.fail(unix.ENOTCONN)
		return
	}
	k.answer(abi.Words(0))
}

func (k *command) queryQP() {
	q := k.x.qp(k.Body.U32(8))
	if q == nil {
		k.fail(unix.EINVAL)
		return
	}
	q.mu.Lock()
	state, access := q.state, q.access
	q.mu.Unlock()
	b := make(abi.Body, abi.QueryQPLen)
	for i, v := range []uint32{q.req.SendWR, q.req.RecvWR, q.req.SendSGE, q.req.RecvSGE, abi.MaxInline} {
		b.Put32(64+4*i, v)
	}
	b.Put32(100, access)
	if state == abi.Reset { // an iWARP queue pair can receive from the start, and reports that
		state = abi.Init
	}
	b.Put8(108, uint8(state))
	b.Put8(109, uint8(state))
	b.Put8(110, 5)
	b.Put8(116, 1)
	k.answer(b)
}

func (k *command) modifyQP() {
	m := abi.ParseModifyQP(k.Body)
	q := k.x.qp(m.QP)
	switch {
	case q == nil, m.Mask&abi.QPState != 0 && m.State > abi.Err:
		k.fail(unix.EINVAL)
		return
	case m.Mask&^abi.QPStandardBits != 0:
		k.fail(unix.EOPNOTSUPP)
		return
	}
	if m.Mask&(abi.QPAddress|abi.QPDestination) != 0 {
		k.lacks(lacksConnector)
	}
	q.mu.Lock()
	if m.Mask&abi.QPAccessFlags != 0 {
		q.access = m.Access
	}
	q.mu.Unlock()
	if m.Mask&abi.QPState != 0 {
		q.setState(m.State)
	}
	k.answer()
}

// setState sets the state requested by the program. The connection manager controls the iWARP
// stream: of all states, only the error state affects the stream. Only Reset leads out of the error
// state.
func (q *queuePair) setState(to abi.State) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if to == abi.Err || q.state != abi.Err || to == abi.Reset {
		q.state = to
	}
	if to != abi.Err {
		return
	}
	if q.engine != nil {
		q.engine.flush()
	} else {
		q.flushLocked()
	}
}

// flushLocked completes all posted entries as flushed. The caller holds mu, and there is no engine.
func (q *queuePair) flushLocked() {
	if q.destroyed {
		return
	}
	q.flushSendsLocked()
	q.recv.flush()
}

func (q *queuePair) flushSendsLocked() {
	var raw [abi.SQELen]byte
	var e abi.SendEntry
	for range q.sq.n {
		if !q.sq.take(&raw) {
			break
		}
		abi.ParseSend(&raw, &e)
		q.scq.push(abi.Completion{ID: e.ID, Op: e.Op, Status: abi.WCFlush, QP: q.num})
	}
	q.sq.sleep()
}

// abort resets the stream, if any. It does not wait for the end of the stream.
func (q *queuePair) abort() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.engine != nil {
		q.engine.iw.Abort()
	}
}

// destroy ends the queue pair. Afterwards nothing is written to the rings, but sent data may still
// be in flight.
func (q *queuePair) destroy() {
	q.mu.Lock()
	if q.destroyed {
		q.mu.Unlock()
		return
	}
	q.destroyed = true
	e := q.engine
	q.mu.Unlock()
	if e != nil {
		e.detach()
	}
	q.recv.stop()
	q.x.arena.drop(q.sq.mem, q.sq.key)
	d := q.x.dev
	d.mu.Lock()
	delete(d.qps, q.num)
	d.mu.Unlock()
	q.x.mu.Lock()
	q.countUsersLocked(-1)
	q.x.mu.Unlock()
}

func (k *command) destroyQP() {
	x := k.x
	h := k.Body.U32(8)
	x.mu.Lock()
	q := x.qps.m[h]
	x.qps.remove(h)
	x.mu.Unlock()
	if q == nil {
		k.fail(unix.ENOENT)
		return
	}
	x.repeats.begin(k.Call, k.raw)
	x.later.Go(func() { // destroy may wait for the engine
		q.destroy()
		k.answer(abi.Words(q.async.retire()))
	})
}

// region returns the region of an element, if the queue pair may use the region and the region has
// the needed rights, otherwise nil.
func (q *queuePair) region(s *abi.SGE, need uint32) *region {
	v, ok := q.x.regions.Load(s.Key)
	if !ok {
		return nil
	}
	r := v.(*region)
	switch {
	case r.pd != q.pd, s.Addr < r.base, s.Addr-r.base > r.length, uint64(s.Length) > r.length-(s.Addr-r.base),
		r.access&need != need:
		return nil
	}
	return r
}

// gather converts an entry's list, without the empty elements. The status is WCLocProt if an
// element is not in a region with the needed rights.
func (q *queuePair) gather(to []iwarp.SGE, from []abi.SGE, need uint32) ([]iwarp.SGE, abi.WCStatus) {
	for i := range from {
		s := &from[i]
		if s.Length == 0 {
			continue
		}
		r := q.region(s, need)
		if r == nil {
			return nil, abi.WCLocProt
		}
		to = append(to, iwarp.SGE{Region: r.iw, Off: s.Addr - r.base, Len: uint64(s.Length)})
	}
	return to, abi.WCSuccess
}
