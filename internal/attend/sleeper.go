package attend

import (
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
// The sleep occupies a thread, and also the processor until the runtime takes the processor away.
// With only one processor, no other goroutine of the program runs meanwhile, and the runtime does
// not check other sockets and timers. So sleeps are short, and only a few goroutines use a Sleeper
// at a time; see TakeSleeper. A goroutine without a Sleeper sleeps through the runtime, and every
// other goroutine does so now and then.
//
// No wake-up is lost. A Sleeper is asleep from TakeSleeper or Again until Sleep returns. Wake has
// no effect unless the Sleeper is asleep; then Wake fires a timer, and Sleep waits for the timer
// besides the sockets. The goroutine checks its condition between Again and Sleep: the check finds
// an earlier event, and a later event finds the Sleeper asleep. From Again until the end of Sleep
// only Wake sets the timer, so the timer stays fired until Sleep has seen it. Sockets are polled
// for readiness, not for changes, so earlier bytes end Sleep at once.
//
// Nothing reports the close of a socket to a goroutine asleep there. So WakeAll must be called
// before a socket is closed, and after the last SleepAt for the socket. Otherwise the socket's
// number may belong to another file when the system call begins. The call then returns at once, and
// has only polled the other file.
//
// A late Wake may end a later sleep of another goroutine, so each goroutine checks its condition
// after a sleep. The timer ends every sleep within a Period.
//
// Wake is safe for concurrent use. The other methods are for the goroutine that took the Sleeper.
type Sleeper struct {
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

	// MaxSockets is the largest number of sockets of a Sleeper.
	MaxSockets = 8

	// maxSleepers is the number of Sleepers. Each occupies a thread.
	maxSleepers = 4
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

var (
	sleepers [maxSleepers]Sleeper

	// processors is the number of processors. With a single processor, a Sleeper keeps all other
	// goroutines from running. The number is atomic, because tests change it while goroutines of
	// earlier tests read.
	processors atomic.Int32

	// parked is the number of goroutines waiting through the runtime.
	parked atomic.Int32

	period = Period // a variable, because tests change it

	born = time.Now()

	// sleeps is the budget for sleeping at sockets, and slept the back-off.
	sleeps budget.Budget
	slept  = budget.Rule{Max: 1<<10 - 1}
)

func init() { processors.Store(int32(runtime.GOMAXPROCS(0))) }

// Park records the start of a sleep through the runtime, for a message or a result. Unpark records
// the end of the sleep.
func Park()   { parked.Add(1) }
func Unpark() { parked.Add(-1) }

// TakeSleeper returns a Sleeper, asleep and without sockets. The result is nil if the system has
// none, if too many are taken, if the last sleeps were useless, and once after a useful period (see
// rested). On a single processor, which a Sleeper occupies, the result is also nil while another
// goroutine waits.
func TakeSleeper() *Sleeper {
	if !sleeps.Worth() {
		return nil
	}
	if processors.Load() == 1 {
		if parked.Load() > 0 {
			return nil
		}
		runtime.Gosched()
		if parked.Load() > 0 {
			return nil
		}
	}
	for i := range sleepers[:max(1, min(int(processors.Load())-1, maxSleepers))] {
		s := &sleepers[i]
		if s.taken.Load() || !s.taken.CompareAndSwap(false, true) {
			continue
		}
		if !s.open() || !s.rested() {
			s.taken.Store(false)
			break
		}
		s.Again()
		return s
	}
	return nil
}

// rested reports whether the Sleeper may be used. If the timer has expired while nobody slept, a
// goroutine that has just slept must sleep through the runtime once, as after Paused: rested then
// returns false once.
func (s *Sleeper) rested() bool {
	age := clock() - s.began
	if s.armed && age >= period {
		s.armed = false
		if s.useful && age < 2*period {
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
		defer a.unlock()
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
		s.set(period)
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

// WakeAll wakes all Sleepers.
func WakeAll() {
	for i := range sleepers {
		sleepers[i].Wake()
	}
}

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
		sleeps.Done(&slept, s.useful)
	}
	return o
}

func clock() time.Duration { return time.Since(born) }
