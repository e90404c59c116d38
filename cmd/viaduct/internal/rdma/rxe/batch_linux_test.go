package rxe

import (
	"bytes"
	"fmt"
	"sync/atomic"
	"testing"

	"viaduct/cmd/viaduct/internal/rdma/abi"
)

// postAll posts n requests of 8 bytes each and rings once. fill may change the entry of request i.
func (e *end) postAll(n int, fill func(i int, b abi.Body)) {
	r := &e.qp.send.ring
	first := r.produced()
	for i := range n {
		b := abi.Body(r.slot(first + uint32(i)))
		clear(b)
		b.Put64(0, uint64(100+i))
		b.Put32(12, uint32(OpWrite))
		b.Put32(16, flagSignaled)
		one(1, 8, 2)(b)
		b.Put64(24, 2<<16+uint64(16*i))
		b.Put64(sendHeadLen, 1<<16+uint64(8*i))
		fill(i, b)
	}
	atomic.StoreUint32(r.index(producerAt), (first+uint32(n))&r.mask)
	e.qp.Doorbell()
}

// Short requests posted together are executed with one read of all payload and one write. An
// invalid request gets a separate status; earlier requests succeed, later requests are flushed and
// write nothing.
func TestBatch(t *testing.T) {
	const n, bad = 12, 7
	set := func(op Op) func(int, abi.Body) { return func(_ int, b abi.Body) { b.Put32(12, uint32(op)) } }
	for _, c := range []struct {
		name   string
		fill   func(i int, b abi.Body)
		sends  bool
		status Status // of request bad
		calls  int    // number of reads and writes; 0 if not checked
	}{
		{name: "writes", fill: set(OpWrite), calls: 2},
		{name: "sends", fill: set(OpSend), sends: true, calls: 2},
		{name: "inline in between", fill: func(i int, b abi.Body) {
			if i%3 == 1 {
				b.Put32(16, flagSignaled|flagInline)
				copy(b[sendHeadLen:], pattern(i))
			}
		}, calls: 2},
		{name: "local key", status: LocalProtection, fill: func(i int, b abi.Body) {
			if i == bad {
				b.Put32(sendHeadLen+12, 9)
			}
		}},
		{name: "remote key", status: RemoteAccess, fill: func(i int, b abi.Body) {
			if i == bad {
				b.Put32(32, 9)
			}
		}},
		{name: "operation", status: LocalQPOperation, fill: func(i int, b abi.Body) {
			if i == bad {
				b.Put32(12, 77)
			}
		}},
		{name: "local memory is not there", status: LocalProtection, fill: func(i int, b abi.Body) {
			if i == bad {
				b.Put64(sendHeadLen, 1<<16+absentAt)
			}
		}},
		{name: "remote memory is not there", status: RemoteAccess, fill: func(i int, b abi.Body) {
			if i == bad {
				b.Put64(24, 2<<16+absentAt)
			}
		}},
		{name: "receive is too short", status: RemoteInvalid, sends: true, fill: func(i int, b abi.Body) {
			b.Put32(12, uint32(OpSend))
			if i == bad {
				b.Put32(sendHeadLen+8, 9)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := NewFabric()
			a, b := newEnd(t, f, RC, nil), newEnd(t, f, RC, nil)
			connect(a, b, nil)
			mine := a.memory.add(1, absentAt+64, abi.AccessLocalWrite)
			theirs := b.memory.add(2, absentAt+64, abi.AccessLocalWrite|abi.AccessRemoteWrite)
			mine.absent, theirs.absent = true, true
			for i := range n {
				copy(mine.bytes[8*i:], pattern(i))
				if c.sends {
					b.receiveAt(uint64(200+i), 2, uint64(16*i), 8)
				}
			}
			a.postAll(n, c.fill)
			good := n
			if c.status != Success {
				good = bad
			}
			for i := range n {
				switch {
				case i < good:
					a.want(uint64(100+i), Success)
					if c.sends {
						if r := b.want(uint64(200+i), Success); r.length != 8 || r.kind != doneRecv {
							t.Errorf("receive %d: %+v", i, r)
						}
					}
				case i == good:
					a.want(uint64(100+i), c.status)
				default:
					a.want(uint64(100+i), Flushed)
				}
				want := pattern(i)
				if i >= good {
					want = make([]byte, 8)
				}
				if got := theirs.bytes[16*i:][:8]; !bytes.Equal(got, want) {
					t.Errorf("at %d there is %q, want %q", i, got, want)
				}
			}
			a.none()
			for _, m := range []*block{mine, theirs} {
				if n := m.held(); n != 0 {
					t.Errorf("%d holds are left", n)
				}
			}
			if calls := mine.calls + theirs.calls; c.calls > 0 && calls != c.calls {
				t.Errorf("%d calls have copied payload, want %d", calls, c.calls)
			}
		})
	}
}

// pattern returns the payload of request i.
func pattern(i int) []byte { return fmt.Appendf(nil, "bytes %02d", i) }

// A batch uses no more receives than are posted. The next Send waits for a receive.
func TestBatchReceives(t *testing.T) {
	f := NewFabric()
	a, b := newEnd(t, f, RC, nil), newEnd(t, f, RC, nil)
	connect(a, b, nil)
	a.memory.add(1, 128, 0)
	b.memory.add(2, 128, abi.AccessLocalWrite)
	for i := range 3 {
		b.receive(uint64(200+i), 2, 8)
	}
	a.postAll(5, func(_ int, e abi.Body) { e.Put32(12, uint32(OpSend)) })
	for i := range 3 {
		a.want(uint64(100+i), Success)
		b.want(uint64(200+i), Success)
	}
	a.none()
	b.receive(203, 2, 8)
	b.receive(204, 2, 8)
	for i := 3; i < 5; i++ {
		a.want(uint64(100+i), Success)
		b.want(uint64(200+i), Success)
	}
}
