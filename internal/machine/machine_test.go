package machine_test

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"viaduct/internal/machine"
	"viaduct/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

type state uint32
type event uint8

var table = machine.NewTable(3, 2, []machine.Arrow[state, event]{{0, 0, 1}, {1, 1, 2}})

// TestMove: an event with an arrow changes the state, and any other event does not.
func TestMove(t *testing.T) {
	var l machine.Life[state]
	for i, c := range []struct {
		on       event
		from, to state
	}{{1, 0, 0}, {0, 0, 1}, {0, 1, 1}, {1, 1, 2}, {1, 2, 2}, {0, 2, 2}} {
		if from, to := table.Move(&l, c.on); from != c.from || to != c.to || l.Load() != c.to {
			t.Errorf("step %d: from %d to %d, is %d; want %+v", i, from, to, l.Load(), c)
		}
	}
	if l.Set(1); l.Load() != 1 {
		t.Errorf("set to 1, is %d", l.Load())
	}
}

// TestMoveOnce: if several goroutines report an event at once, only one sees the change.
func TestMoveOnce(t *testing.T) {
	for range 3000 {
		var l machine.Life[state]
		var told, ready atomic.Int32
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				for ready.Add(1); ready.Load() < 2; { // at once
					runtime.Gosched()
				}
				if from, to := table.Move(&l, 0); from != to {
					told.Add(1)
				}
			})
		}
		wg.Wait()
		if told.Load() != 1 || l.Load() != 1 {
			t.Fatalf("%d were told, is %d", told.Load(), l.Load())
		}
	}
}
