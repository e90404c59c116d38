package sdp

import (
	"time"

	"viaduct/internal/perturb"
)

// A deadline is a moment that can be moved, and a channel that is closed when
// it has come.
type deadline struct {
	mu    perturb.Mutex
	timer *time.Timer
	ch    chan struct{} // closed when the moment has come
	gen   int
	at    time.Time
}

func newDeadline() *deadline { return &deadline{ch: make(chan struct{})} }

// set moves the deadline; the zero time means never.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.gen++
	d.at = t
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	select {
	case <-d.ch:
		d.ch = make(chan struct{})
	default:
	}
	if t.IsZero() {
		return
	}
	left := time.Until(t)
	if left <= 0 {
		close(d.ch)
		return
	}
	gen := d.gen
	d.timer = time.AfterFunc(left, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.gen == gen {
			close(d.ch)
		}
	})
}

// wait returns the channel that is closed when the deadline as it is now has
// come.
func (d *deadline) wait() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ch
}

// within reports whether the deadline comes within the time.
func (d *deadline) within(t time.Duration) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.at.IsZero() && time.Until(d.at) < t
}

// passed reports whether the deadline has come.
func (d *deadline) passed() bool {
	select {
	case <-d.wait():
		return true
	default:
		return false
	}
}
