package attend

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/internal/sock"
	"viaduct/internal/testkit"
)

// TestSlotTaken: a report is not used for another connection that has the slot by now.
func TestSlotTaken(t *testing.T) {
	epfd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(epfd)
	// The poller has no goroutine.
	p := &sharedPoller{open: true, epfd: epfd, watched: true, closing: true}
	var as [3]*Attention
	for i := range as {
		nc, peer := testkit.TCPPair(t)
		defer peer.Close()
		s := sock.Take(nc)
		defer s.Close(false)
		as[i] = new(Attention)
		as[i].Init(s, nil)
		if i < 2 {
			peer.Write([]byte("x"))
			testkit.Eventually(t, "it arrives", func() bool { return s.Pending() == 1 })
		}
	}
	next := func(want *Attention) {
		t.Helper()
		var now time.Time
		if a, _, ok := p.next(0, &now); a != want || !ok {
			t.Errorf("reports %p (%v), want %p", a, ok, want)
		}
	}
	next(nil)
	if !p.add(as[0], Unstarted, Start) || !p.add(as[1], Unstarted, Start) {
		t.Fatal("no slot")
	}
	next(as[0]) // this also reads the other connection's report
	as[1].shared.leave(as[1])
	as[1].shared.leave(as[1])
	if len(p.free) != 1 {
		t.Errorf("%d slots are free", len(p.free))
	}
	if p.add(as[2], Unstarted, Start); as[2].shared.slot != as[1].shared.slot {
		t.Fatal("another slot")
	}
	next(nil)
	as[1].state.Store(uint32(Unstarted))
	p.add(as[1], Unstarted, Start)
	next(as[1])
	next(nil)
	var now time.Time
	p.generation++
	if _, _, ok := p.next(0, &now); ok {
		t.Error("still serves after another goroutine has taken over")
	}
}

// TestTwoEndReservation lets two consumers that wait at once both find a connection reserved. The
// consumer that gets the receive role second must not register the connection again: with several
// pollers nobody would remove one of the registrations.
func TestTwoEndReservation(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4)) // two pollers
	registered := func() (n int) {
		for i := range process.pollers.all {
			p := &process.pollers.all[i]
			p.mu.Lock()
			n += len(p.slots) - len(p.free)
			p.mu.Unlock()
		}
		return n
	}
	before := registered()
	nc, peer := testkit.TCPPair(t)
	defer peer.Close()
	r := &byteReader{src: sock.Take(nc)}
	a := new(Attention)
	a.Init(r.src, r)
	a.Lock()
	a.Reserve()
	a.Unlock()
	if !a.endReservation() || a.State() != Shared {
		t.Fatalf("state %v after the first Wait", a.State())
	}
	if a.endReservation() {
		t.Error("the second Wait ends a reservation, too")
	}
	peer.Write([]byte("x"))
	testkit.Eventually(t, "the poller receives", func() bool { return r.bytes.Load() == 1 })
	a.Close(func() {})
	r.src.Close(false)
	a.Join()
	if n := registered(); n != before {
		t.Errorf("%d registrations are left of a closed connection", n-before)
	}
}
