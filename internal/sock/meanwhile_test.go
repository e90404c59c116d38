package sock

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"viaduct/internal/testkit"
)

// What is not done at once is done by a goroutine that polls, and if there is none by the
// timer; and never again.
func TestMeanwhile(t *testing.T) {
	severalProcessors(t)
	never := func() { t.Error("late") }
	tries := 0
	Meanwhile(func() bool { tries++; return true }, never)
	if tries != 1 {
		t.Fatalf("tried %d times, want 1: it was done at once", tries)
	}
	start := holdTimer(t)
	var polled, done atomic.Int32
	Meanwhile(func() bool { return polled.Add(1) == 4 }, never)
	for i := 0; !Soon(func() bool { i++; return i == 4 }); i = 0 {
	}
	if n := polled.Load(); n != 4 {
		t.Errorf("tried %d times while something polled, want 4", n)
	}
	Meanwhile(func() bool { return done.Add(1) == 2 }, never)
	start()
	testkit.Eventually(t, "the timer", func() bool { return done.Load() == 2 })
	time.Sleep(3 * meanwhileTick)
	if p, d := polled.Load(), done.Load(); p != 4 || d != 2 {
		t.Errorf("tried %d and %d times, want 4 and 2: they were done", p, d)
	}
}

// holdTimer has the timer not come until start is called.
func holdTimer(t *testing.T) (start func()) {
	held := func() bool {
		chores.Lock()
		defer chores.Unlock()
		free := !chores.timed
		chores.timed = true
		return free
	}
	testkit.Eventually(t, "the timer to end", held)
	return func() {
		chores.Lock()
		defer chores.Unlock()
		chores.timed = false
		timeChoresLocked()
	}
}

// One that takes too long is late, once; so is one that is too many, at once. Those before
// it are not.
func TestMeanwhileLate(t *testing.T) {
	severalProcessors(t)
	var late, done atomic.Int32
	var end atomic.Bool
	start := time.Now()
	for range maxMeanwhile {
		Meanwhile(func() bool {
			if end.Load() {
				done.Add(1)
				return true
			}
			return false
		}, func() { late.Add(1) })
	}
	over := false
	Meanwhile(func() bool { return false }, func() { over = true })
	if !over && time.Since(start) < meanwhileLimit {
		t.Error("one too many is not late")
	}
	testkit.Eventually(t, "all to be late", func() bool { return late.Load() == maxMeanwhile })
	if d := time.Since(start); d < meanwhileLimit {
		t.Errorf("late after %v, want %v", d, meanwhileLimit)
	}
	end.Store(true)
	over = false
	Meanwhile(func() bool { return done.Add(1) == 2 }, func() { over = true }) // there is room again
	testkit.Eventually(t, "the last", func() bool { return done.Load() == 2 })
	if over || late.Load() != maxMeanwhile {
		t.Errorf("%d late, want %d", late.Load(), maxMeanwhile)
	}
}

// With one processor nothing polls.
func TestMeanwhileAlone(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	tries, late := 0, 0
	Meanwhile(func() bool { tries++; return false }, func() { late++ })
	if tries != 1 || late != 1 {
		t.Errorf("tried %d times, late %d times, want 1", tries, late)
	}
}

// Goroutines that add and poll at a time call none twice at a time, and lose none.
func TestMeanwhileMany(t *testing.T) {
	severalProcessors(t)
	const each = 200
	var ended atomic.Int32
	for range 4 {
		go func() {
			for i := range each {
				busy, tries := atomic.Int32{}, 0
				Meanwhile(func() bool {
					if busy.Add(1) != 1 {
						t.Error("two at a time")
					}
					defer busy.Add(-1)
					if tries++; tries > i%5 {
						ended.Add(1)
						return true
					}
					return false
				}, func() { ended.Add(1) })
				meanwhile()
			}
		}()
	}
	testkit.Eventually(t, "all to end", func() bool { return ended.Load() >= 4*each })
	time.Sleep(3 * meanwhileTick)
	if n := ended.Load(); n != 4*each {
		t.Errorf("%d ended, want %d", n, 4*each)
	}
}

func severalProcessors(t *testing.T) {
	t.Helper()
	if runtime.GOMAXPROCS(0) == 1 {
		runtime.GOMAXPROCS(2)
		t.Cleanup(func() { runtime.GOMAXPROCS(1) })
	}
}
