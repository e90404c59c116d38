package attend

import (
	"time"

	"golang.org/x/sys/unix"

	"viaduct/internal/perturb"
)

// A report says that a connection has arrivals. The goroutine of a shared poller or of a drainer
// serves the report: it receives for the connection, unless another goroutine is to do so.
type report struct {
	a      *Attention
	events uint32    // the events of epoll, or 0 if the report is not a shared poller's
	now    time.Time // the time when the report was read
	turn   uint32    // the drainer's turn, or 0 if the report is not a drainer's
}

// serve receives for the connection, and returns the number of bytes.
func (r report) serve() int {
	a := r.a
	if !r.take() {
		return 0
	}
	if a.State() != Shared {
		a.Unlock() // the goroutine that changed the state reads the source
		return 0
	}
	if a.looked() {
		a.Unlock()
		a.apply(Contended)
		return 0
	}
	// Receive may stop at a short read, because epoll reports later arrivals again. Receive must read
	// until nothing is left (all) if the source needs a request for each report, or if the events show
	// more than arrivals, for example the end of the stream.
	all := r.ask() || r.events&^unix.EPOLLIN != 0
	got, more, err := a.recv.Receive(all, false)
	if got.Any && err == nil && a.recv.Partial() {
		// The read may have been short because memory is unmapped; the next read then returns the error.
		var rest Got
		rest, more, err = a.recv.Receive(true, false)
		got.Bytes += rest.Bytes
	}
	if got.Any {
		a.idle.arrivals.Add(1)
	}
	busy := a.shared.note(r, got.Bytes)
	if err != nil {
		a.shared.leave(a)
		a.wg.Add(1) // Close waits for the role, and Join for the goroutine below
		if a.end(err) {
			Go(true, func() {
				defer a.wg.Done()
				a.recv.Deliver()
				a.recv.Ended(err) // Ended may take long
			})
		} else {
			a.wg.Done()
		}
		return got.Bytes
	}
	left := a.recv.Left()
	if !left {
		a.recv.Rest()
	}
	a.Unlock()
	switch keep := a.recv.Deliver(); {
	case left && keep:
		a.waited.Store(false)
		a.looks.Add(1) // counts as a poll of the consumer, which is about to poll
		a.apply(Left)
	case left, more, busy:
		a.apply(Busy)
	}
	return got.Bytes
}

// take locks the receive role, and returns false if the role is taken. If the connection has a pair,
// it stays Shared then, and Unlock has it served again. Otherwise an attendant serves it.
func (r report) take() bool {
	a := r.a
	if a.role.TryLock() {
		return true
	}
	if !paired(a) {
		a.apply(Contended)
		return false
	}
	a.missed.Swap(true) // ordered before the lock below, which a store is not everywhere
	perturb.Point()
	if !a.role.TryLock() {
		return false
	}
	a.missed.Store(false)
	return true
}

// ask requests a report of the next arrival, from the pair if there is one. The result is the same
// as of Ask of the source. The caller has the receive role.
func (r report) ask() bool {
	a := r.a
	p, slot := a.src.Pair()
	if p == nil {
		return a.src.Ask()
	}
	d := drainerOf(p)
	if d == nil {
		return a.src.Ask()
	}
	if r.turn == 0 {
		a.src.Ask() // also empties the bell
		d.enter(a, slot)
	}
	a.src.AskPair()
	perturb.Point()
	if p.Ended() { // the drainer may have been through the table already
		a.src.Ask()
	}
	return true
}

// note records an arrival of n bytes, and reports whether the connection is busy: the last arrivals
// were close together, or had many bytes each. [receive role]
func (c *registration) note(r report, n int) (busy bool) {
	if r.now.Sub(c.last) >= closeGap || r.turn-c.turn > uint32(process.processors.Load()) {
		c.closely = 0
	}
	c.last, c.turn = r.now, r.turn
	c.closely++
	if n > small {
		c.bulk++
	} else {
		c.bulk = 0
	}
	return c.closely >= closeRun || c.bulk >= closeRun
}

// serveMissed serves the connection after a report that found the role taken.
func serveMissed(a *Attention) {
	Go(true, func() { report{a: a, now: time.Now()}.serve() })
}

// paired reports whether the connection has a pair.
func paired(a *Attention) bool {
	p, _ := a.src.Pair()
	return p != nil
}
