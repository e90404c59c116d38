package rxe

import (
	"testing"
	"time"

	"viaduct/cmd/viaduct/internal/rdma/abi"
)

// A queue pair in SQD is drained when the begun request is complete, and not before. The attribute
// shows the drained state, and so does an event if requested. Later requests begin when the queue
// pair is back in RTS.
func TestDrain(t *testing.T) {
	for _, tell := range []bool{true, false} {
		f := NewFabric()
		a, b := newEnd(t, f, RC, nil), newEnd(t, f, RC, nil)
		connect(a, b, nil)
		a.memory.add(1, 64, 0)
		b.memory.add(2, 64, abi.AccessLocalWrite)
		events := func() int {
			a.mu.Lock()
			defer a.mu.Unlock()
			return len(a.events)
		}
		drain := func() {
			a.modify(abi.SQD, 0, func(c *Change) {
				if tell {
					c.Mask |= MaskDrainNotify
				}
			})
		}
		a.post(OpSend, 1, one(1, 8, 0)) // waits for a receive
		a.begun()
		a.post(OpSend, 2, one(1, 8, 0))
		drain()
		time.Sleep(10 * time.Millisecond)
		if n := events(); n != 0 || a.qp.Query()[112] != 1 {
			t.Errorf("%d events while a request is in progress, draining %d", n, a.qp.Query()[112])
		}
		b.receive(7, 2, 8)
		b.receive(8, 2, 8)
		a.want(1, Success)
		want := 0
		if tell {
			want = 1
		}
		for end := time.Now().Add(time.Minute); a.qp.Query()[112] != 0 ||
			events() != want; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d events, draining %d", events(), a.qp.Query()[112])
			}
		}
		a.none()
		a.modify(abi.RTS, b.qp.num, nil)
		a.want(2, Success)
		drain() // at once, because nothing is in progress
		for end := time.Now().Add(time.Minute); a.qp.Query()[112] != 0 ||
			events() != 2*want; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d events behind the second time", events())
			}
		}
	}
}
