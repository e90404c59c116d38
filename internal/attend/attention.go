package attend

import (
	"sync"
	"sync/atomic"
	"time"

	"viaduct/internal/perturb"
	"viaduct/internal/sock"
)

// A Receiver reads the source of an [Attention] and handles what it has read.
// Its methods are called in the receive role, but for Ended, and none of them
// may block.
type Receiver interface {
	// Receive reads what has arrived and handles it, without waiting. It ends
	// after a short read, unless all is set: the end of a stream behind the last
	// bytes is only found by one more read. more tells that it stopped for being
	// long at it. polled tells that a consumer made the call.
	Receive(all, polled bool) (got Got, more bool, err error)

	// Left reports that bytes were read and left for later: no arrival will tell
	// of them.
	Left() bool

	// Deliver is called after a Receive, without the role: the moment for what the
	// consumer has to be told. It reports whether what is left is best kept for a
	// consumer, which is about to poll.
	Deliver() (keep bool)

	// Partial reports that the last read may have been short for want of memory
	// to read to.
	Partial() bool

	// Rest gives back what is not needed during a wait that may be long.
	Rest()

	// Ended is called once, without a role, when a Receive has failed: err is its
	// error.
	Ended(err error)

	// Sent moves with every write of the connection.
	Sent() uint32
}

// Got is what a Receive brought.
type Got struct {
	Any   bool // something came
	Bytes int  // by reads of the source
}

// An Attention is the receive role of one connection and the state of what
// waits for arrivals. The zero value is Unstarted; Init comes first. All methods
// may be called by any goroutine.
//
// Order of locks: the receive role, then the lock of a shared poller.
type Attention struct {
	src  *sock.Socket
	recv Receiver

	role  perturb.Mutex // the receive role
	state atomic.Uint32 // a State; only move changes it
	wg    sync.WaitGroup

	looks  atomic.Uint32 // moves with every Poll
	seen   atomic.Uint32 // looks when an arrival was last taken without contention
	waited atomic.Bool   // there was a Wait since
	resume chan struct{} // one slot: the goroutine in state Polled has to look at the state again

	idle   idleness
	shared registration
}

// Init sets the source and what reads it, before the first use of a.
func (a *Attention) Init(src *sock.Socket, r Receiver) {
	a.src, a.recv = src, r
	a.resume = make(chan struct{}, 1)
}

// State returns the state at this moment.
func (a *Attention) State() State { return State(a.state.Load()) }

// move applies an event to the state, and returns the state it found with the
// action that is the caller's to take.
func (a *Attention) move(e Event) (from State, do Action) {
	for {
		perturb.Point()
		from = a.State()
		to, do := next(from, e)
		if to == from {
			return from, do
		}
		if a.state.CompareAndSwap(uint32(from), uint32(to)) {
			return from, do
		}
	}
}

// moveFrom is move, provided that the state is from.
func (a *Attention) moveFrom(from State, e Event) bool {
	to, _ := next(from, e)
	perturb.Point()
	return a.state.CompareAndSwap(uint32(from), uint32(to))
}

// Lock takes the receive role, waiting for it if need be, which is never for the
// peer. Unlock gives it back.
func (a *Attention) Lock() { a.role.Lock() }

// TryLock takes the receive role if it is free.
func (a *Attention) TryLock() bool { return a.role.TryLock() }

// Unlock gives the receive role back.
func (a *Attention) Unlock() { a.role.Unlock() }

// Start has arrivals waited for from now on. The caller has the receive role.
func (a *Attention) Start() { a.begin(Unstarted, Start) }

// Reserve leaves arrivals to a consumer that polls, until it calls Wait: only then
// does anything else wait for them. The caller has the receive role.
func (a *Attention) Reserve() { a.move(Reserve) }

// begin leads from Unstarted or Reserved to Shared; or to Dedicated, if there
// are bytes that a goroutine has to begin with, or no shared poller. The caller
// has the receive role.
func (a *Attention) begin(from State, e Event) {
	if !a.recv.Left() && a.register(from, e) {
		return
	}
	if a.moveFrom(from, Busy) {
		a.dedicate()
	}
}

