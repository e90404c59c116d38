package iwarp

import "sync/atomic"

// An event happens once. Its channel is made by the first wait, because most events of most streams
// are never waited for, and a channel takes as much memory as twelve events. The zero value has not
// happened.
type event struct {
	ch atomic.Pointer[chan struct{}] // nil: nobody waits; &happened: the event has happened
}

var happened = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// happen makes the event happen. It returns true for the first call and false for later calls.
func (e *event) happen() bool {
	old := e.ch.Swap(&happened)
	if old == &happened {
		return false
	}
	if old != nil {
		close(*old)
	}
	return true
}

// has reports whether the event has happened.
func (e *event) has() bool { return e.ch.Load() == &happened }

// C returns a channel that is closed when the event happens or has happened.
func (e *event) C() <-chan struct{} {
	if p := e.ch.Load(); p != nil {
		return *p
	}
	c := make(chan struct{})
	if e.ch.CompareAndSwap(nil, &c) {
		return c
	}
	return *e.ch.Load()
}
