package sdp

import (
	"sync/atomic"
	"time"

	"viaduct/internal/perturb"
)

// A deadline is a changeable time with a channel. The channel is closed when the time has passed.
// The zero value is a deadline without a time.
type deadline struct {
	over atomic.Bool // whether the time has passed

	lock  perturb.Mutex // guards all fields below
	timer *time.Timer
	ch    chan struct{} // closed when the time at has passed; nil until a call of Done
	gen   int           // number of calls of set, so that the timer of an earlier deadline has no effect
	at    time.Time     // the deadline; zero for never
}

// longAgo is a time in the past, to end waiting calls at once.
var longAgo = time.Unix(1, 0)

// set changes the deadline to t; the zero time means never.
func (d *deadline) set(t time.Time) {
	d.lock.Lock()
	defer d.lock.Unlock()
	d.gen++
	d.at = t
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	if d.over.Load() {
		d.over.Store(false)
		d.ch = nil
	}
	if t.IsZero() {
		return
	}
	left := time.Until(t)
	if left <= 0 {
		d.comeLocked()
		return
	}
	gen := d.gen
	d.timer = time.AfterFunc(left, func() {
		d.lock.Lock()
		defer d.lock.Unlock()
		if d.gen == gen {
			d.comeLocked()
		}
	})
}

func (d *deadline) comeLocked() {
	d.over.Store(true)
	if d.ch != nil {
		close(d.ch)
	}
}

// Done returns a channel that is closed when the deadline has passed. After set has replaced a
// passed deadline, Done returns another channel. Done, Deadline, Err and Value make a deadline a
// context.Context.
func (d *deadline) Done() <-chan struct{} {
	d.lock.Lock()
	defer d.lock.Unlock()
	if d.ch == nil {
		d.ch = make(chan struct{})
		if d.over.Load() {
			close(d.ch)
		}
	}
	return d.ch
}

func (d *deadline) Deadline() (at time.Time, ok bool) {
	d.lock.Lock()
	defer d.lock.Unlock()
	return d.at, !d.at.IsZero()
}

func (d *deadline) Err() error {
	if d.passed() {
		return errDeadline
	}
	return nil
}

func (d *deadline) Value(any) any { return nil }

// passed reports whether the deadline has passed.
func (d *deadline) passed() bool { return d.over.Load() }
