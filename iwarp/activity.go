package iwarp

import (
	"sync/atomic"
	"time"

	"viaduct/internal/counter"
)

// An activity is the time of the last traffic. Reading the clock takes a good part of the time of a
// short message, so a polling consumer records the activity in the next empty poll.
type activity struct {
	born     time.Time
	received counter.Counter // received FPDUs, counted only by the goroutine with the receive role
	moved    atomic.Int64    // time of the last traffic, in nanoseconds since born
	noted    atomic.Uint64   // value of received when moved was set
}

// last returns the time of the last activity.
func (a *activity) last() time.Time {
	a.noteNew()
	return a.born.Add(time.Duration(a.moved.Load()))
}

// noteNew records the activity if FPDUs have arrived since it was last recorded.
func (a *activity) noteNew() {
	if a.unnoted() {
		a.note()
	}
}

// unnoted reports whether FPDUs have arrived since the activity was last recorded.
func (a *activity) unnoted() bool { return a.received.Load() != a.noted.Load() }

// note records the present moment as the time of the traffic received so far.
func (a *activity) note() {
	a.noted.Store(a.received.Load())
	a.touch()
}

// touch records the present moment as the time of the last activity.
func (a *activity) touch() {
	a.moved.Store(int64(time.Since(a.born)))
}
