//go:build linux && (amd64 || arm64)

package rdma

import (
	"testing"

	"golang.org/x/sys/unix"
)

// All contexts together have at most the rings of the quota. A dropped ring, or a ring closed with
// the context, can be allocated again.
func TestRingQuota(t *testing.T) {
	quota := &ringQuota{most: 3}
	var arenas [2]*arena
	for i := range arenas {
		a, theirs, err := newArena(quota)
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(theirs)
		arenas[i] = a
	}
	ring := func(a *arena) (b []byte, key int64) {
		t.Helper()
		b, key, err := a.ring(100)
		if err != nil {
			t.Fatal(err)
		}
		return b, key
	}
	refused := func() {
		t.Helper()
		if _, _, err := arenas[1].ring(100); err != unix.ENOMEM {
			t.Errorf("one more: %v, want ENOMEM", err)
		}
	}
	first, key := ring(arenas[0])
	ring(arenas[0])
	ring(arenas[1])
	refused()
	arenas[0].drop(first, key)
	ring(arenas[1])
	refused()
	arenas[0].close()
	ring(arenas[1])
	refused()
	arenas[1].close()
	if n := quota.held.Load(); n != 0 {
		t.Errorf("%d rings are held by closed contexts", n)
	}
	if n := ringsMost(); n < 1000 {
		t.Errorf("%d rings at most", n)
	}
}
