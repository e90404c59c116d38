package frameio

import (
	"sync/atomic"
	"testing"
	"time"

	"viaduct/internal/attend"
	"viaduct/internal/sock"
	"viaduct/internal/testkit"
)

// sleeper returns a Sleeper as soon as one is free. It fails the test if none becomes free.
func sleeper(t *testing.T) *attend.Sleeper {
	t.Helper()
	for range 1 << 12 {
		if z := attend.TakeSleeper(); z != nil {
			return z
		}
	}
	t.Fatal("no consumer may doze")
	return nil
}

// dozes reports whether a consumer may sleep on c itself.
func dozes(t *testing.T, c *Conn) bool {
	z := sleeper(t)
	defer z.Free()
	return c.SleepAt(z)
}

// TestDoze: an arrival wakes a sleeping consumer, which receives it, and the passive goroutine
// receives after the consumer has left.
func TestDoze(t *testing.T) {
	for _, large := range []bool{false, true} {
		a, b := kinds[0].connect(t)
		a.c.Start(nil)
		b.c.Start(nil)
		var want [][]byte
		for i := range 50 {
			want = append(want, []byte{byte(i)})
			if large && i%10 == 9 {
				want = append(want, make([]byte, 10*directMin))
			}
		}
		got := b.expect(t, want)
		for i, f := range want {
			n := b.c.att.Received()
			go func() {
				if i%3 == 0 {
					time.Sleep(300 * time.Microsecond) // most likely asleep
				}
				a.post(f)
				a.c.Kick()
			}()
			if i%2 == 0 { // the consumer dozes
				testkit.Eventually(t, "an arrival", func() bool {
					z := sleeper(t)
					defer z.Free()
					if !b.c.SleepAt(z) {
						b.c.Unpoll()
						return b.c.att.Received() != n
					}
					z.Sleep()
					return b.c.Poll() || b.c.att.Received() != n
				})
			} else {
				testkit.Eventually(t, "a frame without a consumer", func() bool { return b.c.att.Received() != n })
			}
		}
		testkit.Await(t, "all frames", got)
	}
}

// TestMayDoze: an arrival is expected once after each write. A consumer cannot sleep on a
// connection that has ended, is read by another goroutine, receives long frames, or has no
// descriptor of its own.
func TestMayDoze(t *testing.T) {
	a, b := kinds[0].connect(t)
	if dozes(t, a.c) {
		t.Error("before the start")
	}
	a.c.Start(nil)
	b.c.Start(nil)
	for range 3 {
		if a.c.Expects() {
			t.Error("expects something without having sent anything")
		}
		a.post([]byte{1})
		a.c.Kick()
		testkit.Eventually(t, "the end of the write", a.c.Expects)
		testkit.Eventually(t, "a doze", func() bool { return dozes(t, a.c) })
	}
	a.c.WithReceiver(func() {
		if dozes(t, a.c) {
			t.Error("although the receive role is taken")
		}
	})
	done := a.expect(t, [][]byte{make([]byte, 4*directMin)})
	b.post(make([]byte, 4*directMin))
	b.c.Kick()
	testkit.Await(t, "a long frame", done)
	a.c.WithReceiver(func() {})
	if a.c.rx.large && dozes(t, a.c) {
		t.Error("although long frames come")
	}
	b.c.Close()
	testkit.Eventually(t, "the end of the stream", func() bool { return !dozes(t, a.c) })
	a.c.Close()
	if dozes(t, a.c) {
		t.Error("after Close")
	}
	p, q := kinds[len(kinds)-1].connect(t)
	p.c.Start(nil)
	q.c.Start(nil)
	if p.c.sock.Load() != nil {
		t.Fatal("the last kind is not portable")
	}
	p.post([]byte{1})
	p.c.Kick()
	if p.c.Expects() || dozes(t, p.c) {
		t.Error("dozes on a portable stream")
	}
}

// TestCloseWhileDozing: neither Close nor the end of the stream waits for a consumer that sleeps on
// the connection.
func TestCloseWhileDozing(t *testing.T) {
	for range 50 {
		a, b := kinds[0].connect(t)
		a.c.Start(nil)
		b.c.Start(nil)
		z := sleeper(t)
		if !b.c.SleepAt(z) {
			t.Fatal("can't doze")
		}
		over := make(chan attend.Outcome, 1)
		go func() { over <- z.Sleep() }()
		b.c.Close()
		testkit.Await(t, "the end of the stream", a.failed)
		testkit.Await(t, "the end of the doze", over)
		if z.Again(); b.c.SleepAt(z) {
			t.Error("dozes on a closed connection")
		}
		z.Free()
		a.c.Close()
	}
}

// TestDozeTells: SleepAt at shared memory delivers the messages it receives before the consumer
// sleeps, like any other receive.
func TestDozeTells(t *testing.T) {
	if !sock.SharesByDefault {
		t.Skip("SKIPPED: only shared memory has to be asked for reports")
	}
	x, y := sock.Shared(testkit.TCPPair(t))
	a, b := newFramed(x, Options{}), newFramed(y, Options{})
	defer b.close(t)
	defer a.close(t)
	var got, told atomic.Int32
	b.got = func([]byte) { got.Add(1) }
	b.keep = func() bool { told.Store(got.Load()); return false }
	a.c.Start(nil)
	b.c.StartPolled(nil) // nothing else receives
	a.post([]byte{1})
	a.c.Kick()
	if !dozes(t, b.c) {
		t.Fatal("it may not sleep there")
	}
	if got.Load() != 1 || told.Load() != 1 {
		t.Errorf("%d frames came, and the consumer was told of %d", got.Load(), told.Load())
	}
}
