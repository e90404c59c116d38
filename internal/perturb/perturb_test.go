package perturb

import (
	"sync"
	"testing"
)

// TestLocks: the locks exclude each other in every build, and any number of goroutines may call
// Point.
func TestLocks(t *testing.T) {
	var (
		mu Mutex
		rw RWMutex
		n  int
		m  int
		wg sync.WaitGroup
	)
	for range 8 {
		wg.Go(func() {
			for range 500 {
				Point()
				mu.Lock()
				n++
				mu.Unlock()
				if mu.TryLock() {
					n += 0
					mu.Unlock()
				}
				rw.Lock()
				m++
				rw.Unlock()
				rw.RLock()
				_ = m
				rw.RUnlock()
			}
		})
	}
	wg.Wait()
	if n != 4000 || m != 4000 {
		t.Errorf("counted %d and %d, want 4000", n, m)
	}
}
