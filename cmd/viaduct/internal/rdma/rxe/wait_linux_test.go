package rxe

import (
	"testing"
	"testing/synctest"
	"time"

	"viaduct/cmd/viaduct/internal/rdma/abi"
)

// A Send without a receive fails after the responder's timer multiplied by the requester's retry
// count, and not later.
func TestReceiverNotReady(t *testing.T) {
	for _, c := range []struct {
		count, timer uint8
		limit        time.Duration
	}{{0, 1, 0}, {3, 12, 3 * 640 * time.Microsecond}, {6, 0, 6 * 655360 * time.Microsecond}, {1, 31, 491520 * time.Microsecond}} {
		synctest.Test(t, func(t *testing.T) {
			f := NewFabric()
			a, b := newEnd(t, f, RC, nil), newEnd(t, f, RC, nil)
			connect(a, b, func(ch *Change) { ch.RNRRetry, ch.MinRNR = c.count, c.timer })
			a.memory.add(1, 8, abi.AccessLocalWrite)
			a.post(OpSend, 1, one(1, 8, 0))
			if c.limit > 0 {
				time.Sleep(c.limit - time.Microsecond)
				synctest.Wait()
				a.none()
				time.Sleep(2 * time.Microsecond)
			}
			synctest.Wait()
			a.want(1, RNRRetryExceeded)
			if s := b.qp.Attributes().State; s != abi.RTS {
				t.Errorf("responder is %v", s)
			}
		})
	}
}

// With an RNR retry count of 7 the requester waits without limit. It continues soon after the
// receive is posted.
func TestReceiverNotReadyForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := NewFabric()
		a, b := newEnd(t, f, RC, nil), newEnd(t, f, RC, nil)
		connect(a, b, nil)
		a.memory.add(1, 8, abi.AccessLocalWrite)
		b.memory.add(1, 8, abi.AccessLocalWrite)
		a.post(OpSend, 1, one(1, 8, 0))
		time.Sleep(time.Hour)
		synctest.Wait()
		a.none()
		b.receive(2, 1, 8)
		time.Sleep(lookRare)
		synctest.Wait()
		a.want(1, Success)
		b.want(2, Success)
		a.qp.Close()
	})
}

// A request to a silent queue pair waits for the time of all retries. It continues as soon as the
// peer becomes ready.
func TestRetryExceeded(t *testing.T) {
	const limit = 4096 * time.Nanosecond << 14 * 8
	for _, comes := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := NewFabric()
			a, b := newEnd(t, f, RC, nil), newEnd(t, f, RC, nil)
			for _, s := range []abi.State{abi.Init, abi.RTR, abi.RTS} {
				a.modify(s, b.qp.num, nil)
			}
			b.modify(abi.Init, 0, nil)
			b.receive(2, 1, 8)
			a.memory.add(1, 8, abi.AccessLocalWrite)
			b.memory.add(1, 8, abi.AccessLocalWrite)
			a.post(OpSend, 1, one(1, 8, 0))
			time.Sleep(limit - time.Millisecond)
			synctest.Wait()
			a.none()
			if comes {
				b.modify(abi.RTR, a.qp.num, nil)
				synctest.Wait()
				a.want(1, Success)
				b.want(2, Success)
				return
			}
			time.Sleep(time.Millisecond)
			synctest.Wait()
			a.want(1, RetryExceeded)
		})
	}
}

// Without a timeout, a request waits for the peer without limit.
func TestNoTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newEnd(t, NewFabric(), RC, nil)
		for _, s := range []abi.State{abi.Init, abi.RTR, abi.RTS} {
			a.modify(s, a.qp.num^1, func(c *Change) { c.Timeout = 0 })
		}
		a.memory.add(1, 8, abi.AccessLocalWrite)
		a.post(OpSend, 1, one(1, 8, 0))
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		a.none()
		a.qp.Close()
	})
}
