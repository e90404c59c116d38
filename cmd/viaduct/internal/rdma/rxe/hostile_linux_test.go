package rxe

import (
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"viaduct/cmd/viaduct/internal/rdma/abi"
)

// A program that writes random bytes to the rings while requests are executed harms nobody: other
// memory stays unchanged, and the other queue pair still works.
func TestHostileRings(t *testing.T) {
	f := NewFabric()
	bad, good := newEnd(t, f, RC, nil), newEnd(t, f, RC, nil)
	bystander := good.memory.add(5, 64, abi.AccessLocalWrite|abi.AccessRemoteWrite) // in another domain
	secret := newEnd(t, f, RC, nil)
	secret.memory.add(6, 64, abi.AccessLocalWrite|abi.AccessRemoteWrite|abi.AccessRemoteRead)
	r := rand.New(rand.NewPCG(1, 2))
	for n := range 600 {
		bad.modify(abi.Reset, 0, nil)
		good.modify(abi.Reset, 0, nil)
		connect(bad, good, func(c *Change) { c.RNRRetry = 0; c.Access = 0 })
		bad.memory.add(1, 64, abi.AccessLocalWrite)
		rings := [][]byte{bad.qp.send.ring.mem, bad.qp.recv.ring.mem, bad.cq.ring.mem}
		for range 1 + r.IntN(40) {
			m := rings[r.IntN(len(rings))]
			at := r.IntN(len(m)/4) * 4
			if r.IntN(3) == 0 {
				at = []int{logSizeAt, maskAt, producerAt, consumerAt}[r.IntN(4)]
			}
			atomic.StoreUint32((*ring)(&ring{mem: m}).index(at), r.Uint32()>>r.IntN(32))
		}
		if n%3 == 0 { // an entry that is almost valid
			bad.post(Op(r.IntN(17)), 1, func(b abi.Body) {
				one(uint32(r.IntN(7)), r.IntN(80), uint32(r.IntN(7)))(b)
				b.Put32(16, r.Uint32N(16))
				b.Put32(196, r.Uint32()>>r.IntN(32))
			})
		}
		bad.qp.Doorbell()
		bad.qp.Query()
	}
	for _, b := range append(bystander.bytes, secret.memory.regions[6].bytes...) {
		if b != 0 {
			t.Fatal("memory of others was written")
		}
	}
	good.modify(abi.Reset, 0, nil)
	connect(good, secret, nil)
	good.post(OpWrite, 3, one(5, 8, 6))
	until(t, "the other end still works", func() bool {
		c, ok := good.poll()
		return ok && c.id == 3 && c.status == Success
	})
}

// If the indexes of a ring change at random while the ring is used, only the queue pair of the ring
// fails.
func TestHostileIndexes(t *testing.T) {
	f := NewFabric()
	a, b := newEnd(t, f, RC, nil), newEnd(t, f, RC, nil)
	connect(a, b, nil)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
			}
			for _, r := range []*ring{&a.qp.send.ring, &a.cq.ring, &b.qp.recv.ring} {
				atomic.StoreUint32(r.index(producerAt), rand.Uint32())
				atomic.StoreUint32(r.index(consumerAt), rand.Uint32())
			}
		}
	}()
	for end := time.Now().Add(50 * time.Millisecond); time.Now().Before(end); {
		a.qp.Doorbell()
		a.cq.Resize(31, func(uint32, abi.Body) bool { return false })
		a.qp.Settle()
	}
	close(stop)
	<-done
	a.qp.Close()
	b.qp.Close()
}

// A queue pair cannot use keys, windows or address handles of another domain or context.
func TestForeignNames(t *testing.T) {
	f := NewFabric()
	a, b := newEnd(t, f, RC, nil), newEnd(t, f, RC, nil)
	other := &store{}
	connect(a, b, nil)
	b.memory.add(2, 32, abi.AccessLocalWrite|abi.AccessMWBind)
	w, err := b.space.NewWindow(other, Type1, func(uint32) bool { return false })
	if err != nil {
		t.Fatal(err)
	}
	if s := b.space.bind(b.qp, &bindRequest{addr: 2 << 16, length: 8, regionKey: 2, key: b.space.Key(w), newKey: b.space.Key(w)}); s != WindowBind {
		t.Errorf("a window of another domain was bound: %v", s)
	}
	ah, err := b.space.NewAH(other, ahBody(home))
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := b.space.path(ah.Num, b.memory); ok {
		t.Error("an address handle of another domain was used")
	}
	if _, ok := a.space.path(ah.Num, other); ok {
		t.Error("an address handle of another context was used")
	}
}

// ahBody returns the attributes of create_ah for an address.
func ahBody(to GID) abi.Body {
	b := make(abi.Body, 32)
	copy(b, to[:])
	b.Put8(29, 1)
	b.Put8(30, 1)
	return b
}
