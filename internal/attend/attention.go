package attend

import (
	"sync"
	"sync/atomic"
	"time"

	"viaduct/internal/perturb"
	"viaduct/internal/sock"
)

// A Receiver reads the source of an [Attention] and handles the bytes. All methods but Deliver,
// Ended and Sent are called in the receive role. No method may block.
type Receiver interface {
	// Receive reads and handles the arrived bytes, without waiting. It ends after a short read. If
	// all is set, Receive reads until nothing is left, because only another read after the last
	// bytes finds the end of the stream. more is true if Receive stopped early to let others run.
	// polled is true if a consumer made the call. err is the cause of the stream's end, or nil.
	Receive(all, polled bool) (got Got, more bool, err error)

	// Left reports whether the Receiver has read bytes but left some unhandled. No arrival will be
	// reported for unhandled bytes.
	Left() bool

	// Deliver is called after a Receive, without the role. Deliver passes completions to the
	// consumer. keep reports whether unhandled bytes should wait for a consumer that is about to
	// poll.
	Deliver() (keep bool)

	// Partial reports whether the last read may have been short because memory was unmapped.
	Partial() bool

	// Rest releases memory not needed during a possibly long wait.
	Rest()

	// Ended is called once, without a role, after a Receive has failed with err.
	Ended(err error)

	// Sent returns a number that changes with every write of the connection.
	Sent() uint32
}

// Got is the result of a Receive.
type Got struct {
	Any   bool // whether anything arrived
	Bytes int  // number of bytes that were read from the source
}

// An Attention is the receive role of a connection, and the state of waiting for arrivals. Call
// Init first; the state is then Unstarted. All methods are safe for concurrent use.
//
// Order of locks: the receive role, then the lock of a shared poller.
type Attention struct {
	src  *sock.Socket
	recv Receiver

	role   perturb.Mutex // the receive role
	missed atomic.Bool   // a report of the pair found the role taken
	wg     sync.WaitGroup
	resume chan struct{} // a signal wakes the goroutine in state Polled, which checks the state

	current
	consumers
	idle   idleness
	shared registration
}

// Init sets the source and the Receiver. Call Init before any other method.
func (a *Attention) Init(src *sock.Socket, r Receiver) {
	a.src, a.recv = src, r
	a.resume = make(chan struct{}, 1)
}

// Lock locks the receive role. It never waits for the peer. Unlock unlocks the role.
func (a *Attention) Lock() { a.role.Lock() }

// TryLock locks the receive role if it is free, and reports success.
func (a *Attention) TryLock() bool { return a.role.TryLock() }

// Unlock unlocks the receive role. A report that found the role taken is served then.
func (a *Attention) Unlock() {
	a.role.Unlock()
	if a.missed.Load() && a.missed.Swap(false) {
		serveMissed(a)
	}
}

// Start begins waiting for arrivals. The caller has the receive role.
func (a *Attention) Start() { a.begin(Unstarted, Start) }

// Reserve leaves arrivals to a polling consumer, until the consumer calls Wait. The caller has the
// receive role.
func (a *Attention) Reserve() { a.move(Reserve) }

// begin changes the state from Unstarted or Reserved to Shared, or to Dedicated: if there is no
// shared poller, or if bytes were left for a goroutine to handle first. The caller has the receive
// role.
func (a *Attention) begin(from State, e Event) {
	if !a.recv.Left() && process.pollers.add(a, from, e) {
		return
	}
	if a.moveFrom(from, Busy) {
		a.dedicate()
	}
}

// Poll calls Receive of the Receiver for a consumer, without waiting, and reports whether anything
// arrived. It returns false at once if another goroutine has the role, before Start or Reserve, and
// after Close. While a consumer polls, the goroutine of the connection stays away from the source.
// Before waiting, a consumer calls Wait.
func (a *Attention) Poll() bool {
	a.looks.Add(1)
	if !a.role.TryLock() {
		return false
	}
	if s := a.State(); s == Unstarted || s == Closed {
		a.Unlock()
		return false
	}
	got, _, err := a.recv.Receive(false, true)
	if got.Any {
		a.idle.busy()
	}
	a.release(err)
	return got.Any
}

