package iwarp

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"viaduct/internal/machine"
	"viaduct/internal/testkit"
)

// TestLifeStates runs all events in all states of a stream. Compare the golden file with the figure
// of lifeState. [DDP-6.2.1-1] [DDP-6.2.1-4] [DDP-7.1-16]
func TestLifeStates(t *testing.T) {
	var out strings.Builder
	for s := range lifeState(lifeStates) {
		for e := range lifeEvent(lifeEvents) {
			to := lifeTable[s][e]
			shown := to.String()
			if to == s {
				shown = "-"
			}
			fmt.Fprintf(&out, "%-11s %-9s %s\n", s, e, shown)
			// An ended direction must not be open again.
			if s.ended() && !to.ended() || s.finished() && !to.finished() && !to.ended() || !s.posts() && to.posts() {
				t.Errorf("%v, %v: back to %v", s, e, to)
			}
			if e == lifeEnd && !to.ended() || e == lifeClose && to.posts() {
				t.Errorf("%v, %v: %v", s, e, to)
			}
		}
	}
	for s := range lifeState(lifeStates) {
		fmt.Fprintf(&out, "%-11s posts %-5t  closing %-5t  finished %-5t  ended %t\n", s,
			s.posts(), s.closing(), s.finished(), s.ended())
	}
	testkit.Golden(t, "life.golden", []byte(out.String()))
}

// TestLifeOrders checks that the events of an orderly end lead to Done in whatever order, and that
// a single event reports the change to Done.
func TestLifeOrders(t *testing.T) {
	for range 200 {
		var l machine.Life[lifeState]
		lifeTable.Move(&l, lifeRun)
		lifeTable.Move(&l, lifeClose)
		var wg sync.WaitGroup
		var mu sync.Mutex
		done := 0
		for _, e := range []lifeEvent{lifeFinish, lifePeerClose, lifeFinish} {
			wg.Go(func() {
				if from, to := lifeTable.Move(&l, e); from != to && to == lifeDone {
					mu.Lock()
					done++
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		if done != 1 || l.Load() != lifeDone {
			t.Fatalf("%v, told %d times", l.Load(), done)
		}
	}
}
