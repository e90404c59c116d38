package frameio

import (
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// passives returns the goroutines that wait for connections, by their
// numbers.
func passives() (ids []string) {
	b := make([]byte, 1<<20)
	for g := range strings.SplitSeq(string(b[:runtime.Stack(b, true)]), "\n\n") {
		if strings.Contains(g, "(*Conn).passive(") {
			ids = append(ids, strings.Fields(g)[1])
		}
	}
	return ids
}

// The goroutine that has handled something gives way to a new one when the
// connection is quiet, and that one hears of what comes next.
func TestRenewed(t *testing.T) {
	if raceEnabled {
		t.Skip("goroutines begin with larger stacks, so that none is renewed")
	}
	a, b := kinds[0].connect(t)
	// Many goroutines that need little make new ones small.
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 200 {
		wg.Go(func() { <-stop })
	}
	defer func() { close(stop); wg.Wait() }()
	got := make(chan struct{}, 1)
	b.got = func([]byte) { got <- struct{}{} }
	a.c.Start(nil)
	b.c.Start(nil)
	if a.c.sock.Load() == nil {
		t.Skip("no fast path on this system")
	}
	for range 3 {
		a.post([]byte("x"))
		a.c.Kick()
		await(t, "a frame", got)
		var old []string
		eventually(t, "two goroutines", func() bool { // one may be on its way
			old = passives()
			return len(old) == 2
		})
		runtime.GC() // what goroutines begin with is found out anew
		b.c.list()   // and a's may be an old acquaintance
		a.c.list()
		eventually(t, "new goroutines", func() bool {
			now := passives()
			return len(now) == 2 && !slices.ContainsFunc(now, func(id string) bool { return slices.Contains(old, id) })
		})
	}
}

// Whenever the waiting goroutine is replaced, nothing is lost, delayed or
// reordered, also while a consumer polls now and then.
func TestRenewedAtWork(t *testing.T) {
	a, b := kinds[0].connect(t)
	fs := frames(400)
	done := b.expect(t, fs)
	a.c.Start(nil)
	b.c.Start(nil)
	s := b.c.sock.Load()
	if s == nil {
		t.Skip("no fast path on this system")
	}
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
		case 15: // the next finds it asleep
			time.Sleep(200 * time.Microsecond)
		}
	}
	await(t, "all frames", done)
	close(stop)
	wg.Wait()
	// The last one startled may be replaced just now; its successor lives.
	more := b.expect(t, fs[:1])
	a.post(fs[0])
	a.c.Kick()
	await(t, "a frame after that", more)
}

// Closing ends whoever waits, be it just being replaced.
func TestCloseWhileRenewed(t *testing.T) {
	for range 50 {
		a, b := kinds[0].connect(t)
		a.c.Start(nil)
		b.c.Start(nil)
		s := b.c.sock.Load()
		if s == nil {
			t.Skip("no fast path on this system")
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			for range 20 {
				s.startle()
			}
		})
		b.close(t)
		wg.Wait()
	}
}

// Who is on the list is looked at until it was quiet between two looks or is
// closed; while new goroutines would be no smaller, less and less often.
func TestRota(t *testing.T) {
	w := &rota{tick: true, after: quiet} // without a timer
	round := func(small bool, want ...*Conn) {
		t.Helper()
		if w.round(small); !slices.Equal(w.conns, want) {
			t.Errorf("%d connections are left, want %d", len(w.conns), len(want))
		}
	}
	var c [3]*Conn
	for i := range c {
		c[i] = &Conn{}
		c[i].sock.Store(&socket{})
		c[i].rx.woken.Add(1)
		c[i].rx.listed.Store(true)
		w.add(c[i])
	}
	for _, want := range []time.Duration{2 * quiet, 4 * quiet} {
		if round(false, c[:]...); w.after != want {
			t.Errorf("the next look is after %v, want %v", w.after, want)
		}
	}
	for range 10 {
		round(false, c[:]...)
	}
	if w.after != slowest {
		t.Errorf("the next look is after %v, want %v", w.after, slowest)
	}
	if round(true, c[:]...); w.after != quiet { // as busy as can be told
		t.Errorf("the next look is after %v, want %v", w.after, quiet)
	}
	c[0].closing.Store(true)
	c[1].rx.woken.Add(1)
	round(true, c[1])
	if c[2].rx.listed.Load() || !c[1].rx.listed.Load() {
		t.Error("who is to be listed again?")
	}
	round(true)
	if c[1].rx.listed.Load() {
		t.Error("a quiet connection counts as listed")
	}
}
