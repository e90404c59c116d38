package queue

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/internal/attend"
	"viaduct/internal/sock"
	"viaduct/internal/testkit"
)

// A piped is a SourceSleeper whose connection is a pipe. Each byte in the pipe is a completion. A
// consumer dozes by sleeping at the pipe itself, unless shy is set.
type piped struct {
	q    Completions[byte]
	r, w int

	mu     sync.Mutex
	over   bool // guarded by mu
	shy    atomic.Bool
	dozed  atomic.Int32
	unpoll sync.WaitGroup
}

func newPiped(t *testing.T) *piped {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	p := &piped{r: fds[0], w: fds[1]}
	t.Cleanup(func() {
		p.mu.Lock()
		p.over = true
		p.mu.Unlock()
		p.unpoll.Wait()
		unix.Close(p.r)
		unix.Close(p.w)
	})
	return p
}

func (p *piped) Poll() (got bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var b [64]byte
	n, _ := unix.Read(p.r, b[:])
	for _, c := range b[:max(n, 0)] {
		p.q.Push(c)
	}
	return n > 0
}

// Unpoll starts a goroutine that receives the next bytes of the pipe.
func (p *piped) Unpoll() {
	p.unpoll.Go(func() {
		for {
			fds := [1]unix.PollFd{{Fd: int32(p.r), Events: unix.POLLIN}}
			if n, _ := sock.Poll(fds[:], 5); n == 1 {
				p.Poll()
				return
			}
			p.mu.Lock()
			over := p.over
			p.mu.Unlock()
			if over {
				return
			}
		}
	})
}

var _ attend.SourceSleeper = (*piped)(nil)

func (p *piped) Expects() bool { return !p.shy.Load() }

func (p *piped) Near() bool { return p.shy.Load() }

func (p *piped) SleepAt(z *attend.Sleeper) bool {
	p.dozed.Add(1)
	return z.Add(p.r)
}

// TestDozers pushes completions from every source. Every waiter must wake, dozing at the pipe or
// not. On a busy machine a storm may pass without a doze, so the test repeats the storm until a
// consumer has dozed.
func TestDozers(t *testing.T) {
	for _, waiters := range []int{1, 2, 6} {
		p := newPiped(t)
		for start := time.Now(); p.dozed.Load() == 0 && !t.Failed(); {
			if time.Since(start) > testkit.Patience {
				t.Fatal("no consumer dozes")
			}
			storm(t, p, waiters)
		}
		t.Logf("%d waiters, %d dozes", waiters, p.dozed.Load())
	}
}

// storm makes each of the waiters wait for 1000 completions, from the pipe and from Push.
func storm(t *testing.T, p *piped, waiters int) {
	const each = 1000
	var wg sync.WaitGroup
	var got atomic.Int32
	for range waiters {
		wg.Go(func() {
			for range each {
				if _, err := p.q.Wait(t.Context(), p); err != nil {
					t.Error(err)
					return
				}
				got.Add(1)
			}
		})
	}
	over := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() { // the whole storm may take long, but not a single completion
		for last := int32(-1); ; last = got.Load() {
			select {
			case <-over:
				return
			case <-time.After(testkit.Patience):
			}
			if got.Load() == last {
				t.Errorf("%d of %d completions were taken", last, waiters*each)
				p.q.Close()
				return
			}
		}
	})
	for i := range waiters * each {
		switch rand.IntN(3) {
		case 0: // the entries arrive one after the other
			for start := time.Now(); int(got.Load()) < i-waiters && time.Since(start) < time.Second; {
				time.Sleep(10 * time.Microsecond)
			}
		case 1:
			p.shy.Store(rand.IntN(4) == 0)
		}
		if rand.IntN(2) == 0 {
			p.q.Push(1)
			continue
		}
		for n, _ := unix.Write(p.w, []byte{2}); n != 1; n, _ = unix.Write(p.w, []byte{2}) {
			time.Sleep(time.Millisecond) // the pipe is full
		}
	}
	wg.Wait()
	close(over)
	watch.Wait()
}

// TestDozeEnds checks that the end of the queue or the context wakes a dozing consumer.
func TestDozeEnds(t *testing.T) {
	for i := range 40 {
		p := newPiped(t)
		want, ctx := ErrClosed, t.Context()
		end := p.q.Close
		switch i % 4 {
		case 1:
			ctx, end = context.WithCancel(ctx)
			want = context.Canceled
		case 2:
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, time.Duration(i)*100*time.Microsecond)
			defer cancel()
			want, end = context.DeadlineExceeded, func() {}
		case 3:
			want, end = nil, func() { p.q.Push(1) }
		}
		done := make(chan error, 1)
		go func() {
			_, err := p.q.Wait(ctx, p)
			done <- err
		}()
		if i%2 == 0 {
			time.Sleep(200 * time.Microsecond)
		}
		end()
		select {
		case err := <-done:
			if !errors.Is(err, want) {
				t.Errorf("case %d: %v, want %v", i%4, err, want)
			}
		case <-time.After(testkit.Patience):
			t.Fatalf("case %d: still waiting", i%4)
		}
	}
}
