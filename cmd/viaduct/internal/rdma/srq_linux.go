//go:build linux && (amd64 || arm64)

package rdma

import (
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
)

// A sharedQueue is a receive queue that several queue pairs share.
type sharedQueue struct {
	x          *context
	userHandle uint64
	async      notifier
	pd         *domain
	maxWR      uint32
	maxSGE     uint32
	users      int // guarded by context.mu

	mu    sync.Mutex
	ring  recvRing // guarded by mu
	limit uint32   // guarded by mu; 0 means not armed
	gone  bool     // guarded by mu
}

func (k *command) createSRQ() {
	x := k.x
	r := abi.ParseCreateSRQ(k.Body)
	if r.WR == 0 || r.WR > maxSRQWR || r.SGE > abi.MaxSGE || r.Limit > r.WR {
		k.fail(unix.EINVAL)
		return
	}
	ring, err := newRing(x.arena, r.WR, abi.RQELen)
	if err != nil {
		k.fail(unix.ENOMEM)
		return
	}
	x.mu.Lock()
	pd := x.pds.m[r.PD]
	if pd == nil {
		x.mu.Unlock()
		x.arena.drop(ring.mem, ring.key)
		k.fail(unix.EINVAL)
		return
	}
	pd.users++
	s := &sharedQueue{x: x, userHandle: r.UserHandle, pd: pd, maxWR: r.WR, maxSGE: r.SGE,
		ring: recvRing{ring}, limit: r.Limit}
	s.async.ch = x.async
	h, ok := x.srqs.add(s)
	x.mu.Unlock()
	if !ok {
		s.destroy()
		k.fail(unix.ENOMEM)
		return
	}
	d := make(abi.Body, 16)
	d.Put32(0, ring.n)
	d.Put64(8, uint64(ring.key))
	if !k.answer(abi.Words(h, r.WR, r.SGE, h), d) {
		x.mu.Lock()
		x.srqs.remove(h)
		x.mu.Unlock()
		s.destroy()
	}
}

// take takes the next receive, and sends the program an event if fewer than limit are left. It
// returns false if there is none.
func (s *sharedQueue) take(e *[abi.RQELen]byte) bool {
	s.mu.Lock()
	low := false
	ok := !s.gone && s.ring.take(e)
	if ok && s.limit > 0 {
		// Entries are valid in order, so that a single look shows whether at least limit entries
		// are left.
		if atomic.LoadUint32(word(s.ring.slot(s.ring.at+s.limit-1)))&abi.Valid == 0 {
			low, s.limit = true, 0
		}
	}
	s.mu.Unlock()
	if low {
		s.async.raise(s.userHandle, abi.AsyncSRQLimit)
	}
	return ok
}

func (s *sharedQueue) destroy() {
	s.mu.Lock()
	if s.gone {
		s.mu.Unlock()
		return
	}
	s.gone = true
	s.x.arena.drop(s.ring.mem, s.ring.key)
	s.mu.Unlock()
	s.x.mu.Lock()
	s.pd.users--
	s.x.mu.Unlock()
}

// srq returns the queue with a handle, or nil.
func (x *context) srq(h uint32) *sharedQueue {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.srqs.m[h]
}

func (k *command) modifySRQ() {
	s := k.x.srq(k.Body.U32(0))
	mask, limit := k.Body.U32(4), k.Body.U32(12)
	switch {
	case s == nil, mask&^(abi.SRQMaxWR|abi.SRQLimit) != 0:
		k.fail(unix.EINVAL)
		return
	case mask&abi.SRQMaxWR != 0: // siw cannot do that either
		k.fail(unix.EOPNOTSUPP)
		return
	case mask&abi.SRQLimit != 0:
		if limit > s.maxWR {
			k.fail(unix.EINVAL)
			return
		}
		s.mu.Lock()
		s.limit = limit
		s.mu.Unlock()
	}
	k.answer()
}

func (k *command) querySRQ() {
	s := k.x.srq(k.Body.U32(8))
	if s == nil {
		k.fail(unix.EINVAL)
		return
	}
	s.mu.Lock()
	limit := s.limit
	s.mu.Unlock()
	k.answer(abi.Words(s.maxWR, s.maxSGE, limit, 0))
}

func (k *command) destroySRQ() {
	x := k.x
	h := k.Body.U32(8)
	x.mu.Lock()
	s := x.srqs.m[h]
	if s == nil || s.users > 0 {
		x.mu.Unlock()
		e := unix.ENOENT
		if s != nil {
			e = unix.EBUSY
		}
		k.fail(e)
		return
	}
	x.srqs.remove(h)
	x.mu.Unlock()
	s.destroy()
	k.answer(abi.Words(s.async.retire()))
}
