//go:build linux && (amd64 || arm64)

package rdma

import (
	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
	"viaduct/cmd/viaduct/internal/rdma/rxe"
)

// An rxeCQ is a completion queue of a RoCE device.
type rxeCQ struct {
	*rxe.CQ
	events, async notifier
	users         int // guarded by context.mu; number of send and receive queues that use it
}

func (k *command) rxeCreateCQ() {
	k.rxeMakeCQ(abi.ParseCreateCQ(k.Body), func(h, entries uint32) abi.Body { return abi.Words(h, entries) })
}

func (k *command) rxeCreateCQEx() {
	q, more := abi.ParseCreateCQEx(k.Body)
	if more {
		k.fail(unix.EOPNOTSUPP)
		return
	}
	k.rxeMakeCQ(q, func(h, entries uint32) abi.Body { return abi.Words(h, entries, 0, 16+rxe.RingInfoLen) })
}

// rxeMakeCQ creates a completion queue. response returns the part of the answer that is for
// libibverbs itself.
func (k *command) rxeMakeCQ(r abi.CQRequest, response func(h, entries uint32) abi.Body) {
	x := k.x
	if r.Vector >= compVectors {
		k.fail(unix.EINVAL)
		return
	}
	q := &rxeCQ{}
	if r.Channel >= 0 {
		if q.events.ch = x.channel(k.Call, r.Channel); q.events.ch == nil {
			k.fail(unix.EINVAL)
			return
		}
	}
	var err error
	q.CQ, err = rxe.NewCQ(rxeRings{x.arena}, r.Entries, rxe.CQEvents{
		Completed: func() {
			e := make(abi.Body, 8)
			e.Put64(0, r.UserHandle)
			q.events.send(e)
		},
		Overrun: func() { q.async.raise(r.UserHandle, abi.AsyncCQError) },
	})
	if err != nil {
		k.fail(rxeErrno(err))
		return
	}
	x.mu.Lock()
	q.async.ch = x.async
	h, ok := x.roce.cqs.add(q)
	x.mu.Unlock()
	if !ok {
		q.Close()
		k.fail(unix.ENOMEM)
		return
	}
	entries, info := q.Describe()
	if !k.answer(response(h, entries), info) {
		x.mu.Lock()
		x.roce.cqs.remove(h)
		x.mu.Unlock()
		q.Close()
	}
}

func (k *command) rxeResizeCQ() {
	q, ok := rxeObject(k.x, &k.x.roce.cqs, k.Body.U32(8))
	if !ok {
		k.fail(unix.EINVAL)
		return
	}
	err := q.Resize(k.Body.U32(12),
		func(entries uint32, info abi.Body) bool { return k.answer(abi.Words(entries, 0), info) })
	if err != nil {
		k.fail(rxeErrno(err))
	}
}

func (k *command) rxeReqNotifyCQ() {
	q, ok := rxeObject(k.x, &k.x.roce.cqs, k.Body.U32(0))
	if !ok {
		k.fail(unix.EINVAL)
		return
	}
	q.Notify(k.Body.U32(4) != 0)
	k.answer()
}

func (k *command) rxeDestroyCQ() {
	q, ok := rxeTake(k, &k.x.roce.cqs, k.Body.U32(8), func(q *rxeCQ) bool { return q.users > 0 })
	if !ok {
		return
	}
	q.Close()
	k.answer(abi.Words(q.events.retire(), q.async.retire()))
}
