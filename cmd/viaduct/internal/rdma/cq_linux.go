//go:build linux && (amd64 || arm64)

package rdma

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
)

// A completionQueue is a ring of completions. This process fills the ring, and the program empties
// the ring without system calls.
type completionQueue struct {
	x          *context
	userHandle uint64
	events     notifier // completion events; has no channel if the program only polls
	async      notifier
	key        int64
	users      int // guarded by context.mu; number of work queues that use it

	mu      sync.Mutex
	mem     []byte // guarded by mu; nil once destroyed
	n       uint32
	at      uint32 // guarded by mu; the next entry to fill
	overrun bool   // guarded by mu
}

func (k *command) createCQ() {
	x := k.x
	q := abi.ParseCreateCQ(k.Body)
	if q.Entries == 0 || q.Entries > maxCQE || q.Vector >= compVectors {
		k.fail(unix.EINVAL)
		return
	}
	cq := &completionQueue{x: x, userHandle: q.UserHandle, n: 1}
	if q.Channel >= 0 {
		if cq.events.ch = x.channel(k.Call, q.Channel); cq.events.ch == nil {
			k.fail(unix.EINVAL)
			return
		}
	}
	for cq.n < q.Entries {
		cq.n *= 2
	}
	var err error
	if cq.mem, cq.key, err = x.arena.ring(int(cq.n)*abi.CQELen + abi.CQCtrlLen); err != nil {
		k.fail(unix.ENOMEM)
		return
	}
	x.mu.Lock()
	cq.async.ch = x.async
	h, ok := x.cqs.add(cq)
	x.mu.Unlock()
	if !ok {
		cq.destroy()
		k.fail(unix.ENOMEM)
		return
	}
	d := make(abi.Body, 16)
	d.Put32(0, h)
	d.Put32(4, cq.n)
	d.Put64(8, uint64(cq.key))
	if !k.answer(abi.Words(h, q.Entries), d) {
		x.mu.Lock()
		x.cqs.remove(h)
		x.mu.Unlock()
		cq.destroy()
	}
}

// control returns the word where the program requests events.
func (q *completionQueue) control() *uint32 {
	return (*uint32)(unsafe.Pointer(&q.mem[int(q.n)*abi.CQELen]))
}

// push makes completions visible to the program, and sends an event if requested by the program.
// Without room, completions are dropped, and an asynchronous event reports the first loss. After
// destroy, push does nothing.
func (q *completionQueue) push(cs ...abi.Completion) {
	q.mu.Lock()
	if q.mem == nil {
		q.mu.Unlock()
		return
	}
	solicited, overrun := false, false
	for i := range cs {
		c := &cs[i]
		slot := q.mem[int(q.at%q.n)*abi.CQELen:][:abi.CQELen]
		if atomic.LoadUint32(word(slot))&abi.Valid != 0 { // the program has not read this entry yet: overflow
			overrun, q.overrun = !q.overrun, true
			break
		}
		atomic.StoreUint32(word(slot), c.Put(slot))
		q.at++
		solicited = solicited || c.Solicited || c.Status != abi.WCSuccess
	}
	// The entries become visible before the control word is read. The program, in turn, writes the
	// word before looking for entries. So at least one side sees the other's write.
	asked := atomic.LoadUint32(q.control())
	if asked&abi.NotifyNext != 0 || asked&abi.NotifySolicited != 0 && solicited {
		atomic.StoreUint32(q.control(), 0)
		if q.events.ch != nil {
			e := make(abi.Body, 8)
			e.Put64(0, q.userHandle)
			q.events.send(e)
		}
	}
	q.mu.Unlock()
	if overrun {
		q.async.raise(q.userHandle, abi.AsyncCQError)
	}
}

// destroy frees the memory. It returns how many completion events and how many asynchronous events
// the program has read. A second call returns zeros.
func (q *completionQueue) destroy() (completions, async uint32) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.mem == nil {
		return 0, 0
	}
	q.x.arena.drop(q.mem, q.key)
	q.mem = nil
	return q.events.retire(), q.async.retire()
}

func (k *command) destroyCQ() {
	x := k.x
	h := k.Body.U32(8)
	x.mu.Lock()
	q := x.cqs.m[h]
	if q == nil || q.users > 0 {
		x.mu.Unlock()
		e := unix.ENOENT
		if q != nil {
			e = unix.EBUSY
		}
		k.fail(e)
		return
	}
	x.cqs.remove(h)
	x.mu.Unlock()
	k.answer(abi.Words(q.destroy()))
}
