package rxe

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"viaduct/cmd/viaduct/internal/rdma/abi"
	"viaduct/internal/badwire"
)

// Requests over a wire with lost, duplicated and delayed packets transfer the right data. If the
// wire passes nothing more, the requests fail with RetryExceeded when the retries are exhausted.
func TestWireFaults(t *testing.T) {
	a, b := wireEnds(t, RC)
	w, err := badwire.New(loopback().addr(), a.gid.addr(), b.gid.addr(),
		badwire.Faults{Seed: 8, Loss: 0.02, Duplicate: 0.02, Late: 0.02})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	const code, retries = 15, 2 // 134 ms
	connect(a, b, func(c *Change) { c.Path, c.MTU, c.Timeout = pathTo(GID(w.Addr().As16())), 3, 18 })
	const n, rounds = 50_000, 20
	from := a.memory.add(1, n, abi.AccessLocalWrite)
	back := a.memory.add(2, n, abi.AccessLocalWrite)
	to := b.memory.add(3, n, abi.AccessRemoteWrite|abi.AccessRemoteRead|abi.AccessLocalWrite)
	random := rand.NewChaCha8([32]byte{8})
	data := make([]byte, n)
	for range rounds {
		random.Read(data)
		from.set(data)
		back.set(make([]byte, n))
		b.receive(7, 3, n)
		a.post(OpWrite, 1, one(1, n, 3))
		a.post(OpRead, 2, one(2, n, 3))
		a.post(OpSend, 3, one(1, n, 0))
		for id := range uint64(3) {
			a.want(id+1, Success)
		}
		b.want(7, Success)
		if !bytes.Equal(back.get(), data) || !bytes.Equal(to.get(), data) {
			t.Fatal("other data than was sent")
		}
	}
	if _, spoilt := w.Packets(); spoilt == 0 {
		t.Error("the wire had no faults")
	}
	a.modify(abi.Reset, 0, nil)
	b.modify(abi.Reset, 0, nil)
	connect(a, b, func(c *Change) {
		c.Path, c.Timeout, c.Retry = pathTo(GID(w.Addr().As16())), code, retries
	})
	w.Block(true)
	begin := time.Now()
	a.post(OpSend, 4, one(1, 8, 0))
	a.post(OpSend, 5, one(1, 8, 0))
	a.want(4, RetryExceeded)
	if took, computed := time.Since(begin), 4096*time.Nanosecond<<code*(retries+1); took < computed {
		t.Errorf("given up after %v, computed %v", took, computed)
	}
	a.want(5, Flushed)
	a.qp.Close()
	b.qp.Close()
}
