//go:build linux && (amd64 || arm64)

package rdma

import (
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
)

// next is the next message of a stream: a Send or not.
type next bool

func (next) Has(int) bool   { return true }
func (n next) IsSend() bool { return bool(n) }

// testContext returns a context without a program.
func testContext(t *testing.T) *context {
	t.Helper()
	s := &Service{done: make(chan struct{}), files: map[inode]file{}}
	a, theirs, err := newArena(&ringQuota{most: 100})
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(theirs)
	x := newContext(s, newDevice(s, 0, Device{Name: "siw0"}), a)
	t.Cleanup(x.release)
	return x
}

func testRing(t *testing.T, x *context) recvRing {
	t.Helper()
	r, err := newRing(x.arena, 4, abi.RQELen)
	if err != nil {
		t.Fatal(err)
	}
	return recvRing{r}
}

// postRecv posts a receive like the program.
func postRecv(r *recvRing, at uint32, id uint64) {
	e := r.slot(at)
	abi.Body(e).Put64(0, id)
	atomic.StoreUint32(word(e), atomic.LoadUint32(word(e))|abi.Valid)
}

// A message without a receive stays at the stream for a time. Other messages do not wait.
func TestReceiverNotReady(t *testing.T) {
	x := testContext(t)
	r := &receiver{q: &queuePair{x: x}, ring: testRing(t, x)}
	if r.Full(next(false)) || r.Keep() {
		t.Error("a Write waits for a receive")
	}
	if !r.Full(next(true)) || !r.Keep() {
		t.Error("a Send without a receive ends the stream")
	}
	if r.Full(next(false)) || r.Keep() {
		t.Error("a Write waits behind nothing")
	}
	r.Full(next(true))
	postRecv(&r.ring, 0, 7)
	if r.Full(next(true)) || r.Keep() {
		t.Error("a Send waits though there is a receive")
	}
	if wr, ok := r.NextRecv(nil, 0, true); !ok || wr.ID != 1 {
		t.Errorf("the receive: %v, %v", wr, ok)
	}
	if id, ok := r.completed(1); !ok || id != 7 {
		t.Errorf("the receive is %d, %v; want 7", id, ok)
	}
	if !r.Full(next(true)) {
		t.Error("the second Send without a receive ends the stream")
	}
	r.since = time.Now().Add(-notReadyFor)
	if r.Full(next(true)) || r.Keep() {
		t.Error("a Send waits for ever")
	}
	r.since = time.Time{}
	r.hurry()
	if r.Full(next(true)) || r.Keep() {
		t.Error("a Send waits at a stream that is to end")
	}
}

// Each receive of a shared queue goes to a single message. An entry taken for a message that never
// arrived completes as flushed.
func TestReceiverShared(t *testing.T) {
	x := testContext(t)
	srq := &sharedQueue{x: x, pd: &domain{}, ring: testRing(t, x)}
	cq := testCQ(t, x)
	a := &receiver{q: &queuePair{x: x, srq: srq, rcq: cq}}
	b := &receiver{q: &queuePair{x: x, srq: srq, rcq: cq}}
	postRecv(&srq.ring, 0, 7)
	if a.Full(next(true)) || !b.Full(next(true)) {
		t.Error("two messages, one receive: want that one waits")
	}
	if a.Full(next(true)) {
		t.Error("the receive of the message is lost")
	}
	if _, ok := a.NextRecv(nil, 0, true); !ok {
		t.Error("the message gets no receive")
	}
	postRecv(&srq.ring, 1, 8)
	if b.Full(next(true)) {
		t.Error("the other message waits still")
	}
	b.flush()
	if got := cq.at; got != 1 {
		t.Errorf("%d completions, want that of the receive that was taken ahead", got)
	}
	if b.flush(); cq.at != 1 {
		t.Error("it is flushed twice")
	}
}

func testCQ(t *testing.T, x *context) *completionQueue {
	t.Helper()
	q := &completionQueue{x: x, n: 16}
	var err error
	if q.mem, q.key, err = x.arena.ring(int(q.n)*abi.CQELen + abi.CQCtrlLen); err != nil {
		t.Fatal(err)
	}
	return q
}
