package frameio

import (
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
)

// Whenever the waiting goroutine retires, nothing is lost, delayed or
// reordered, also while a consumer polls now and then.
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
				s.startle()
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
			b.c.devote()
		case 15: // the next finds it asleep
			time.Sleep(200 * time.Microsecond)
		}
	}
	await(t, "all frames", done)
	close(stop)
	wg.Wait()
	// The last one startled may retire just now; what waits instead lives.
	more := b.expect(t, fs[:1])
	a.post(fs[0])
	a.c.Kick()
	await(t, "a frame after that", more)
}

// Closing ends whoever waits, be it that another is just about to.
func TestCloseWhileRetired(t *testing.T) {
	for range 50 {
		a, b := kinds[0].connect(t)
		a.c.Start(nil)
		b.c.Start(nil)
		s := b.c.sock.Load()
		var wg sync.WaitGroup
		wg.Go(func() {
			for range 20 {
				b.c.devote()
				s.startle()
			}
		})
		b.close(t)
		wg.Wait()
	}
}

// Who is on the list is looked at until little has come between looks for a while,
// or it is closed.
func TestRota(t *testing.T) {
	w := &rota{tick: true} // without a timer
	round := func(want ...*Conn) {
		t.Helper()
		if w.round(); !slices.Equal(w.conns, want) {
			t.Errorf("%d connections are left, want %d", len(w.conns), len(want))
		}
	}
	var c [3]*Conn
	for i := range c {
		c[i] = &Conn{}
		x, y := tcpPair(t)
		defer y.Close()
		s := takeSocket(x)
		defer s.close(false)
		c[i].sock.Store(s)
		c[i].rx.woken.Add(little + 1)
		c[i].rx.listed.Store(true)
		w.add(c[i])
	}
	round(c[:]...)
	for range restAfter {
		round(c[:]...) // they have yet to find a place to sleep at
	}
	for _, c := range c {
		c.sock.Load().openIn()
	}
	c[0].closing.Store(true)
	c[1].rx.woken.Add(little + 1)
	for range restAfter - 1 {
		c[2].rx.woken.Add(little)
		round(c[1:]...)
	}
	c[1].rx.woken.Add(little + 1)
	c[2].rx.woken.Add(little)
	round(c[1])
	if c[2].rx.listed.Load() || !c[1].rx.listed.Load() {
		t.Error("who is to be listed again?")
	}
	for range restAfter - 1 {
		round(c[1])
	}
	round()
	if c[1].rx.listed.Load() {
		t.Error("a quiet connection counts as listed")
	}
}
