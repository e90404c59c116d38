package rxe

import (
	"testing"

	"viaduct/cmd/viaduct/internal/rdma/abi"
)

// Slow memory of one program delays neither the atomic operations of others nor the goroutine that
// serves all programs.
func TestSlowAtomic(t *testing.T) {
	f := NewFabric()
	a, b := newEnd(t, f, RC, nil), newEnd(t, f, RC, nil)
	c, d := newEnd(t, f, RC, nil), newEnd(t, f, RC, nil)
	connect(a, b, nil)
	connect(c, d, nil)
	for _, e := range []*end{a, c} {
		e.memory.add(1, 8, abi.AccessLocalWrite)
	}
	const rights = abi.AccessLocalWrite | abi.AccessRemoteAtomic
	slow := b.memory.add(2, 8, rights)
	d.memory.add(2, 8, rights)
	begun, held := make(chan struct{}), make(chan struct{})
	slow.during = func() {
		slow.during = nil
		close(begun)
		<-held
	}
	add := func(e abi.Body) {
		one(1, 8, 2)(e)
		e.Put64(32, 1)
		e.Put32(48, 2)
	}
	go a.post(OpFetchAdd, 1, add)
	<-begun
	c.post(OpFetchAdd, 2, add)
	c.want(2, Success)
	// Even while the lock is held, a short request does not wait.
	f.atomics.Lock()
	c.post(OpFetchAdd, 3, add)
	f.atomics.Unlock()
	c.want(3, Success)
	close(held)
	a.want(1, Success)
}
