package attend

import (
	"errors"
	"io"
	"os"
	"time"

	"viaduct/internal/budget"
	"viaduct/internal/perturb"
)

// dedicate removes the source from the shared poller, if any, and starts the goroutine of the
// connection. The goroutine first reads until nothing is left, so no report of the poller is lost.
func (a *Attention) dedicate() {
	a.shared.leave(a)
	Go(true, func() {
		a.role.Lock()
		open := a.State() != Closed
		if open {
			a.wg.Add(1) // Close locks the role before Join
			a.shared.closely = 0
		}
		a.Unlock()
		if open {
			defer a.wg.Done()
			a.idle.list(a, true)
			(&attendant{a: a}).run()
		}
	})
}

// An attendant is a goroutine receiving for a connection.
type attendant struct {
	a     *Attention
	after then
	mod   moderator
	polls budget.Budget // whether to poll a source that can be polled without a system call
	looks uint32        // value of a.looks when the attendant last checked whether a consumer still polls
	timer *time.Timer
}

// then is the next action of the attendant after leaving the source.
type then uint8

const (
	readOn   then = iota // return to the source at once
	pauseOn              // return to the source after the moderator's pause
	beAside              // leave the source to a consumer
	finished             // end, because the stream has ended
)

// run is the main function of the goroutine. It returns when the state becomes Shared or Closed.
func (d *attendant) run() {
	a := d.a
	defer d.mod.end()
	if a.State() == Polled {
		d.looks = a.looks.Load()
		if !a.looked() { // no consumer polls any more
			a.moveFrom(Polled, Quiet)
		}
		d.after = beAside
	}
	ready := d.ready // created once, because a method value is allocated
	for d.open() {
		if d.after == beAside && !d.aside() {
			return
		}
		perturb.Point()
		switch err := a.src.Sleep(ready); {
		case errors.Is(err, os.ErrDeadlineExceeded): // the sweep found the connection idle
			a.src.Interrupted()
			d.after = readOn
			if d.retire() {
				return
			}
			a.idle.list(a, true)
		case err != nil: // the source is closed
			return
		case d.after == finished:
			return
		case d.after == pauseOn:
			nap(pause)
		}
	}
}

// retire makes the connection wait with a shared poller again. It returns true if the attendant
// must end: the poller has accepted the connection, or the connection is closed.
func (d *attendant) retire() bool {
	a := d.a
	// Close the descriptor first: once the state is Shared, another attendant may open its own.
	a.src.CloseArrivals()
	a.role.Lock()
	defer a.Unlock()
	state := a.State()
	return state == Closed || state != Polled && !a.recv.Left() && process.pollers.add(a, state, Idle)
}

// open makes the source ready for Sleep. While the process has no free descriptor, open reads the
// source every millisecond. open returns false if the stream has ended meanwhile.
func (d *attendant) open() bool {
	for a := d.a; !a.src.OpenArrivals(); {
		time.Sleep(quietTime)
		a.role.Lock()
		if a.State() == Closed {
			a.Unlock()
			return false
		}
		_, _, err := a.recv.Receive(true, false)
		a.release(err)
		if err != nil {
			return false
		}
	}
	return true
}

