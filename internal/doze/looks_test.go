package doze

import "testing"

// Where looking was in vain several times in a row few look, until it was of use
// again.
func TestLooks(t *testing.T) {
	var l Looks
	count := func() (n int) {
		for range 4 * oneEach {
			if l.Worth() {
				n++
			}
		}
		return n
	}
	for range inVain - 1 {
		l.Done(false)
	}
	if n := count(); n != 4*oneEach {
		t.Errorf("%d of %d look at first", n, 4*oneEach)
	}
	l.Done(false)
	if n := count(); n != 4 {
		t.Errorf("%d of %d look after it was in vain", n, 4*oneEach)
	}
	l.Done(true)
	if n := count(); n != 4*oneEach {
		t.Errorf("%d of %d look after it was not", n, 4*oneEach)
	}
}
