package attend

import (
	"math/bits"
	"runtime"
	"sync/atomic"
	"time"

	"viaduct/internal/budget"
	"viaduct/internal/perturb"
)

// A Sleeper lets a goroutine sleep at the sockets themselves until an answer arrives, in a single
// system call. Sleeping through the runtime costs a read of the socket before the sleep, a switch
// of goroutines, and the runtime's own poll of all descriptors.
//
// The sleep occupies a thread, and also a processor until the runtime takes the processor away.
// Other goroutines of the program may need that processor, and on a single processor the runtime does
// not check other sockets and timers. So sleeps are short, there is one Sleeper, and nobody gets it
// while other goroutines run between the waits (see hasCompany). A goroutine without the Sleeper
// sleeps through the runtime, and every other goroutine does so now and then.
//
// No wake-up is lost. A Sleeper is asleep from TakeSleeper or Again until Sleep returns. Wake has
// no effect unless the Sleeper is asleep; then Wake fires a timer, and Sleep waits for the timer
// besides the sockets. The goroutine checks its condition between Again and Sleep: the check finds
// an earlier event, and a later event finds the Sleeper asleep. From Again until the end of Sleep
// only Wake sets the timer, so the timer stays fired until Sleep has seen it. Sockets are polled
// for readiness, not for changes, so earlier bytes end Sleep at once.
//
// Nothing reports the close of a socket to a goroutine asleep there. So WakeSleeper must be called
// before a socket is closed, and after the last SleepAt for the socket. Otherwise the socket's
// number may belong to another file when the system call begins. The call then returns at once, and
// has only polled the other file.
//
// A late Wake may end a later sleep of another goroutine, so each goroutine checks its condition
// after a sleep. The timer ends every sleep within a Period.
//
// Wake is safe for concurrent use. The other methods are for the goroutine that took the Sleeper.
type Sleeper struct {
	period time.Duration // Period; tests set another
	worth  budget.Budget // whether to sleep at sockets

	// company has a bit for each of the last calls of hasCompany, set if other goroutines ran.
	company atomic.Uint32

	taken  atomic.Bool
	state  atomic.Uint32
	armed  bool // the timer was set, and was not seen to fire
	began  time.Duration
	useful bool // something has arrived since began
	files
}

const (
	// Period is the longest time of a sleep.
	Period = time.Millisecond

	// aloneTime is the longest time in which Gosched returns if no other goroutine can run.
	aloneTime = time.Microsecond

	// MaxSockets is the largest number of sockets of a Sleeper.
	MaxSockets = 8
)

// An Outcome is the reason why a sleep ended.
type Outcome uint8

const (
	Arrived Outcome = iota // bytes have arrived at a socket, or a stream has ended
	Woken                  // Wake was called, or a signal ended the system call
	Paused                 // the caller should sleep through the runtime now
)

// States of a Sleeper.
const (
	awake  = iota
	asleep // Wake has an effect
	woken  // Wake was called
)

var born = time.Now()

// Park records the start of a sleep through the runtime, for a message or a result. Unpark records
// the end of the sleep.
func Park()   { process.parked.Add(1) }
func Unpark() { process.parked.Add(-1) }

// TakeSleeper returns the Sleeper, asleep and without sockets. The result is nil if the system has
// none, if another goroutine has it, if the caller has company, if the last sleeps were useless, and
// once after a useful period (see rested). On a single processor, which the Sleeper occupies, the
// result is also nil while another goroutine waits.
func TakeSleeper() *Sleeper {
	s := &process.sleeper
	if !s.worth.Worth() || process.processors.Load() == 1 && process.parked.Load() > 0 {
		return nil
	}
	if s.hasCompany() || process.processors.Load() == 1 && process.parked.Load() > 0 || !s.taken.CompareAndSwap(false, true) {
		return nil
	}
	if !s.open() || !s.rested() {
		s.taken.Store(false)
		return nil
	}
	s.Again()
	return s
}

// hasCompany lets other goroutines run, and reports whether any did in at least two of its last eight
// calls. A single time may be an interruption of the thread, or a goroutine of the runtime. A sleep
// would keep such goroutines from their processor: calls of gRPC, where four goroutines of each
// process work for one call, take twice as long with it. Concurrent calls may lose a bit.
func (s *Sleeper) hasCompany() bool {
	start := clock()
	runtime.Gosched()
	h := s.company.Load() << 1
	if clock()-start > aloneTime {
		h |= 1
	}
	s.company.Store(h)
	return bits.OnesCount8(uint8(h)) > 1
}

// rested reports whether the Sleeper may be used. If the timer has expired while nobody slept, a
// goroutine that has just slept must sleep through the runtime once, as after Paused: rested then
// returns false once.
func (s *Sleeper) rested() bool {
	age := clock() - s.began
	if s.armed && age >= s.period {
		s.armed = false
		if s.useful && age < 2*s.period {
			s.useful = false
			return false
		}
	}
	return true
}

// SleepAt adds the source to the sources that wake z. The result is false if there is no room, or
// if the stream has ended. If the source needs a request for each report, SleepAt also receives
// earlier arrivals. The caller has the receive role, which SleepAt unlocks. The source must be
// open.
func (a *Attention) SleepAt(z *Sleeper) bool {
	if !a.src.Ask() {
		defer a.Unlock()
		return z.Add(a.src.FD())
	}
	got, more, err := a.recv.Receive(true, true)
	if got.Any {
		a.idle.arrivals.Add(few + 1)
	}
	if more || a.recv.Left() {
		z.Wake() // so that the left bytes are received
	}
	added := err == nil && z.Add(a.src.FD())
	a.release(err)
	return added
}

// Free makes the Sleeper available to TakeSleeper.
func (s *Sleeper) Free() {
	s.state.Store(awake)
	s.taken.Store(false)
}

// Again prepares the Sleeper for another sleep, asleep and without sockets.
func (s *Sleeper) Again() {
	s.clear()
	if !s.armed {
		s.armed, s.useful, s.began = true, false, clock()
		s.set(s.period)
	}
	perturb.Point()
	s.state.Store(asleep) // from here on only Wake sets the timer
}

// Wake ends the current or imminent sleep. There is no effect on an awake Sleeper.
func (s *Sleeper) Wake() {
	if s.state.Load() == asleep && s.state.CompareAndSwap(asleep, woken) {
		perturb.Point()
		s.set(1)
	}
}

// WakeSleeper wakes the Sleeper, whoever has it.
func WakeSleeper() { process.sleeper.Wake() }

// Sleep waits for any of the sockets or for Wake, at most a Period. The Sleeper is awake
// afterwards.
func (s *Sleeper) Sleep() Outcome {
	perturb.Point()
	o, fired := s.wait()
	perturb.Point()
	if fired {
		s.armed = false
	}
	if o == Arrived {
		s.useful = true
	}
	if s.state.Swap(awake) == woken {
		return Woken // most likely Wake fired the timer
	}
	if fired {
		s.worth.Done(&budget.Sleep, s.useful)
	}
	return o
}

func clock() time.Duration { return time.Since(born) }
