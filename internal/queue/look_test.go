package queue

import "testing"

// Where polling was in vain several times, few poll, until it was of use again.
func TestLooks(t *testing.T) {
	var ws Waiters
	count := func() (n int) {
		for range 4 * oneEach {
			if ws.looks() {
				n++
			}
		}
		return n
	}
	if n := count(); n != 4*oneEach {
		t.Errorf("%d of %d look at first", n, 4*oneEach)
	}
	ws.vain.Store(inVain)
	if n := count(); n != 4 {
		t.Errorf("%d of %d look after it was in vain", n, 4*oneEach)
	}
	ws.vain.Store(0)
	if n := count(); n != 4*oneEach {
		t.Errorf("%d of %d look after it was not", n, 4*oneEach)
	}
}
