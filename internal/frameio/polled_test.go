package frameio

import (
	"testing"

	"viaduct/internal/testkit"
)

// TestStartPolled: a connection started by StartPolled receives only in Poll until Unpoll, and the
// passive goroutine receives afterwards.
func TestStartPolled(t *testing.T) {
	everyKind(t, func(t *testing.T, k kind) {
		a, b := k.connect(t)
		a.c.Start(nil)
		first := b.expect(t, [][]byte{{1}})
		b.c.StartPolled([]byte{0, 0, 0, 1, 1}) // a frame read before the start
		for done := false; !done; {
			b.c.Poll()
			select {
			case <-first:
				done = true
			default:
			}
		}
		polled := b.expect(t, [][]byte{{2, 3}})
		a.post([]byte{2, 3})
		a.c.Kick()
		for done := false; !done; {
			b.c.Poll()
			select {
			case <-polled:
				done = true
			default:
			}
		}
		b.c.Unpoll()
		for _, p := range [][]byte{{4}, make([]byte, 70000)} {
			alone := b.expect(t, [][]byte{p})
			a.post(p)
			a.c.Kick()
			testkit.Await(t, "a frame without polling", alone)
		}
	})
}

// TestEndPolled: a connection that was always polled reports its end and then holds no resources.
func TestEndPolled(t *testing.T) {
	everyKind(t, func(t *testing.T, k kind) {
		a, b := k.connect(t)
		a.c.Start(nil)
		b.c.StartPolled(nil)
		a.c.Shutdown()
		done := make(chan error, 1)
		go func() { done <- b.c.CloseAfter(testkit.Patience) }()
		testkit.Await(t, "CloseAfter hears of the peer's end", done)
	})
}
