package attend

import (
	"context"
	"math"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"viaduct/internal/budget"
	"viaduct/internal/perturb"
)

// A Progress lets a waiting consumer receive on the connections it waits for:
// reading the source itself costs a tenth of waiting for a goroutine that sleeps
// at it.
type Progress interface {
	// Poll handles what has arrived, without blocking, and tells whether
	// anything had.
	Poll() bool

	// Unpoll tells that the consumer is going to sleep: something else has
	// to receive from now on.
	Unpoll()
}

// A SourceSleeper is a Progress whose consumer can sleep at the sources
// themselves.
type SourceSleeper interface {
	Progress

	// Expects tells whether something was sent since a consumer last slept at the
	// sources, so that what comes next may be an answer. Streams are better left to
	// accumulate: to be woken for each message costs both ends more than they gain.
	Expects() bool

	// Near tells whether the other ends are all on this host.
	Near() bool

	// SleepAt adds all sources to what s sleeps at. It is false if that can't
	// be done.
	SleepAt(s *Sleeper) bool
}

// ProgressOf returns what drives the connections of a completion queue of package
// iwarp, which sets it: types of this package are no part of that one's interface.
var ProgressOf func(queue any) SourceSleeper

// CloseSoon closes a stream of package iwarp, which sets it, as its Close does, if
// that needs no wait to speak of. It is false if the stream has yet to be closed.
var CloseSoon func(qp any) bool

// A Condition is what a consumer waits for.
type Condition interface {
	// ReadyLocked tells whether waiting is over, with an error if there is nothing
	// left to wait for.
	ReadyLocked() (bool, error)
}

const (
	// SpinTime is how long a consumer polls in vain before it sleeps. Waking a
	// goroutine whose processor went idle takes about as long.
	SpinTime = 30 * time.Microsecond

	// NearSpinTime is SpinTime where the other ends are on this host and this process
	// waits for nothing else just now. If both ends sleep, each waits for the other's
	// wake-up as well as its own, with two idle processors: on a virtual machine that is
	// up to 100 us of a round trip, which takes 20 us where both poll, and costs them
	// three times the processor time.
	NearSpinTime = 200 * time.Microsecond
)

// looking is how consumers back off whose polls before a sleep are in vain: where that
// happens, the other end is likely to wait for this very processor. An answer that came
// in time then does not tell that the next one will.
var looking = budget.Rule{Grace: 1, Hits: 8, Max: 255}

// spinning is how many consumers poll before a sleep.
var spinning atomic.Int32

