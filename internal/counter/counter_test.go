package counter

import (
	"sync"
	"testing"

	"viaduct/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// TestCounter: if writers take turns, no addition is lost, and a concurrent reader sees the number
// grow up to the sum.
func TestCounter(t *testing.T) {
	const writers, each = 3, 20000
	var c Counter
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for range each {
				mu.Lock()
				c.Add(2)
				mu.Unlock()
			}
		})
	}
	for last := uint64(0); last < 2*writers*each; {
		n := c.Load()
		if n < last || n%2 != 0 || n > 2*writers*each {
			t.Fatalf("%d after %d", n, last)
		}
		last = n
	}
	wg.Wait()
	if c.Set(c.Load()); c.Load() != 2*writers*each {
		t.Errorf("%d", c.Load())
	}
}
