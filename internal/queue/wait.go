package queue

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"

	"viaduct/internal/doze"
)

// A Progress lets a waiting consumer drive the connections that fill its
// queue: reading the socket itself costs a tenth of waiting for a goroutine
// that was parked on it.
type Progress interface {
	// Poll handles what has arrived, without blocking, and tells whether
	// anything had.
	Poll() bool

	// Unpoll tells that the consumer is going to sleep: something else has
	// to receive from now on.
	Unpoll()
}

// spin is how long a consumer polls in vain before it sleeps. Waking a goroutine
// whose processor went idle takes about as long.
const spin = 30 * time.Microsecond

// processors tells whether polling keeps the other side from running. Where
// there is one, what is going to come has not come yet, most of the time: who
// sleeps at once gets more of it together.
var processors = runtime.GOMAXPROCS(0)

// A Dozer is a Progress whose consumer can sleep on the connections itself.
type Dozer interface {
	Progress

	// Expects tells whether something was sent since somebody last dozed, so
	// that what comes next may be an answer. Streams are better left to pile up:
	// to be woken for each message costs both ends more than they gain.
	Expects() bool

	// Doze adds all connections to what s sleeps on. It is false if that can't
	// be done.
	Doze(s *doze.Sleeper) bool
}

type source interface {
	// readyLocked tells whether waiting is over, with an error if it is for
	// want of anything to wait for.
	readyLocked() (bool, error)
}

// await returns nil, with mu held, once s is ready; or an error, with mu
// free. It is called with mu held.
func await(ctx context.Context, mu *sync.Mutex, ws *Waiters, s source, p Progress) error {
	if ok, err := s.readyLocked(); ok || err != nil {
		return held(mu, err)
	}
	if p != nil {
		mu.Unlock()
		looks := processors > 1 && ws.looks.Worth()
		for start := time.Now(); looks; {
			got := p.Poll()
			mu.Lock()
			if ok, err := s.readyLocked(); ok || err != nil {
				ws.looks.Done(true)
				return held(mu, err)
			}
			mu.Unlock()
			if got {
				// Other traffic may go on for ever.
				if ctx.Err() != nil {
					break
				}
				start = time.Now() // more is likely to come soon
			} else if time.Since(start) > spin {
				ws.looks.Done(false)
				break
			}
		}
		if d, ok := p.(Dozer); ok {
			if over, err := dozing(ctx, mu, ws, s, d); over {
				return held(mu, err)
			}
		}
		p.Unpoll()
		mu.Lock()
	}
	for {
		if ok, err := s.readyLocked(); ok || err != nil {
			return held(mu, err)
		}
		w := ws.AddLocked()
		mu.Unlock()
		var err error
		doze.Park()
		select {
		case <-w.wake:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		doze.Unpark()
		mu.Lock()
		ws.RemoveLocked(w)
		if err != nil {
			if ok, _ := s.readyLocked(); ok {
				return nil // a result wins over the context
			}
			mu.Unlock()
			return err
		}
	}
}

// dozing waits for s by sleeping on the connections. over tells that waiting is
// over, with mu held; else it is to go on another way, and mu is free, as it is
// when dozing is called. The end of ctx is heard of by that other way, within a
// doze.Period.
//
// No wake-up is lost: s is looked at under mu after z fell asleep, and who makes it
// ready later finds the waiter in the list, under mu, and wakes z with it. What
// arrives on a connection ends the sleep, and whatever else reads the connection
// makes s ready if that is what came. What is read here by Poll is looked at after.
func dozing(ctx context.Context, mu *sync.Mutex, ws *Waiters, s source, d Dozer) (over bool, err error) {
	if !d.Expects() || ctx.Err() != nil {
		return false, nil
	}
	if at, ok := ctx.Deadline(); ok && time.Until(at) < doze.Period {
		return false, nil // a doze may be late for it
	}
	z := doze.Take()
	if z == nil {
		return false, nil
	}
	defer z.Free()
	for d.Doze(z) {
		mu.Lock()
		if ok, err := s.readyLocked(); ok || err != nil {
			return true, err
		}
		w := ws.AddLocked()
		w.dozing = z // from here on who makes s ready wakes z
		mu.Unlock()
		o := z.Sleep()
		mu.Lock()
		w.dozing = nil
		ws.RemoveLocked(w)
		if ok, err := s.readyLocked(); ok || err != nil {
			return true, err
		}
		mu.Unlock()
		got := d.Poll()
		mu.Lock()
		if ok, err := s.readyLocked(); ok || err != nil {
			return true, err
		}
		mu.Unlock()
		if o != doze.Woken && !got || ctx.Err() != nil {
			return false, nil // somebody else receives, or it takes long
		}
		z.Again()
	}
	return false, nil
}

func held(mu *sync.Mutex, err error) error {
	if err != nil {
		mu.Unlock()
	}
	return err
}

// Waiters is a list of sleeping goroutines. Its methods are called with the
// lock of what they wait for held.
type Waiters struct {
	looks doze.Looks // whether one who waits polls first
	list  []*Waiter
	free  []*Waiter // for reuse; not shared between queues, whose channels may belong to different test bubbles
}

// A Waiter is one sleeping goroutine.
type Waiter struct {
	wake   chan struct{}
	dozing *doze.Sleeper // what it sleeps with, if that is not the channel
}

// spareWaiters is how many a queue keeps for reuse.
const spareWaiters = 8

// AddLocked appends a waiter.
func (ws *Waiters) AddLocked() *Waiter {
	var w *Waiter
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
	k := min(n, len(ws.list))
	for i, w := range ws.list[:k] {
		w.wake <- struct{}{}
		if w.dozing != nil {
			w.dozing.Wake()
		}
		ws.list[i] = nil
	}
	if k > 0 {
		ws.list = ws.list[:copy(ws.list, ws.list[k:])]
	}
}

// WakeAllLocked wakes everybody.
func (ws *Waiters) WakeAllLocked() { ws.WakeLocked(len(ws.list)) }

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
