package frameio

import (
	"sync/atomic"
	"testing"
	"time"
)

// Who takes one message after the other, seldom, pays for no coming and going of
// goroutines in between.
func TestSeldom(t *testing.T) {
	a, b := kinds[0].connect(t)
	var got atomic.Int32
	b.got = func([]byte) { got.Add(1) }
	a.c.Start(nil)
	b.c.StartPolled(nil)
	arrived := make(chan struct{}, 1)
	told := func() { arrived <- struct{}{} }
	take := func() {
		want := got.Load() + 1
		b.c.UnpollUntil(&told)
		b.c.Poll()
		a.post([]byte("x"))
		a.c.Kick()
		await(t, "an arrival", arrived)
		for got.Load() < want {
			b.c.Poll()
		}
	}
	take()
	for range 10 {
		take()
		last := time.Now()
		time.Sleep(2 * quiet)
		if b.c.rx.lobby.Load() != nil && time.Since(last) < 3*quiet {
			t.Fatal("it is back in the lobby")
		} // else the machine was busy with something else
	}
	eventually(t, "it waits in the lobby", func() bool { return b.c.rx.lobby.Load() != nil })
}
