package frameio

import (
	"sync/atomic"
	"testing"
	"time"

	"viaduct/internal/attend"
	"viaduct/internal/testkit"
)

// TestSeldom: no goroutine is started and stopped in each pause of a consumer that receives single
// messages with pauses.
func TestSeldom(t *testing.T) {
	a, b := kinds[0].connect(t)
	var got atomic.Int32
	b.got = func([]byte) { got.Add(1) }
	a.c.Start(nil)
	b.c.StartPolled(nil)
	take := func() {
		want := got.Load() + 1
		b.c.Poll()
		a.post([]byte("x"))
		a.c.Kick()
		for got.Load() < want {
			b.c.Poll()
		}
	}
	last := time.Now()
	take()
	b.c.Unpoll()
	for range 10 {
		b.c.att.Dedicate() // the shared poller may have it, if the machine was busy
		since := last
		last = time.Now()
		take()
		time.Sleep(2 * sweepEvery)
		// Without a message for less than five sweeps, the goroutine must stay. The sweeps go on while
		// this goroutine waits for a processor, so the time counts from before a message.
		if b.c.att.State() == attend.Shared && time.Since(since) < 5*sweepEvery {
			t.Fatal("the shared poller has it back")
		}
	}
	testkit.Eventually(t, "the shared poller has it", func() bool { return b.c.att.State() == attend.Shared })
}
