//go:build linux && (amd64 || arm64)

package rdma

import (
	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
	"viaduct/cmd/viaduct/internal/rdma/rxe"
)

// An rxeSRQ is a shared receive queue of a RoCE device.
type rxeSRQ struct {
	*rxe.SRQ
	async notifier
	pd    *domain
	users int // guarded by context.mu; number of queue pairs that use the queue
}

func (k *command) rxeCreateSRQ() { k.rxeMakeSRQ(abi.ParseCreateSRQ(k.Body)) }

func (k *command) rxeCreateXSRQ() {
	r, more := abi.ParseCreateXSRQ(k.Body)
	if more {
		k.x.s.explain("a program asks %s for a shared receive queue of XRC or tag matching, which the rxe provider does not have", k.x.dev.found.Name)
		k.fail(unix.EOPNOTSUPP)
		return
	}
	k.rxeMakeSRQ(r)
}

func (k *command) rxeMakeSRQ(r abi.SRQRequest) {
	x := k.x
	q := &rxeSRQ{}
	x.mu.Lock()
	q.pd, q.async.ch = x.pds.m[r.PD], x.async
	if q.pd != nil {
		q.pd.users++
	}
	x.mu.Unlock()
	if q.pd == nil {
		k.fail(unix.EINVAL)
		return
	}
	var err error
	q.SRQ, err = rxe.NewSRQ(rxeRings{x.arena}, rxe.SRQLimits{WR: r.WR, SGE: r.SGE, Limit: r.Limit},
		func() { q.async.raise(r.UserHandle, abi.AsyncSRQLimit) })
	if err != nil {
		x.mu.Lock()
		q.pd.users--
		x.mu.Unlock()
		k.fail(rxeErrno(err))
		return
	}
	x.mu.Lock()
	h, ok := x.roce.srqs.add(q)
	x.mu.Unlock()
	if !ok {
		q.destroy(x)
		k.fail(unix.ENOMEM)
		return
	}
	l, info := q.Describe()
	if !k.answer(abi.Words(h, l.WR, l.SGE, h), info, abi.Words(h, 0)) {
		x.mu.Lock()
		x.roce.srqs.remove(h)
		x.mu.Unlock()
		q.destroy(x)
	}
}

func (q *rxeSRQ) destroy(x *context) {
	q.Close()
	x.mu.Lock()
	q.pd.users--
	x.mu.Unlock()
}

func (k *command) rxeModifySRQ() {
	q, ok := rxeObject(k.x, &k.x.roce.srqs, k.Body.U32(0))
	mask, wr, limit := k.Body.U32(4), k.Body.U32(8), k.Body.U32(12)
	if !ok || mask&^(abi.SRQMaxWR|abi.SRQLimit) != 0 {
		k.fail(unix.EINVAL)
		return
	}
	if mask == abi.SRQMaxWR|abi.SRQLimit && limit > wr { // checked before any change
		k.fail(unix.EINVAL)
		return
	}
	if mask&abi.SRQMaxWR != 0 {
		written := true
		err := q.Resize(wr, func(info abi.Body) bool {
			_, err := k.WriteMem(k.Driver.U64(0), info)
			written = err == nil
			return written
		})
		switch {
		case err != nil:
			k.fail(rxeErrno(err))
			return
		case !written:
			k.fail(unix.EFAULT)
			return
		}
	}
	if mask&abi.SRQLimit != 0 {
		if err := q.Arm(limit); err != nil {
			k.fail(rxeErrno(err))
			return
		}
	}
	k.answer()
}

func (k *command) rxeQuerySRQ() {
	q, ok := rxeObject(k.x, &k.x.roce.srqs, k.Body.U32(8))
	if !ok {
		k.fail(unix.EINVAL)
		return
	}
	l, _ := q.Describe()
	k.answer(abi.Words(l.WR, l.SGE, l.Limit, 0))
}

func (k *command) rxeDestroySRQ() {
	q, ok := rxeTake(k, &k.x.roce.srqs, k.Body.U32(8), func(q *rxeSRQ) bool { return q.users > 0 })
	if !ok {
		return
	}
	q.destroy(k.x)
	k.answer(abi.Words(q.async.retire()))
}