// Until waits until c is ready: it returns nil with mu held, or an error with mu
// free. It is called with mu held. A result wins over a context that has ended,
// whose cause is the error otherwise. p may be nil.
//
// Until does not poll on a single processor: polling would delay the sender, and sleeping
// lets several messages arrive for each wake-up. When more goroutines wait than there are
// processors, it neither polls nor sleeps at the sources, because a thread that sleeps in
// ppoll holds one of Go's processors until the runtime takes that away.
func Until(ctx context.Context, mu *perturb.Mutex, ws *Waiters, c Condition, p Progress) error {
	if ok, err := c.ReadyLocked(); ok || err != nil {
		return held(mu, err)
	}
	if p != nil {
		mu.Unlock()
		n, others := int(processors.Load()), recent.others(ws)
		crowded := others > n
		if n > 1 && !crowded && ws.looks.Worth() {
			if over, err := spin(ctx, mu, ws, c, p, others); over {
				return held(mu, err)
			}
		}
		if s, ok := p.(SourceSleeper); ok && !crowded {
			if over, err := sleepAtSources(ctx, mu, ws, c, s); over {
				return held(mu, err)
			}
		}
		perturb.Point()
		p.Unpoll()
		mu.Lock()
	}
	for {
		if ok, err := c.ReadyLocked(); ok || err != nil {
			return held(mu, err)
		}
		w := ws.AddLocked()
		mu.Unlock()
		var err error
		Park()
		select {
		case <-w.wake:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		Unpark()
		mu.Lock()
		ws.RemoveLocked(w)
		if err != nil {
			if ok, _ := c.ReadyLocked(); ok {
				return nil // a result wins over the context
			}
			mu.Unlock()
			return err
		}
	}
}

// spin polls for c for a moment; others is how much else is waited for. over tells that
// waiting is over, with mu held; else mu is free, as it is when spin is called.
func spin(ctx context.Context, mu *perturb.Mutex, ws *Waiters, c Condition, p Progress, others int) (over bool, err error) {
	lone := spinning.Add(1) == 1 && others == 0
	defer spinning.Add(-1)
	moment := SpinTime
	if s, ok := p.(SourceSleeper); ok && lone && s.Near() {
		moment = NearSpinTime
	}
	for start := time.Now(); ; {
		got := p.Poll()
		mu.Lock()
		if ok, err := c.ReadyLocked(); ok || err != nil {
			ws.looks.Hit(&looking)
			return true, err
		}
		mu.Unlock()
		switch {
		case got:
			// Other traffic may go on for ever.
			if ctx.Err() != nil {
				return false, nil
			}
			start = time.Now() // more is likely to come soon
		case time.Since(start) > moment:
			ws.looks.Miss(&looking)
			return false, nil
		default:
			// Each look costs the sender something too, and the other end may be
			// a goroutine that waits for this very processor.
			runtime.Gosched()
		}
	}
}

// sleepAtSources waits for c by sleeping at the sources. over tells that waiting
// is over, with mu held; else it is to go on another way, and mu is free, as it
// is when sleepAtSources is called. The end of ctx is heard of by that other way,
// within a Period.
//
// No wake-up is lost: c is looked at under mu after z fell asleep, and what makes
// it ready later finds the waiter in the list, under mu, and wakes z with it. What
// arrives at a source ends the sleep, and whatever else reads the source makes c
// ready if that is what came. What is read here by Poll is looked at after.
func sleepAtSources(ctx context.Context, mu *perturb.Mutex, ws *Waiters, c Condition, s SourceSleeper) (over bool, err error) {
	if !s.Expects() || ctx.Err() != nil {
		return false, nil
	}
	if at, ok := ctx.Deadline(); ok && time.Until(at) < Period {
		return false, nil // the sleep may end too late for it
	}
	z := TakeSleeper()
	if z == nil {
		return false, nil
	}
	defer z.Free()
	for s.SleepAt(z) {
		mu.Lock()
		if ok, err := c.ReadyLocked(); ok || err != nil {
			return true, err
		}
		w := ws.AddLocked()
		w.sleeper = z // from here on what makes c ready wakes z
		mu.Unlock()
		o := z.Sleep()
		mu.Lock()
		w.sleeper = nil
		ws.RemoveLocked(w)
		if ok, err := c.ReadyLocked(); ok || err != nil {
			return true, err
		}
		mu.Unlock()
		got := s.Poll()
		mu.Lock()
		if ok, err := c.ReadyLocked(); ok || err != nil {
			return true, err
		}
		mu.Unlock()
		if o != Woken && !got || ctx.Err() != nil {
			return false, nil // something else receives, or it takes long
		}
		z.Again()
	}
	return false, nil
}

// AssumeProcessors has this package behave as on n processors, until undo is
// called. It is for tests.
func AssumeProcessors(n int) (undo func()) {
	before := processors.Swap(int32(n))
	return func() { processors.Store(before) }
}

func held(mu *perturb.Mutex, err error) error {
	if err != nil {
		mu.Unlock()
	}
	return err
}

// Waiters is a list of sleeping goroutines. Its methods are called with the
// lock of what they wait for held.
type Waiters struct {
	looks    budget.Budget // whether a goroutine that waits polls first
	id       atomic.Uint32 // for a history; 0 before the first wait
	*waiting               // nil until one sleeps: an idle connection has several lists
}

type waiting struct {
	list []*Waiter
	free []*Waiter // for reuse; not shared between queues, whose channels may belong to different test bubbles
}

// A Waiter is one sleeping goroutine.
type Waiter struct {
	wake    chan struct{}
	sleeper *Sleeper // what it sleeps with, if that is not the channel
}

// spareWaiters is how many a list keeps for reuse.
const spareWaiters = 8

// AddLocked appends a waiter.
func (ws *Waiters) AddLocked() *Waiter {
	var w *Waiter
	if ws.waiting == nil {
		ws.waiting = new(waiting)
	}
	if n := len(ws.free); n > 0 {
		w = ws.free[n-1]
		ws.free = ws.free[:n-1]
	} else {
		w = &Waiter{wake: make(chan struct{}, 1)}
	}
	ws.list = append(ws.list, w)
	return w
}

// WakeLocked wakes the n first waiters, or as many as there are.
func (ws *Waiters) WakeLocked(n int) {
	if ws.waiting == nil {
		return
	}
	k := min(n, len(ws.list))
	for i, w := range ws.list[:k] {
		w.wake <- struct{}{}
		if w.sleeper != nil {
			w.sleeper.Wake()
		}
		ws.list[i] = nil
	}
	if k > 0 {
		ws.list = ws.list[:copy(ws.list, ws.list[k:])]
	}
}

// WakeAllLocked wakes all waiters.
func (ws *Waiters) WakeAllLocked() { ws.WakeLocked(math.MaxInt) }

// RemoveLocked ends a wait: w was woken, or gave up. A wake-up that w did not
// use goes to the next.
func (ws *Waiters) RemoveLocked(w *Waiter) {
	if i := slices.Index(ws.list, w); i >= 0 {
		ws.list = slices.Delete(ws.list, i, i+1)
	}
	select {
	case <-w.wake:
		ws.WakeLocked(1)
	default:
	}
	if len(ws.free) < spareWaiters {
		ws.free = append(ws.free, w)
	}
}