// Receive calls Receive of the Receiver for a goroutine other than a consumer. Receive waits for
// the role, and reports whether anything arrived and the stream has not ended. The result is false
// before Start or Reserve, and after Close.
func (a *Attention) Receive() bool {
	a.role.Lock()
	if s := a.State(); s == Unstarted || s == Closed {
		a.Unlock()
		return false
	}
	got, _, err := a.recv.Receive(false, false)
	a.release(err)
	return got.Any && err == nil
}

// release unlocks the role after a Receive by a goroutine other than the attendant, and calls
// Deliver. If the stream has ended with err, release calls Ended. If bytes were left, release makes
// an attendant read.
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
			a.src.Interrupt() // the attendant may be asleep at the source
		}
	}
}

// end unlocks the role after a Receive. If the stream has ended with err, end also moves to the
// state Closed and reports true: the caller must call Ended then.
func (a *Attention) end(err error) bool {
	ended := err != nil && a.State() != Closed
	if ended {
		a.move(Close)
	}
	a.Unlock()
	if ended {
		a.wakeGoroutine()
	}
	return ended
}

// Wait announces the end of a consumer's polling, so that another goroutine receives from now on.
func (a *Attention) Wait() {
	// Set waited first: a goroutine stepping aside for the polling consumer then finds by looked
	// that the consumer has stopped, or is resumed below.
	a.waited.Store(true)
	if a.State() == Reserved && a.endReservation() {
		return
	}
	if _, do := a.move(Wait); do == Resume {
		a.wakeGoroutine()
	}
}

// endReservation ends the state Reserved. It returns false if another consumer's Wait has ended the
// state since the caller saw Reserved: a second registration of the source would end the first.
func (a *Attention) endReservation() bool {
	a.role.Lock()
	defer a.Unlock()
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

// Close ends the attention. It waits for the receive role and calls closed in the role. It does not
// wait for goroutines; see Join. The source must be open until Close returns.
func (a *Attention) Close(closed func()) {
	a.role.Lock()
	a.move(Close)
	closed()
	a.Unlock()
	a.shared.leave(a)
	WakeSleeper() // it may be asleep at the source
	a.wakeGoroutine()
}

// Join waits until no goroutine of the attention runs any more. Call Join after Close and after the
// source was closed.
func (a *Attention) Join() { a.wg.Wait() }

// apply applies event e if the state is Shared, and starts an attendant if the transition requires
// one.
func (a *Attention) apply(e Event) {
	if _, do := next(Shared, e); a.moveFrom(Shared, e) && do == Dedicate {
		a.dedicate()
	}
}

// consumers records whether consumers poll the source.
type consumers struct {
	looks  atomic.Uint32 // changes with every Poll
	seen   atomic.Uint32 // polls up to this value of looks do not count; see looked
	waited atomic.Bool   // whether Wait was called since the last call of looked
}

// Looks returns a number that changes whenever a consumer polls.
func (c *consumers) Looks() uint32 { return c.looks.Load() }

// looked reports whether a consumer polls the source, so that arrivals are left to the consumer. It
// returns false if nobody has polled since the polls recorded in seen. It also returns false if
// Wait was called since the last call of looked, and then records all polls so far in seen, because
// a consumer polls once more after Wait to find earlier arrivals.
func (c *consumers) looked() bool {
	looks := c.looks.Load()
	if looks == c.seen.Load() {
		return false
	}
	if !c.waited.Swap(false) {
		return true
	}
	c.seen.Store(looks)
	return false
}

// quietTime is the time without polling by a consumer after which the goroutine of a connection
// returns to the source.
const quietTime = time.Millisecond
