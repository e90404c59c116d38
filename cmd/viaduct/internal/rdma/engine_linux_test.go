//go:build linux && (amd64 || arm64)

package rdma

import (
	stdcontext "context"
	"sync/atomic"
	"testing"
	"time"

	"viaduct/cmd/viaduct/internal/rdma/abi"
	"viaduct/iwarp"
)

// patience bounds waits for what has to happen, on a machine however busy.
const patience = 30 * time.Second

// busyPair is a connected queue pair whose program never stops posting, and its peer.
func busyPair(t *testing.T) (q *queuePair, peer *iwarp.QueuePair) {
	t.Helper()
	x := testContext(t)
	x.s.cm = cmTable{}
	cq := testCQ(t, x)
	q = &queuePair{x: x, pd: &domain{iw: x.dev.iw.NewPD()}, scq: cq, rcq: cq, doorbell: make(chan struct{}, 1)}
	q.recv.q = q
	q.recv.ring = testRing(t, x)
	var err error
	if q.sq.ring, err = newRing(x.arena, 64, abi.SQELen); err != nil {
		t.Fatal(err)
	}
	cfg, err := q.config()
	if err != nil {
		t.Fatal(err)
	}
	l, err := iwarp.Listen("127.0.0.1:0", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := stdcontext.WithTimeout(t.Context(), patience)
	defer cancel()
	came := make(chan *iwarp.QueuePair, 1)
	go func() {
		p, _ := l.Accept(ctx)
		came <- p
	}()
	iw, err := iwarp.Dial(ctx, l.Addr().String(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if peer = <-came; peer == nil {
		t.Fatal("no peer")
	}
	t.Cleanup(func() { peer.Close(); q.x.s.wg.Wait() })
	if err := q.start(iw, func() {}); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	stopped := make(chan struct{})
	mem, n := q.sq.mem, q.sq.n
	ring := ring{mem: mem, entry: abi.SQELen, n: n}
	go func() { // a program that posts whether there is room or not
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case q.doorbell <- struct{}{}:
			default:
			}
			for range 100 {
				for i := range n {
					// A Write of no bytes, of which nothing is told.
					atomic.StoreUint32(word(ring.slot(i)), abi.Valid|abi.Inline|uint32(abi.WROpWrite)<<24)
				}
			}
		}
	}()
	t.Cleanup(func() { close(stop); <-stopped })
	return q, peer
}

func within(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { f(); close(done) }()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatalf("%s takes for ever", what)
	}
}

// A queue pair whose program posts without end is destroyed, also when the peer has closed
// its direction, and disconnected.
func TestEngineBusy(t *testing.T) {
	t.Run("destroy", func(t *testing.T) {
		q, peer := busyPair(t)
		e := q.engineOf()
		peer.CloseWrite()
		<-e.iw.PeerClosed()
		within(t, "destroy", func() { e.detach(false) })
	})
	t.Run("disconnect", func(t *testing.T) {
		q, _ := busyPair(t)
		e := q.engineOf()
		e.close()
		within(t, "the end", func() { <-e.iw.Ended() })
		within(t, "destroy", func() { e.detach(false) })
	})
	t.Run("peer closes", func(t *testing.T) {
		q, peer := busyPair(t)
		e := q.engineOf()
		peer.CloseWrite()
		within(t, "the end", func() { <-e.iw.Ended() })
		within(t, "destroy", func() { e.detach(false) })
	})
}

// The last steps of an engine have an end, though the program goes on posting.
func TestEngineLast(t *testing.T) {
	e := &engine{quit: make(chan struct{})}
	n := 0
	e.last(func() bool { n++; return n < 5 })
	if n != 5 {
		t.Errorf("%d steps, want 5", n)
	}
	n = 0
	e.last(func() bool { n++; return n < 2*engineLast })
	if n != engineLast {
		t.Errorf("%d steps, want %d at most", n, engineLast)
	}
	n = 0
	e.last(func() bool {
		if n++; n == 3 {
			close(e.quit)
		}
		return n < 10
	})
	if n != 3 {
		t.Errorf("%d steps, want none behind the third, at which the queue pair was destroyed", n)
	}
}

func (q *queuePair) engineOf() *engine {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.engine
}
