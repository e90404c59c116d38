package attend

import (
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"viaduct/internal/testkit"
)

// goroutine returns the number of the calling goroutine.
func goroutine() int {
	var b [64]byte
	f := strings.Fields(string(b[:runtime.Stack(b[:], false)]))
	n, _ := strconv.Atoi(f[1])
	return n
}

// idleWorkers returns the number of idle workers.
func idleWorkers() int {
	process.workers.mu.Lock()
	defer process.workers.mu.Unlock()
	return len(process.workers.idle)
}

// until waits until done returns true.
func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(testkit.Patience); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no end: " + what)
		}
	}
}

// TestWorkers: workers call every function: few goroutines call functions that run one after the
// other, and many goroutines call functions that run at once. All workers must end when there is no
// more work.
func TestWorkers(t *testing.T) {
	// Until endIdle is called, no idle worker ends.
	until(t, "the workers of other tests end", func() bool {
		process.workers.mu.Lock()
		defer process.workers.mu.Unlock()
		over := len(process.workers.idle) == 0 && !process.workers.timed
		process.workers.timed = process.workers.timed || over
		return over
	})
	seen := map[int]bool{}
	for range 20 {
		done := make(chan int)
		Go(true, func() { done <- goroutine() })
		seen[<-done] = true
		until(t, "a worker is back", func() bool { return idleWorkers() > 0 })
	}
	if len(seen) != 1 {
		t.Errorf("%d goroutines, one after the other", len(seen))
	}
	process.workers.endIdle()

	const many = 4 * maxIdle
	var wg sync.WaitGroup
	begun, end := make(chan struct{}), make(chan struct{})
	for range many {
		wg.Add(1)
		Go(true, func() {
			defer wg.Done()
			begun <- struct{}{}
			<-end
		})
	}
	for range many { // all functions run at the same time
		<-begun
	}
	close(end)
	wg.Wait()
	until(t, "workers end", func() bool {
		if n := idleWorkers(); n > maxIdle {
			t.Fatalf("%d are kept", n)
		}
		return idleWorkers() == 0
	})

	done := make(chan int)
	Go(false, func() { done <- goroutine() })
	<-done
	time.Sleep(time.Millisecond)
	if idleWorkers() > 0 {
		t.Error("what is not for workers was done by one")
	}
}

// TestWorkersBusy: all work is done if many goroutines call Go at any time.
func TestWorkersBusy(t *testing.T) {
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			var mine sync.WaitGroup
			for i := range 2000 {
				mine.Add(1)
				Go(true, mine.Done)
				if i%100 == 0 {
					mine.Wait()
				}
			}
			mine.Wait()
		})
	}
	wg.Wait()
}
