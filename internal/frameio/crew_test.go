package frameio

import (
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// goroutine returns the number of the goroutine that calls it.
func goroutine() int {
	var b [64]byte
	f := strings.Fields(string(b[:runtime.Stack(b[:], false)]))
	n, _ := strconv.Atoi(f[1])
	return n
}

// ashore reports how many of the crew wait.
func ashore() int {
	crew.mu.Lock()
	defer crew.mu.Unlock()
	return len(crew.idle)
}

// until waits for done.
func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no end: " + what)
		}
	}
}

// The crew does everything it is given, one thing after the other in few
// goroutines, many at a time in many, and goes when there is nothing to do.
func TestCrew(t *testing.T) {
	until(t, "the crew of other tests", func() bool { return ashore() == 0 })
	seen := map[int]bool{}
	for range 20 {
		done := make(chan int)
		Go(true, func() { done <- goroutine() })
		seen[<-done] = true
		until(t, "a hand that is back", func() bool { return ashore() > 0 })
	}
	if len(seen) > 5 { // slow machines let some go in between
		t.Errorf("%d goroutines, one after the other", len(seen))
	}

	const many = 4 * mostAtRest
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
	for range many { // all of them at a time
		<-begun
	}
	close(end)
	wg.Wait()
	until(t, "those who leave", func() bool {
		if n := ashore(); n > mostAtRest {
			t.Fatalf("%d are kept", n)
		}
		return ashore() == 0
	})

	done := make(chan int)
	Go(false, func() { done <- goroutine() })
	<-done
	time.Sleep(time.Millisecond)
	if ashore() > 0 {
		t.Error("what is not for the crew was done by it")
	}
}

// TestCrewBusy: work that comes from everywhere at any time is all done.
func TestCrewBusy(t *testing.T) {
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
