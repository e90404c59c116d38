package iwarp

import (
	"sync"
	"sync/atomic"
	"testing"
)

// TestEvent checks that an event happens once and is seen by every waiter, whether the wait began
// earlier or later.
func TestEvent(t *testing.T) {
	for range 200 {
		var e event
		var first atomic.Int32
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				<-e.C()
				if !e.has() {
					t.Error("told of what has not happened")
				}
			})
			wg.Go(func() {
				if e.happen() {
					first.Add(1)
				}
			})
		}
		wg.Wait()
		if n := first.Load(); n != 1 || e.happen() {
			t.Fatalf("it happened %d times", n)
		}
		<-e.C()
	}
	var e event
	select {
	case <-e.C():
		t.Error("a new event has happened")
	default:
	}
	if e.has() {
		t.Error("a new event has happened")
	}
}
