package iwarp

import "sync/atomic"

// An event happens once. Its channel is made for the first wait: of most
// events of most streams there is none, and a channel costs as much memory as
// twelve of these. The zero value has not happened.
type event struct {
	ch atomic.Pointer[chan struct{}] // nil: nothing waits; &happened: it has happened
}

var happened = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// happen makes the event happen and reports whether it had not before.
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

// C returns a channel that is closed when the event has happened.
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
