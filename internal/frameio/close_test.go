package frameio

import (
	"errors"
	"io"
	"net"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"viaduct/internal/testkit"
)

// states has the situations where a Conn may be closed. Each function creates one for a; the
// test closes b.
var states = map[string]func(t *testing.T, a, b *lengthFramed){
	"never started": func(*testing.T, *lengthFramed, *lengthFramed) {},
	"idle": func(_ *testing.T, a, b *lengthFramed) {
		a.c.Start(nil)
		b.c.Start(nil)
	},
	"after traffic": func(t *testing.T, a, b *lengthFramed) {
		done := b.expect(t, frames(5))
		a.c.Start(nil)
		b.c.Start(nil)
		for _, f := range frames(5) {
			a.post(f)
		}
		a.c.Kick()
		testkit.Await(t, "traffic", done)
	},
	"polled": func(_ *testing.T, a, _ *lengthFramed) {
		a.c.Start(nil)
		for range 100 {
			a.c.Poll()
		}
	},
	"socket full": func(t *testing.T, a, _ *lengthFramed) {
		a.c.Start(nil)
		for range 200 {
			a.post(make([]byte, 70000))
		}
		a.c.Kick()
	},
	"socket full, shutting down": func(t *testing.T, a, _ *lengthFramed) {
		a.c.Start(nil)
		for range 200 {
			a.post(make([]byte, 70000))
		}
		a.c.Shutdown()
	},
	"shut down": func(_ *testing.T, a, b *lengthFramed) {
		a.c.Start(nil)
		b.c.Start(nil)
		a.c.Shutdown()
	},
	"peer gone": func(t *testing.T, a, b *lengthFramed) {
		a.c.Start(nil)
		b.c.Close()
		testkit.Await(t, "the end", a.failed)
	},
	"peer gone, sending": func(t *testing.T, a, b *lengthFramed) {
		a.c.Start(nil)
		b.c.Abort()
		for range 100 {
			a.post(make([]byte, 3000))
			a.c.Kick()
		}
	},
	"refused": func(t *testing.T, a, b *lengthFramed) {
		a.refuse.Store(&errRefused)
		a.c.Start(nil)
		b.post([]byte("x"))
		b.c.Kick()
		testkit.Await(t, "the failure", a.failed)
	},
	"aborted": func(_ *testing.T, a, b *lengthFramed) {
		a.c.Start(nil)
		a.c.Abort()
	},
	"closed": func(_ *testing.T, a, b *lengthFramed) {
		a.c.Start(nil)
		a.c.Close()
	},
}

// TestEndsInEveryState: every method that ends a connection returns in every state, and no method
// of the protocol runs afterwards. TestMain finds goroutines that still run.
func TestEndsInEveryState(t *testing.T) {
	ways := map[string]func(c *Conn){
		"Close":      func(c *Conn) { c.Close() },
		"Abort":      func(c *Conn) { c.Abort() },
		"Shutdown":   func(c *Conn) { c.Shutdown() },
		"CloseAfter": func(c *Conn) { c.CloseAfter(time.Millisecond) },
	}
	everyKind(t, func(t *testing.T, k kind) {
		for state, prepare := range states {
			for way, end := range ways {
				a, b := k.pair(t)
				p, q := newFramed(a, k.opt), newFramed(b, k.opt)
				prepare(t, p, q)
				ended := make(chan struct{})
				go func() { end(p.c); close(ended) }()
				testkit.Await(t, way+" of one "+state, ended)
				p.close(t)
				p.close(t)
				q.close(t)
			}
		}
	})
}

// TestEndsFromEverywhere calls all methods that end a connection at once, while both sides send,
// poll and quiesce.
func TestEndsFromEverywhere(t *testing.T) {
	everyKind(t, func(t *testing.T, k kind) {
		for round := range 12 {
			a, b := k.pair(t)
			ps := []*lengthFramed{newFramed(a, k.opt), newFramed(b, k.opt)}
			var wg sync.WaitGroup
			for _, p := range ps {
				wg.Go(func() { p.c.Start(nil) })
				for i := range 3 {
					wg.Go(func() {
						for j := range 30 {
							p.post(make([]byte, 100*i*j))
							p.c.Kick()
							p.c.Poll()
							if j == 20 {
								p.c.Quiesce()
							}
							p.c.Unpoll()
						}
					})
				}
				ends := []func(){
					func() { p.c.Close() }, func() { p.c.Abort() }, func() { p.c.Shutdown() },
					func() { p.c.CloseAfter(time.Millisecond) }, func() { p.c.Close() },
				}
				for _, end := range ends[round%len(ends):] {
					wg.Go(func() {
						for range round {
							runtime.Gosched()
						}
						end()
					})
				}
			}
			done := make(chan struct{})
			go func() { wg.Wait(); close(done) }()
			testkit.Await(t, "all calls return", done)
			for _, p := range ps {
				p.close(t)
			}
		}
	})
}

