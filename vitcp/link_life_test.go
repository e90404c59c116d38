package vitcp

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"viaduct/internal/testkit"
)

// TestLife walks all states of a connection by all events; the golden file is to be
// laid beside the figure of lifeState. [V-17] [V-18] [V-41]
func TestLife(t *testing.T) {
	var out strings.Builder
	for s := range lifeState(lifeStates) {
		for e := range lifeEvent(lifeEvents) {
			var l life
			l.state.Store(uint32(s))
			from, moved := l.move(e)
			if from != s || moved != (l.load() != s) {
				t.Errorf("%v, %v: found %v, moved %t, is %v", s, e, from, moved, l.load())
			}
			if to := l.load(); moved {
				fmt.Fprintf(&out, "%-10s %-13s %s\n", s, e, to)
			} else {
				fmt.Fprintf(&out, "%-10s %-13s -\n", s, e)
			}
			// What has ended does not begin again.
			if to := l.load(); s.stopped() && !to.stopped() || s.faulted() && !to.faulted() || !s.running() && to.running() {
				t.Errorf("%v, %v: back to %v", s, e, to)
			}
			if to := l.load(); (e == lifeLeave || e == lifeStop) && !to.stopped() {
				t.Errorf("%v, %v: %v is not stopped", s, e, to)
			}
		}
	}
	for s := range lifeState(lifeStates) {
		fmt.Fprintf(&out, "%-10s running %-5t  faulted %-5t  stopped %t\n", s, s.running(), s.faulted(), s.stopped())
	}
	testkit.Golden(t, "life.golden", []byte(out.String()))
}

// TestLifeOnce: of goroutines that end a connection at once, one is told that it was
// the first.
func TestLifeOnce(t *testing.T) {
	for range 100 {
		var l life
		l.move(lifeStart)
		var first atomic.Int32
		var wg sync.WaitGroup
		for _, e := range []lifeEvent{lifeFault, lifeViolation, lifeFault, lifeViolation} {
			wg.Go(func() {
				if _, moved := l.move(e); moved {
					first.Add(1)
				}
			})
		}
		wg.Wait()
		if n := first.Load(); n != 1 {
			t.Fatalf("%d were first; state %v", n, l.load())
		}
	}
}
