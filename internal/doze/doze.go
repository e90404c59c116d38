// Package doze lets a goroutine that waits for an answer sleep on the socket
// itself, in one system call. The runtime's way costs a look at the socket before,
// a switch of goroutines, and looks of its own at all that it watches.
//
// Such a sleep keeps a thread, and the processor too until the runtime takes it
// away. Where there is only one, nothing else of the program runs meanwhile, nor
// does anybody look at other sockets and timers. So sleeps are short and only a few
// goroutines sleep so at a time; see Take. Who can't doze sleeps as everybody does,
// and so does each dozer now and then.
//
// # Why no wake-up is lost
//
// A Sleeper is asleep from Take or Again until Sleep returns. Wake does nothing
// unless it finds it asleep; then it makes a timer fire that Sleep waits for beside
// the sockets. So who dozes looks at what it waits for between Take and Sleep: what
// happened before that look it finds there, and who makes it happen later finds the
// sleeper asleep. The timer has then been set before, and nobody but Wake sets it
// until the sleep is over: it fires, and stays so until Sleep has seen it. Sockets
// are asked for readiness, not for changes: what has arrived before Sleep ends it at
// once.
//
// Nothing tells when a socket is closed on which somebody sleeps. Who closes it
// calls WakeAll first, having made sure that nobody adds it any more. Its number
// may belong to another file when the system call begins; that returns at once then,
// and has done nothing but look.
//
// A Wake may be late, and end a later sleep, of anybody: who is woken looks whether
// there was a reason. Besides, the timer ends every sleep within a Period.
package doze

import (
	"runtime"
	"sync/atomic"
	"time"
)

const (
	// Period is how long a sleeper dozes at a stretch.
	Period = time.Millisecond

	// MaxSockets is on how many sockets one sleeper sleeps.
	MaxSockets = 8

	// most is how many doze at a time, each with a thread.
	most = 4

	// maxSkips is how many occasions are passed over at most after sleeps that
	// were in vain.
	maxSkips = 1<<10 - 1
)

// Why a sleep ended.
type Outcome uint8

const (
	Arrived Outcome = iota // a socket has something to be read, or has ended
	Woken                  // Wake was called; or nothing was the matter
	Paused                 // it is time to sleep as everybody does
)

const (
	awake  = iota
	asleep // a Wake will be heard
	woken  // there was one
)

// A Sleeper is what a goroutine dozes with. Wake may be called by anybody at any
// time, the other methods by the goroutine that took it.
type Sleeper struct {
	taken  atomic.Bool
	state  atomic.Uint32
	armed  bool // the timer was set and has not been seen to fire
	began  time.Duration
	useful bool // something has arrived since then
	files
}

var (
	sleepers [most]Sleeper

	// processors tells whether a sleeper keeps everything else from running.
	processors = runtime.GOMAXPROCS(0)

	// parked is how many wait the other way.
	parked atomic.Int32

	period = Period // but in tests

	born = time.Now()

	skip  atomic.Int32 // occasions to be passed over
	skips atomic.Int32 // occasions to be passed over after the next Period in vain
)

// Park tells that the caller is going to sleep as everybody does, for a message
// or for what comes of one, and Unpark that it is awake again.
func Park()   { parked.Add(1) }
func Unpark() { parked.Add(-1) }

// Take returns a sleeper, asleep and without sockets, or nil: where the system
// can't do it, too many doze already, or the last ones waited in vain. On a
// single processor, which a sleeper keeps for itself, only if nobody else waits,
// nobody else can run, and not all the time.
func Take() *Sleeper {
	if skip.Load() > 0 {
		skip.Add(-1)
		return nil
	}
	if processors == 1 {
		if parked.Load() > 0 {
			return nil
		}
		runtime.Gosched()
		if parked.Load() > 0 {
			return nil
		}
	}
	for i := range sleepers[:max(1, min(processors-1, most))] {
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

// rested tells whether the sleeper's pause is over. A period that has run out
// unseen ends it, or begins it for who has just been dozing.
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

// Free gives the sleeper back.
func (s *Sleeper) Free() {
	s.state.Store(awake)
	s.taken.Store(false)
}

// Again is as a new Take.
func (s *Sleeper) Again() {
	s.clear()
	if !s.armed {
		s.armed, s.useful, s.began = true, false, clock()
		s.set(period)
	}
	s.state.Store(asleep) // from here on only Wake sets the timer
}

// Wake ends the sleep that is in progress, or is about to begin.
func (s *Sleeper) Wake() {
	if s.state.Load() == asleep && s.state.CompareAndSwap(asleep, woken) {
		s.set(1)
	}
}

// WakeAll wakes everybody.
func WakeAll() {
	for i := range sleepers {
		sleepers[i].Wake()
	}
}

// Sleep waits for one of the sockets or for Wake. The sleeper is awake when it
// returns.
func (s *Sleeper) Sleep() Outcome {
	o, fired := s.wait()
	if fired {
		s.armed = false
	}
	if o == Arrived {
		s.useful = true
	}
	if s.state.Swap(awake) == woken {
		return Woken // most likely it was that which fired
	}
	if fired {
		n := skips.Load()
		if s.useful {
			n /= 2
		} else {
			n = min(2*n+1, maxSkips)
			skip.Store(n)
		}
		skips.Store(n)
	}
	return o
}

func clock() time.Duration { return time.Since(born) }