// Poll has the Receiver receive, without waiting. It reports whether anything
// came. If another goroutine has the role it returns at once. A consumer that
// polls keeps the goroutine of the connection away from the source; one that is
// about to wait calls Wait.
func (a *Attention) Poll() bool {
	a.looks.Add(1)
	if !a.role.TryLock() {
		return false
	}
	if s := a.State(); s == Unstarted || s == Closed {
		a.role.Unlock()
		return false
	}
	got, _, err := a.recv.Receive(false, true)
	if got.Any {
		a.idle.busy()
	}
	a.release(err)
	return got.Any
}

// Receive has the Receiver receive for a goroutine that is not a consumer, and
// waits for the role. It reports whether anything came and the stream goes on.
func (a *Attention) Receive() bool {
	a.role.Lock()
	if s := a.State(); s == Unstarted || s == Closed {
		a.role.Unlock()
		return false
	}
	got, _, err := a.recv.Receive(false, false)
	a.release(err)
	return got.Any && err == nil
}

// Looks moves whenever a consumer polls.
func (a *Attention) Looks() uint32 { return a.looks.Load() }

// release gives the role back after a Receive of a goroutine other than the
// attendant, and tells the Receiver how the stream ended if it did.
func (a *Attention) release(err error) {
	left := err == nil && a.recv.Left()
	ended := a.end(err)
	a.recv.Deliver()
	if ended {
		a.recv.Ended(err)
	}
	if left {
		switch from, do := a.move(Left); {
		case do == Dedicate:
			a.dedicate()
		case from == Dedicated:
			a.src.Interrupt() // it may be asleep at the source
		}
	}
}

// end is release, but whether the Receiver is to be told is left to the caller.
func (a *Attention) end(err error) bool {
	ended := err != nil && a.State() != Closed
	if ended {
		a.move(Close)
	}
	a.role.Unlock()
	if ended {
		a.wakeGoroutine()
	}
	return ended
}

// Wait tells that a consumer stops looking: something else has to receive from
// now on.
func (a *Attention) Wait() {
	// First, so that a goroutine which found the consumer looking and steps aside
	// finds that it does not look any more, or is resumed below.
	a.waited.Store(true)
	if a.State() == Reserved && a.endReservation() {
		return
	}
	if _, do := a.move(Wait); do == Resume {
		a.wakeGoroutine()
	}
}

// endReservation leads from Reserved on. It returns false if another consumer's Wait has done that
// since the caller saw Reserved: registering the source once more would end its registration.
func (a *Attention) endReservation() bool {
	a.role.Lock()
	defer a.role.Unlock()
	if a.State() != Reserved {
		return false
	}
	a.begin(Reserved, Wait)
	return true
}

func (a *Attention) wakeGoroutine() {
	select {
	case a.resume <- struct{}{}:
	default:
	}
}

// looked reports that a consumer looks at the source: it has polled, and there was
// no Wait since an arrival was last taken. A consumer that polls once more behind
// its Wait, since something may have arrived before, does not count as looking.
func (a *Attention) looked() bool {
	looks := a.looks.Load()
	if looks == a.seen.Load() {
		return false
	}
	if !a.waited.Swap(false) {
		return true
	}
	a.seen.Store(looks)
	return false
}

// Close ends the attention. It waits for the receive role, which closed is called
// in, and not for goroutines; see Join. The source is open until Close returns.
func (a *Attention) Close(closed func()) {
	a.role.Lock()
	a.move(Close)
	closed()
	a.role.Unlock()
	a.deregister()
	WakeAll() // a Sleeper may sleep at the source
	a.wakeGoroutine()
}

// Join waits until nothing of the attention runs any more, after Close and after
// the source was closed.
func (a *Attention) Join() { a.wg.Wait() }

// quietTime is how long no consumer must have looked for the goroutine of a
// connection to return to the source.
const quietTime = time.Millisecond