// ready is the function called by Sleep when the attendant comes to the source, and after each
// report. It returns true if the attendant must leave the source; after is then the next action.
func (d *attendant) ready(uintptr) bool {
	a := d.a
	if !a.role.TryLock() {
		d.contended(true)
		return true
	}
	switch {
	case a.State() == Closed:
		a.Unlock()
		d.after = finished
		return true
	case a.looked():
		a.Unlock()
		d.contended(false)
		return true
	case d.mod.on:
		// No arrival during the pause was reported. If no other pause follows, the next turn calls
		// Arm and reads once more.
		got, _, err := a.recv.Receive(false, false)
		if got.Any {
			a.idle.list(a, false)
			a.idle.note(got.Bytes)
		}
		d.after = readOn
		if d.mod.goesOn(time.Now(), got.Bytes, a.recv.Sent()) {
			d.after = pauseOn
		}
		d.leave(err)
		return true
	}
	d.mod.end()
	d.after = readOn
	switch d.poll() {
	case nothingCame:
	case someCame:
		got, _, err := a.recv.Receive(false, false)
		if got.Any {
			a.idle.list(a, false)
			a.idle.note(got.Bytes)
			if err == nil && d.mod.begins(got.Bytes, a.recv.Sent()) {
				d.after = pauseOn
			}
		}
		d.leave(err)
		return true
	case consumerCame:
		a.Unlock()
		d.contended(false)
		return true
	}
	// Arrivals are reported from here on, so reading until nothing is left misses none.
	if !a.src.Arm() {
		d.leave(io.ErrClosedPipe)
		return true
	}
	got, more, err := a.recv.Receive(true, false)
	if got.Any {
		a.idle.list(a, false)
		a.idle.note(got.Bytes)
		if err == nil && !more && d.mod.begins(got.Bytes, a.recv.Sent()) {
			a.src.Disarm()
			d.after, more = pauseOn, true
		}
	}
	if err == nil && !more && !a.recv.Left() {
		a.recv.Rest()
	}
	return d.leave(err) || more || d.after == finished
}

// Results of poll.
const (
	nothingCame = iota
	someCame
	consumerCame
)

// poll polls the source by the row Attendant, if polling needs no system call. The caller has the
// receive role before and after the call.
func (d *attendant) poll() (came int) {
	a := d.a
	switch {
	case process.processors.Load() == 1 || !a.src.Polls() || !d.polls.Worth():
		return nothingCame
	case a.src.Unread():
		return someCame
	}
	looks := a.looks.Load()
	d.polls.Poll(&budget.Attendant, func() budget.Outcome {
		if a.src.Unread() {
			came = someCame
			return budget.Found
		}
		if l := a.looks.Load(); l != looks {
			if looks = l; a.looked() {
				came = consumerCame
				return budget.Stopped
			}
		}
		return budget.Nothing
	})
	return came
}

// leave unlocks the receive role after a Receive. It returns true if bytes were left and the
// attendant must leave the source: to step aside for a consumer, or to receive the bytes at once.
func (d *attendant) leave(err error) bool {
	a := d.a
	if err != nil || a.State() == Closed {
		d.after = finished
	}
	left, looks := d.after != finished && a.recv.Left(), a.looks.Load()
	ended := a.end(err)
	keep := a.recv.Deliver()
	if ended {
		a.recv.Ended(err)
	}
	if !left {
		return false
	}
	if !keep {
		d.after = readOn
		return true
	}
	a.src.Disarm()
	d.mod.end()
	d.looks, d.after = looks, beAside
	a.move(Left)
	if a.looks.Load() != looks && !a.looked() {
		a.moveFrom(Polled, Quiet) // the consumer has polled, and waits already
	}
	return true
}

// contended leaves the source to a consumer: a consumer has the role (taken), or has polled since
// the last Wait.
func (d *attendant) contended(taken bool) {
	a := d.a
	a.src.Disarm()
	d.mod.end()
	d.mod.forget()
	d.looks, d.after = a.looks.Load(), beAside
	a.move(Contended)
	if !a.looked() {
		// The consumer waits already, and its Wait may have seen no reason to resume the attendant.
		a.moveFrom(Polled, Quiet)
		if taken {
			a.role.Lock()
			a.Unlock() // it is enough to have waited
		}
	}
}

// aside waits until no consumer polls the source any more. It returns false if the stream has
// ended.
func (d *attendant) aside() bool {
	a := d.a
	for {
		switch a.State() {
		case Closed:
			return false
		case Polled:
		default:
			return true
		}
		if d.timer == nil {
			d.timer = time.NewTimer(quietTime)
		} else {
			d.timer.Reset(quietTime)
		}
		select {
		case <-a.resume:
			d.timer.Stop()
		case <-d.timer.C:
			if looks := a.looks.Load(); looks != d.looks {
				d.looks = looks
			} else {
				a.seen.Store(looks)
				a.moveFrom(Polled, Quiet)
			}
		}
	}
}
