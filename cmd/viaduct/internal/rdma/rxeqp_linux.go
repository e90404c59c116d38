//go:build linux && (amd64 || arm64)

package rdma

import (
	"sync/atomic"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
	"viaduct/cmd/viaduct/internal/rdma/rxe"
)

// An rxeQP is a queue pair of a RoCE device.
type rxeQP struct {
	*rxe.QP
	x        *context
	async    notifier
	at       int // the descriptor through which it was created
	pd       *domain
	scq, rcq *rxeCQ
	srq      *rxeSRQ // nil: the queue pair has its own receive queue

	shown atomic.Bool // the queue pair is listed in "viaduct ps"
}

func (k *command) rxeCreateQP() {
	k.rxeMakeQP(abi.ParseCreateQP(k.Body), nil)
}

func (k *command) rxeCreateQPEx() {
	r, more := abi.ParseCreateQPEx(k.Body)
	if more {
		k.fail(unix.EOPNOTSUPP)
		return
	}
	const coreLen = 40
	k.rxeMakeQP(r, abi.Words(0, coreLen+2*rxe.RingInfoLen))
}

// rxeMakeQP creates a queue pair. rest, which may be nil, ends the part of the answer that is for
// libibverbs itself.
func (k *command) rxeMakeQP(r abi.QPRequest, rest abi.Body) {
	x := k.x
	switch rxe.Type(r.Type) {
	case rxe.RC, rxe.UC, rxe.UD:
	default:
		k.lacks(queuePairLacks[r.Type])
		k.fail(unix.EOPNOTSUPP)
		return
	}
	q := &rxeQP{x: x, at: int(int32(k.Args[0]))}
	x.mu.Lock()
	q.pd, q.scq, q.rcq, q.async.ch = x.pds.m[r.PD], x.roce.cqs.m[r.SendCQ], x.roce.cqs.m[r.RecvCQ], x.async
	if r.IsSRQ {
		q.srq = x.roce.srqs.m[r.SRQ]
	}
	if q.pd == nil || q.scq == nil || q.rcq == nil || r.IsSRQ && q.srq == nil {
		x.mu.Unlock()
		k.fail(unix.EINVAL)
		return
	}
	q.countUsersLocked(1)
	x.mu.Unlock()

	c := rxe.Config{
		Type: rxe.Type(r.Type), SignalAll: r.SignalAll,
		Limits: rxe.Limits{SendWR: r.SendWR, RecvWR: r.RecvWR, SendSGE: r.SendSGE, RecvSGE: r.RecvSGE,
			Inline: r.Inline},
		Port: x.dev.port, Arena: rxeRings{x.arena}, Memory: domainMemory{x, q.pd}, Space: x.roce.space,
		SendCQ: q.scq.CQ, RecvCQ: q.rcq.CQ,
		Event:   func(t abi.AsyncType) { q.async.raise(r.UserHandle, t) },
		Explain: x.s.explain,
		Tell:    func(line string) { x.s.tellOnce(line, "%s", line) },
	}
	if q.srq != nil {
		c.SRQ = q.srq.SRQ
	}
	var err error
	if q.QP, err = x.s.roce.NewQP(c); err != nil {
		x.mu.Lock()
		q.countUsersLocked(-1)
		x.mu.Unlock()
		k.fail(rxeErrno(err))
		return
	}
	x.mu.Lock()
	h, ok := x.roce.qps.add(q)
	x.mu.Unlock()
	if !ok {
		q.destroy()
		k.fail(unix.ENOMEM)
		return
	}
	l, recv, send := q.Describe()
	core := abi.Words(h, q.Num(), l.SendWR, l.RecvWR, l.SendSGE, l.RecvSGE, l.Inline, 0)
	if !k.answer(append(core, rest...), append(recv, send...)) {
		x.mu.Lock()
		x.roce.qps.remove(h)
		x.mu.Unlock()
		q.destroy()
	}
}

// countUsersLocked adds n to the use counts of the objects the queue pair uses. The caller holds
// context.mu.
func (q *rxeQP) countUsersLocked(n int) {
	q.pd.users += n
	q.scq.users += n
	q.rcq.users += n
	if q.srq != nil {
		q.srq.users += n
	}
}

// destroy closes the queue pair. It waits for copies in progress.
func (q *rxeQP) destroy() {
	q.Close()
	q.x.mu.Lock()
	q.countUsersLocked(-1)
	q.x.mu.Unlock()
}

func (k *command) rxeQP(at int) (*rxeQP, bool) {
	q, ok := rxeObject(k.x, &k.x.roce.qps, k.Body.U32(at))
	if !ok {
		k.fail(unix.EINVAL)
	}
	return q, ok
}

func (k *command) rxeQueryQP() {
	if q, ok := k.rxeQP(8); ok {
		k.answer(q.Query())
	}
}

func (k *command) rxeModifyQP() {
	q, ok := k.rxeQP(64)
	if !ok {
		return
	}
	c := rxe.ParseChange(k.Body)
	if c.Mask&^abi.QPStandardBits != 0 {
		k.fail(unix.EOPNOTSUPP)
		return
	}
	slow, err := q.Modify(c)
	q.show()
	switch {
	case err != nil:
		k.fail(rxeErrno(err))
	case slow:
		k.x.repeats.begin(k.Call, k.raw)
		k.x.later.Go(func() { // Settle may wait for a copy
			q.Settle()
			k.answer()
		})
	default:
		k.answer()
	}
}

// rxePostSend answers before it executes the requests, so that the program continues meanwhile. It
// executes a brief request first: the kernel wakes the program on the processor of this thread, and
// a program that polls for the completion would take the processor from the request.
func (k *command) rxePostSend() {
	q, ok := k.rxeQP(8)
	if !ok {
		return
	}
	if !q.Ready() {
		k.fail(unix.EINVAL)
		return
	}
	if q.Brief() {
		q.Doorbell()
		k.Return(k.count, 0)
		return
	}
	k.Return(k.count, 0)
	q.Doorbell()
}

func (k *command) rxeDestroyQP() {
	q, ok := rxeTake(k, &k.x.roce.qps, k.Body.U32(8), func(q *rxeQP) bool { return q.Busy() })
	if !ok {
		return
	}
	k.x.repeats.begin(k.Call, k.raw)
	k.x.later.Go(func() {
		q.destroy()
		k.answer(abi.Words(q.async.retire()))
	})
}

func (k *command) rxeAttachMcast() { k.rxeMcast((*rxe.Fabric).Attach) }
func (k *command) rxeDetachMcast() { k.rxeMcast((*rxe.Fabric).Detach) }

func (k *command) rxeMcast(do func(*rxe.Fabric, *rxe.QP, rxe.GID) error) {
	q, ok := k.rxeQP(16)
	if !ok {
		return
	}
	if err := do(k.x.s.roce, q.QP, rxe.GID(k.Body.Bytes(0, 16))); err != nil {
		k.fail(rxeErrno(err))
		return
	}
	k.answer()
}
