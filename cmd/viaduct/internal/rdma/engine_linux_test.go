//go:build linux && (amd64 || arm64)

package rdma

import (
	stdcontext "context"
	"errors"
	"fmt"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
	"viaduct/internal/testkit"
	"viaduct/iwarp"
)

// patience bounds waits for events that must happen, even on a busy machine.
const patience = testkit.Patience

// connectedPair returns a connected queue pair and the peer.
func connectedPair(t *testing.T) (q *queuePair, peer *iwarp.QueuePair) {
	t.Helper()
	x := testContext(t)
	cq := testCQ(t, x)
	q = &queuePair{x: x, pd: newDomain(x.dev), scq: cq, rcq: cq, doorbell: make(chan struct{}, 1)}
	q.recv.q = q
	q.recv.ring = testRing(t, x)
	var err error
	if q.sq.ring, err = newRing(x.arena, 64, abi.SQELen); err != nil {
		t.Fatal(err)
	}
	x.qps.add(q) // the context then closes it
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
	if err := q.start(iw, nil, func() {}); err != nil {
		t.Fatal(err)
	}
	return q, peer
}

// busyPair returns a connected queue pair whose program posts without end, and the peer.
func busyPair(t *testing.T) (q *queuePair, peer *iwarp.QueuePair) {
	t.Helper()
	q, peer = connectedPair(t)
	stop := make(chan struct{})
	stopped := make(chan struct{})
	mem, n := q.sq.mem, q.sq.n
	ring := ring{mem: mem, entry: abi.SQELen, n: n}
	go func() { // a program that posts whether or not there is room
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
					// An unsignalled Write of no bytes.
					atomic.StoreUint32(word(ring.slot(i)), abi.Valid|abi.Inline|uint32(abi.WROpWrite)<<24)
				}
			}
		}
	}()
	t.Cleanup(func() { close(stop); <-stopped })
	return q, peer
}

// The posted receives of a killed program are flushed, although the memory disappears before the
// connection.
func TestEngineKilled(t *testing.T) {
	gone := deadMemory(t)
	for _, op := range []iwarp.Op{iwarp.OpRead, iwarp.OpWrite, iwarp.OpSend} {
		t.Run(op.String(), func(t *testing.T) {
			q, peer := connectedPair(t)
			mr, err := q.pd.iw.RegisterSpace(&space{gone, 0, q.pd}, 4096, 4096, iwarp.RemoteRead|iwarp.RemoteWrite)
			if err != nil {
				t.Fatal(err)
			}
			defer mr.Close()
			q.x.regions.Store(mr.STag(), &region{x: q.x, iw: mr, pd: q.pd, base: 4096, length: 4096,
				access: abi.AccessLocalWrite})
			e := q.recv.ring.slot(0)
			abi.Body(e).Put64(16, 4096)
			abi.Body(e).Put32(24, 64)
			abi.Body(e).Put32(28, mr.STag())
			atomic.StoreUint32(word(e), abi.Valid|1<<16)

			ctx, cancel := stdcontext.WithTimeout(t.Context(), patience)
			defer cancel()
			wr := iwarp.SendWR{Op: op, Remote: iwarp.RemoteAddr{STag: mr.STag(), TO: 4096},
				SG: []iwarp.SGE{iwarp.Buf(make([]byte, 64))}}
			if err := peer.Post(wr); err != nil {
				t.Fatal(err)
			}
			if c, err := peer.SendCQ().Wait(ctx); op == iwarp.OpRead &&
				(err != nil || c.Status != iwarp.StatusFlushed) {
				t.Errorf("the peer's request: %v, %v; want that it is flushed", c.Status, err)
			}
			within(t, "the end", func() { <-peer.Ended() })
			if e, ok := errors.AsType[*iwarp.TerminateError](peer.Err()); ok && e.Remote {
				t.Errorf("the peer's stream ended by %v, want the end of the connection", peer.Err())
			}
		})
	}
}

// A Send may arrive after the queue pair was destroyed, while posted requests of the program are
// still in flight. The peer then sees the end of the connection, not a Terminate.
func TestEngineLateSend(t *testing.T) {
	q, peer := connectedPair(t)
	q.recv.stop() // as destroy does; the queue pair's direction is not closed yet
	wr := iwarp.SendWR{Op: iwarp.OpSend, SG: []iwarp.SGE{iwarp.Buf(make([]byte, 64))}}
	if err := peer.Post(wr); err != nil {
		t.Fatal(err)
	}
	within(t, "the end", func() { <-peer.Ended() })
	if e, ok := errors.AsType[*iwarp.TerminateError](peer.Err()); ok && e.Remote {
		t.Errorf("the peer's stream ended by %v, want the end of the connection", peer.Err())
	}
}

