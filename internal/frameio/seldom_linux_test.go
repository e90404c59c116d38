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
	take()
	b.c.Unpoll()
	b.c.att.Dedicate()
	for range 10 {
		take()
		last := time.Now()
		time.Sleep(2 * sweepEvery)
		if b.c.att.State() == attend.Shared && time.Since(last) < 3*sweepEvery {
			t.Fatal("the shared poller has it back")
		} // otherwise the machine was busy
	}
	testkit.Eventually(t, "the shared poller has it", func() bool { return b.c.att.State() == attend.Shared })
}
