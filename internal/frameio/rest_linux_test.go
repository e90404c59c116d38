package frameio

import (
	"runtime"
	"sync"
	"testing"
	"time"

	"viaduct/internal/testkit"
)

// TestRetiredAtWork checks that no frame is lost, delayed or reordered whenever the waiting
// goroutine retires, also while a consumer polls occasionally.
func TestRetiredAtWork(t *testing.T) {
	a, b := kinds[0].connect(t)
	fs := frames(400)
	done := b.expect(t, fs)
	a.c.Start(nil)
	b.c.Start(nil)
	s := b.c.sock.Load()
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				s.Interrupt()
				runtime.Gosched()
			}
		}
	})
	for i, f := range fs {
		a.post(f)
		a.c.Kick()
		switch i % 16 {
		case 7:
			b.c.Poll()
		case 8:
			b.c.Unpoll()
		case 12:
			b.c.att.Dedicate()
		case 15: // the next frame finds the goroutine asleep
			time.Sleep(200 * time.Microsecond)
		}
	}
	testkit.Await(t, "all frames", done)
	close(stop)
	wg.Wait()
	// The goroutine that was interrupted last may be retiring. Its successor must work.
	more := b.expect(t, fs[:1])
	a.post(fs[0])
	a.c.Kick()
	testkit.Await(t, "a frame after that", more)
}

// TestCloseWhileRetired: Close ends every wait, including a wait that is about to begin.
func TestCloseWhileRetired(t *testing.T) {
	for range 50 {
		a, b := kinds[0].connect(t)
		a.c.Start(nil)
		b.c.Start(nil)
		s := b.c.sock.Load()
		var wg sync.WaitGroup
		wg.Go(func() {
			for range 20 {
				b.c.att.Dedicate()
				s.Interrupt()
			}
		})
		b.close(t)
		wg.Wait()
	}
}