// deadMemory returns the memory of an ended process.
func deadMemory(t *testing.T) *memory {
	t.Helper()
	c := exec.Command("cat")
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/mem", c.Process.Pid), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	in.Close()
	c.Wait()
	return &memory{fd: fd, maps: ownMappings(t), uses: 1}
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

// A queue pair whose program posts without end can be destroyed and disconnected, also after the
// peer's half-close.
func TestEngineBusy(t *testing.T) {
	t.Run("destroy", func(t *testing.T) {
		q, peer := busyPair(t)
		e := q.engineOf()
		peer.CloseWrite()
		<-e.iw.PeerClosed()
		within(t, "destroy", func() { e.detach() })
	})
	t.Run("disconnect", func(t *testing.T) {
		q, _ := busyPair(t)
		e := q.engineOf()
		e.close()
		within(t, "the end", func() { <-e.iw.Ended() })
		within(t, "destroy", func() { e.detach() })
	})
	t.Run("peer closes", func(t *testing.T) {
		q, peer := busyPair(t)
		e := q.engineOf()
		peer.CloseWrite()
		within(t, "the end", func() { <-e.iw.Ended() })
		within(t, "destroy", func() { e.detach() })
	})
}

// The program need not ring while a completion of the stream will wake the engine. It must ring
// after a Read, and for requests that will never complete.
func TestEngineAwaits(t *testing.T) {
	write, read := posted{op: abi.WROpWrite}, posted{op: abi.WROpRead}
	for _, c := range []struct {
		e    *engine
		want bool
	}{
		{&engine{}, false},
		{&engine{pending: []posted{write}}, true},
		{&engine{pending: []posted{write}, head: 1}, false},
		{&engine{pending: []posted{write, read}, reads: 1}, false},
		{&engine{pending: []posted{write}, broken: true}, false},
	} {
		if got := c.e.awaits(); got != c.want {
			t.Errorf("%d posted, %d of them done, %d Reads, broken %v: %v", len(c.e.pending),
				c.e.head, c.e.reads, c.e.broken, got)
		}
	}

	a, b := linkedPair(t, false)
	e := a.q.engineOf()
	for i := range 12 {
		op := abi.WROpWrite
		if i%3 == 1 {
			op = abi.WROpRead
		}
		a.post(uint64(i), op, 0, b.at(100*i), b.whole.iw.STag(), part{off: 50000 + 100*i, n: 100})
	}
	a.ringDoorbell()
	for i, o := range a.poll(12) {
		if o.ID != uint64(i) || o.Status != abi.WCSuccess {
			t.Errorf("completion %d is %+v", i, o)
		}
	}
	// When the program has to ring, the last taken entry is free, too.
	within(t, "that the program has to ring", func() {
		for atomic.LoadUint32(word(a.ring.slot(11)))&abi.Valid != 0 {
			time.Sleep(100 * time.Microsecond)
		}
	})
	e.detach()
	if e.reads != 0 || e.awaits() {
		t.Errorf("%d Reads are left, awaits %v", e.reads, e.awaits())
	}
}

// The last steps of an engine end, although the program still posts.
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

// Destroying a connected queue pair ends the connection. The connection manager gets a single
// event, as after a close by the peer.
func TestEngineDetached(t *testing.T) {
	for _, over := range []bool{false, true} {
		q, peer := connectedPair(t)
		var ends atomic.Int32
		q.mu.Lock()
		e := q.engine
		e.gone = func() { ends.Add(1) }
		q.mu.Unlock()
		if over {
			peer.Close()
			<-e.done
		}
		q.destroy()
		if n := ends.Load(); n != 1 {
			t.Errorf("the connection has ended %d times, want once (before the queue pair: %v)", n, over)
		}
	}
}

// Requests posted in the error state are flushed and not executed.
func TestEngineErrorState(t *testing.T) {
	q, peer := connectedPair(t)
	for range 2 {
		if err := peer.PostRecv(iwarp.RecvWR{}); err != nil {
			t.Fatal(err)
		}
	}
	post := func(i uint32) {
		e := q.sq.slot(i)
		clear(e)
		abi.Body(e).Put64(0, uint64(i))
		atomic.StoreUint32(word(e), abi.Valid|abi.Signalled|abi.Inline|uint32(abi.WROpSend)<<24)
		select {
		case q.doorbell <- struct{}{}:
		default:
		}
	}
	completion := func(i uint32) abi.WCStatus {
		t.Helper()
		slot := q.scq.mem[int(i)*abi.CQELen:]
		for end := time.Now().Add(patience); atomic.LoadUint32(word(slot))&abi.Valid == 0; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("no completion %d", i)
			}
		}
		return abi.WCStatus(atomic.LoadUint32(word(slot)) >> 16)
	}
	post(0)
	if got := completion(0); got != abi.WCSuccess {
		t.Fatalf("status %d of the first Send, want success", got)
	}
	q.setState(abi.Err)
	post(1)
	if got := completion(1); got != abi.WCFlush {
		t.Errorf("status %d of a Send that was posted in the error state, want flushed", got)
	}
}
