package attend

import (
	"context"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"viaduct/internal/budget"
	"viaduct/internal/perturb"
)

// A Progress lets a waiting consumer receive on the connections itself. Waiting for another
// goroutine, asleep at the source, would cost ten times as much.
type Progress interface {
	// Poll handles arrivals, without blocking, and reports whether there were any.
	Poll() bool

	// Unpoll announces the consumer's sleep, so that another goroutine receives from now on.
	Unpoll()
}

// A SourceSleeper is a Progress whose consumer can sleep at the sources themselves.
type SourceSleeper interface {
	Progress

	// Expects reports whether something was sent since a consumer last slept at the sources: then
	// the next arrival may be an answer. Otherwise arrivals may be a stream, which is better left
	// to accumulate: a wake-up for each message costs both ends more than it gains.
	Expects() bool

	// Near reports whether all peers are on the same host.
	Near() bool

	// SleepAt adds all sources to the sources of s. The result is false if a source cannot be
	// added.
	SleepAt(s *Sleeper) bool
}

// A Condition is the condition a consumer waits for, for example that a queue has an entry.
type Condition interface {
	// ReadyLocked reports whether waiting is over. The error is not nil if the condition can never
	// become true.
	ReadyLocked() (bool, error)
}

// Until waits until c is ready. The caller holds mu. Until returns nil with mu held, or an error
// without mu. The error is the cause of ctx if ctx has ended, but a ready c wins. p, which may be
// nil, receives for the consumer.
//
// Until does not poll on a single processor: polling would delay the sender, and sleeping lets
// several messages arrive for each wake-up. When more goroutines wait than there are processors,
// Until neither polls nor sleeps at the sources, because a thread asleep in ppoll holds a processor
// of Go's scheduler until the runtime takes the processor away.
func Until(ctx context.Context, mu *perturb.Mutex, ws *Waiters, c Condition, p Progress) error {
	if ok, err := c.ReadyLocked(); ok || err != nil {
		return held(mu, err)
	}
	if p != nil {
		mu.Unlock()
		n, others := int(process.processors.Load()), process.recent.others(ws)
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
				return nil // a ready condition wins over the context
			}
			mu.Unlock()
			return err
		}
	}
}

// spin polls until c is ready, by the row Wait or WaitNear. others is the number of other waits. spin
// is called without mu. If over is true, waiting is over, and mu is held; otherwise mu is not held.
func spin(ctx context.Context, mu *perturb.Mutex, ws *Waiters, c Condition, p Progress, others int) (over bool, err error) {
	lone := process.spinning.Add(1) == 1 && others == 0
	defer process.spinning.Add(-1)
	row := &budget.Wait
	if s, ok := p.(SourceSleeper); ok && lone && s.Near() {
		row = &budget.WaitNear
	}
	over = ws.looks.Poll(row, func() budget.Outcome {
		got := p.Poll()
		mu.Lock()
		var ok bool
		if ok, err = c.ReadyLocked(); ok || err != nil {
			return budget.Found // with mu
		}
		mu.Unlock()
		switch {
		case !got:
			return budget.Nothing
		case ctx.Err() != nil: // arrivals of other messages may continue for ever
			return budget.Stopped
		}
		return budget.Arrived
	}) == budget.Found
	return over, err
}

// sleepAtSources waits for c by sleeping at the sources. The caller does not hold mu. If over is
// true, waiting is over, and mu is held. Otherwise mu is not held, and the caller must wait through
// the runtime. Each sleep ends within a Period, so that the end of ctx is noticed.
//
// No wake-up is lost. c is checked under mu after z fell asleep. Whoever makes c ready later finds
// the waiter in the list, under mu, and wakes z. An arrival at a source ends the sleep. If another
// goroutine reads the arrival, the goroutine makes c ready. c is checked again after the Poll
// below.
func sleepAtSources(ctx context.Context, mu *perturb.Mutex, ws *Waiters, c Condition, s SourceSleeper) (over bool, err error) {
	if !s.Expects() || ctx.Err() != nil {
		return false, nil
	}
	if at, ok := ctx.Deadline(); ok && time.Until(at) < Period {
		return false, nil // the sleep may end after the deadline
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
		w.sleeper = z // from here on an event that makes c ready wakes z
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
			return false, nil // another goroutine receives, or the wait is long
		}
		z.Again()
	}
	return false, nil
}

// AssumeProcessors, for tests, makes the package behave as on n processors, until undo is called.
func AssumeProcessors(n int) (undo func()) {
	before := process.processors.Swap(int32(n))
	return func() { process.processors.Store(before) }
}

func held(mu *perturb.Mutex, err error) error {
	if err != nil {
		mu.Unlock()
	}
	return err
}

// Waiters is a list of sleeping goroutines. Its methods are called with the lock of their condition
// held.
type Waiters struct {
	looks    budget.Budget // whether a waiting goroutine polls first
	id       atomic.Uint32 // key in the history; 0 before the first wait
	*waiting               // nil until a consumer sleeps, so that the several lists of an idle connection are small
}

type waiting struct {
	list []*Waiter
	free []*Waiter // for reuse; not shared between queues, whose channels may belong to different test bubbles
}

// A Waiter is a sleeping goroutine.
type Waiter struct {
	wake    chan struct{}
	sleeper *Sleeper // the Sleeper that the consumer sleeps with, or nil
}

// spareWaiters is the number of Waiters a list keeps for reuse.
const spareWaiters = 8

// AddLocked appends and returns a waiter.
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

// WakeLocked wakes the first n waiters, or all if there are fewer.
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

// RemoveLocked ends a wait: w was woken, or gave up. A wake-up not used by w goes to the next
// waiter.
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
