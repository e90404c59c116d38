package attend

import (
	"slices"
	"testing"

	"viaduct/internal/sock"
	"viaduct/internal/testkit"
)

// TestSweep: a connection stays on the sweep's list until few arrivals have come for idleSweeps
// sweeps, or until it is closed.
func TestSweep(t *testing.T) {
	w := &sweeper{timed: true} // the sweeper has no timer
	sweep := func(want ...*Attention) {
		t.Helper()
		w.timed = true
		if w.round(); !slices.Equal(w.list, want) {
			t.Errorf("%d connections are left, want %d", len(w.list), len(want))
		}
	}
	var a [3]*Attention
	for i := range a {
		x, y := testkit.TCPPair(t)
		defer y.Close()
		s := sock.Take(x)
		defer s.Close(false)
		a[i] = new(Attention)
		a[i].Init(s, nil)
		a[i].state.Store(uint32(Dedicated))
		a[i].idle.arrivals.Add(few + 1)
		a[i].idle.listed.Store(true)
		w.add(a[i])
	}
	sweep(a[:]...)
	for range idleSweeps {
		sweep(a[:]...) // their attendants have not opened their descriptors so far
	}
	for _, a := range a {
		a.src.OpenArrivals()
	}
	a[0].state.Store(uint32(Closed))
	a[1].idle.arrivals.Add(few + 1)
	for range idleSweeps - 1 {
		a[2].idle.arrivals.Add(few)
		sweep(a[1:]...)
	}
	a[1].idle.arrivals.Add(few + 1)
	a[2].idle.arrivals.Add(few)
	sweep(a[1])
	if a[2].idle.listed.Load() || !a[1].idle.listed.Load() {
		t.Error("the wrong connection is to be listed again")
	}
	for range idleSweeps - 1 {
		sweep(a[1])
	}
	sweep()
	if a[1].idle.listed.Load() {
		t.Error("an idle connection counts as listed")
	}
}