// slow is a protocol whose Fill waits for the test.
type slow struct {
	*lengthFramed
	inside, leave chan struct{}
}

func (p *slow) Fill(b *Batch) {
	p.inside <- struct{}{}
	<-p.leave
	p.lengthFramed.Fill(b)
}

// blockedFailure is a protocol whose Failed waits for the test.
type blockedFailure struct {
	*lengthFramed
	inside, leave chan struct{}
}

func (p *blockedFailure) Failed(error) {
	p.inside <- struct{}{}
	<-p.leave
}

// TestCloseWaits: Close waits for running methods of the protocol, in either role or in none.
func TestCloseWaits(t *testing.T) {
	everyKind(t, func(t *testing.T, k kind) {
		for _, role := range []string{"send", "receive", "none"} {
			a, b := k.connect(t)
			inside, leave := make(chan struct{}, 1), make(chan struct{})
			switch role {
			case "send":
				a.c.proto = &slow{a, inside, leave}
				go a.c.Kick()
			case "none":
				a.c.proto = &blockedFailure{a, inside, leave}
				b.c.Close()
			default:
				a.got = func([]byte) { inside <- struct{}{}; <-leave }
				b.post([]byte("x"))
				b.c.Kick()
			}
			a.c.Start(nil)
			testkit.Await(t, "the method runs", inside)
			closed := make(chan struct{})
			go func() { a.c.Close(); close(closed) }()
			select {
			case <-closed:
				t.Errorf("%s: Close did not wait", role)
			case <-time.After(5 * time.Millisecond):
			}
			close(leave)
			testkit.Await(t, "Close", closed)
		}
	})
}

// TestShutdownDelivers: frames queued before Shutdown are delivered, followed by the end of the
// stream.
func TestShutdownDelivers(t *testing.T) {
	everyKind(t, func(t *testing.T, k kind) {
		a, b := k.connect(t)
		fs := frames(100)
		done := b.expect(t, fs)
		a.c.Start(nil)
		for _, f := range fs {
			a.post(f)
		}
		a.c.Shutdown()
		closed := make(chan error, 1)
		go func() { closed <- a.c.CloseAfter(testkit.Patience) }()
		b.c.Start(nil)
		testkit.Await(t, "all frames", done)
		if err := testkit.Await(t, "the end", b.failed); err != io.EOF {
			t.Errorf("%v", err)
		}
		select {
		case <-closed:
			t.Error("CloseAfter did not wait for the peer")
		default:
		}
		b.c.Shutdown()
		if err := testkit.Await(t, "CloseAfter", closed); err != nil {
			t.Error(err)
		}
	})
}

// TestCloseAfterGivesUp: CloseAfter closes after the given time if the peer never ends its
// direction.
func TestCloseAfterGivesUp(t *testing.T) {
	everyKind(t, func(t *testing.T, k kind) {
		a, b := k.connect(t)
		a.c.Start(nil)
		b.c.Start(nil)
		begin := time.Now()
		a.c.CloseAfter(20 * time.Millisecond)
		if took := time.Since(begin); took < 20*time.Millisecond || took > testkit.Patience/2 {
			t.Errorf("took %v", took)
		}
	})
}

// TestAbortResets: the peer of Abort sees a reset instead of an orderly end.
func TestAbortResets(t *testing.T) {
	for _, k := range kinds[:2] { // a pipe cannot be reset
		t.Run(k.name, func(t *testing.T) {
			a, b := k.connect(t)
			a.c.Start(nil)
			b.c.Start(nil)
			a.c.Abort()
			err := testkit.Await(t, "the reset", b.failed)
			if !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("peer of an abort got %v", err)
			}
			if n := a.fails.Load(); n != 0 {
				t.Errorf("the side that aborts is told %d times", n)
			}
		})
	}
}

// TestCloseClosesTheStream: the stream is closed after Close, and soon after Abort.
func TestCloseClosesTheStream(t *testing.T) {
	everyKind(t, func(t *testing.T, k kind) {
		a, b := k.connect(t)
		a.c.Start(nil)
		if a.c.NetConn().LocalAddr() != a.c.nc.LocalAddr() {
			t.Error("NetConn is another one")
		}
		a.c.Close()
		if _, err := a.c.nc.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
			t.Errorf("write after Close: %v", err)
		}
		b.c.Abort()
		b.c.Close()
		if _, err := b.c.nc.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
			t.Errorf("write after Abort: %v", err)
		}
	})
}
