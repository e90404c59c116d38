package attend

import (
	"runtime"
	"sync/atomic"
	"time"

	"viaduct/internal/budget"
	"viaduct/internal/perturb"
)

// A Sleeper lets a goroutine that waits for an answer sleep at the sockets
// themselves, in one system call. The runtime's way costs a read of the socket
// before the sleep, a switch of goroutines, and the runtime's own look at all
// that it watches.
//
// Such a sleep keeps a thread, and the processor too until the runtime takes it
// away. Where there is only one, nothing else of the program runs meanwhile, and
// the runtime does not look at other sockets and timers. So sleeps are short and
// only a few goroutines sleep so at a time; see TakeSleeper. A goroutine that
// gets no Sleeper sleeps as any other does, and so does each that had one now and
// then.
//
// No wake-up is lost. A Sleeper is asleep from TakeSleeper or Again until Sleep
// returns. Wake does nothing unless it finds the Sleeper asleep; then it makes a
// timer fire that Sleep waits for beside the sockets. So the goroutine looks at
// what it waits for between Again and Sleep: what happened before that look it
// finds there, and whatever happens later finds the Sleeper asleep. The timer has
// been set before that, and only Wake sets it until the sleep is over: it fires,
// and stays so until Sleep has seen it. Sockets are asked for readiness, not for
// changes: what has arrived before Sleep ends it at once.
//
// Nothing tells when a socket is closed at which a goroutine sleeps. Before a
// socket is closed, WakeAll is called, when nothing adds the socket any more. Its
// number may belong to another file when the system call begins; the call returns
// at once then, and has done nothing but look.
//
// A Wake may be late, and end a later sleep of another goroutine: each looks
// whether there was a reason. Besides, the timer ends every sleep within a Period.
//
// Wake may be called by any goroutine at any time, the other methods by the
// goroutine that took the Sleeper.
type Sleeper struct {
	taken  atomic.Bool
	state  atomic.Uint32
	armed  bool // the timer was set and has not been seen to fire
	began  time.Duration
	useful bool // something has arrived since then
	files
}

const (
	// Period is how long a Sleeper sleeps at a stretch.
	Period = time.Millisecond

	// MaxSockets is the number of sockets at which one Sleeper sleeps.
	MaxSockets = 8

	// maxSleepers is how many there are, each with a thread.
	maxSleepers = 4
)

// An Outcome says why a sleep ended.
type Outcome uint8

const (
	Arrived Outcome = iota // a socket has something to be read, or has ended
	Woken                  // Wake was called; or for no reason
	Paused                 // it is time to sleep as other goroutines do
)

// The states of a Sleeper.
const (
	awake  = iota
	asleep // a Wake will be heard
	woken  // there was one
)

var (
	sleepers [maxSleepers]Sleeper

	// processors tells whether a Sleeper keeps everything else from running. Tests change it
	// while goroutines of former ones look at it.
	processors atomic.Int32

	// parked is how many goroutines wait in another way.
	parked atomic.Int32

	period = Period // but in tests

	born = time.Now()

	// sleeps is the budget for sleeping at sockets, and slept its rule.
	sleeps budget.Budget
	slept  = budget.Rule{Max: 1<<10 - 1}
)

func init() { processors.Store(int32(runtime.GOMAXPROCS(0))) }

// Park tells that the caller is going to sleep as any goroutine does, for a
// message or for what comes of one, and Unpark that it is awake again.
func Park()   { parked.Add(1) }
func Unpark() { parked.Add(-1) }

// TakeSleeper returns a Sleeper, asleep and without sockets, or nil: where the
// system can't do it, too many are taken, or the last sleeps were in vain. On a
// single processor, which a Sleeper keeps for itself, only if nothing else waits,
// nothing else can run, and not all the time.
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

// rested tells whether the Sleeper's pause is over. A period that has run out
// unseen ends the pause, or begins it for a goroutine that was just sleeping.
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

// SleepAt adds the source to what z sleeps at; it is false if there is no room, or
// the stream has ended. If the source has to be asked for reports, what came before
// is received here. The caller has the receive role, and not any more when SleepAt
// returns. The source is open.
func (a *Attention) SleepAt(z *Sleeper) bool {
	if !a.src.Ask() {
		defer a.role.Unlock()
		return z.Add(a.src.FD())
	}
	got, more, err := a.recv.Receive(true, true)
	if got.Any {
		a.idle.arrivals.Add(few + 1)
	}
	if more || a.recv.Left() {
		z.Wake() // to go on with it
	}
	added := err == nil && z.Add(a.src.FD())
	a.release(err)
	return added
}

// Free gives the Sleeper back.
func (s *Sleeper) Free() {
	s.state.Store(awake)
	s.taken.Store(false)
}

// Again is as a new TakeSleeper.
func (s *Sleeper) Again() {
	s.clear()
	if !s.armed {
		s.armed, s.useful, s.began = true, false, clock()
		s.set(period)
	}
	perturb.Point()
	s.state.Store(asleep) // from here on only Wake sets the timer
}

// Wake ends the sleep that is in progress, or is about to begin.
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

// Sleep waits for one of the sockets or for Wake. The Sleeper is awake when it
// returns.
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
		return Woken // most likely that fired
	}
	if fired {
		sleeps.Done(&slept, s.useful)
	}
	return o
}

func clock() time.Duration { return time.Since(born) }
