package frameio

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"viaduct/internal/regmem"
	"viaduct/internal/shm"
	"viaduct/internal/sock"
	"viaduct/internal/testkit"
)

// lendingPair returns two ends connected by shared memory, and n frames. b has mapped the memory of
// a's frames, which are in lent. done is closed when b has received all frames.
func lendingPair(t *testing.T, n int) (a, b *lengthFramed, fs, lent [][]byte, done <-chan struct{}) {
	if !sock.SharesByDefault {
		t.Skip("in this build nothing goes through shared memory")
	}
	fs = append([][]byte{make([]byte, 70000)}, frames(n)...)
	for _, f := range fs {
		m, err := shm.Alloc(max(len(f), 1))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { shm.Free(m) })
		lent = append(lent, m[:copy(m, f)])
	}
	x, y := sock.Shared(ownedPair(t))
	a, b = newFramed(x, Options{}), newFramed(y, Options{})
	t.Cleanup(func() { a.close(t); b.close(t) }) // before the memory is freed
	done = b.expect(t, fs)
	a.c.Start(nil)
	b.c.Start(nil)
	a.post(lent[0]) // passes through the ring
	a.c.Kick()
	testkit.Eventually(t, "the first frame is sent", func() bool { return a.sentFrames() == 1 })
	time.Sleep(time.Millisecond)
	return a, b, fs, lent, done
}

// TestParkedAtWork: every frame is sent, whatever the consumer does while the peer copies frames
// out of lent memory. The test overwrites each frame once the frame is reported as sent, because
// the peer must not read the frame after that.
func TestParkedAtWork(t *testing.T) {
	a, _, _, lent, done := lendingPair(t, 600)
	a.c.Poll() // the role is parked only for a consumer that has polled
	cleared := 0
	for i, f := range lent[1:] {
		a.post(f)
		a.c.Kick()
		switch rand.IntN(8) {
		case 0, 1, 2:
			for range rand.IntN(100) {
				a.c.Poll()
			}
		case 3:
			a.c.Unpoll()
		case 4:
			a.c.WithSender(func() {})
		case 5:
			a.c.Quiesce()
		case 6:
			time.Sleep(time.Duration(rand.IntN(100)) * time.Microsecond)
		}
		for n := a.sentFrames(); cleared < n && cleared <= i; cleared++ {
			clear(lent[cleared])
		}
	}
	testkit.Await(t, "all frames", done)
	testkit.Eventually(t, "all are sent", func() bool { return a.sentFrames() == len(lent) })
	if a.c.tx.parks.Load() == 0 {
		t.Error("the send role was never parked")
	}
}

// TestParkedAndLeft: a parked role is resumed when the consumer stops polling: at once if the
// consumer calls Unpoll or the connection is closed, and otherwise soon, also if the watch ended
// during the last poll.
func TestParkedAndLeft(t *testing.T) {
	for name, leave := range map[string]func(t *testing.T, c *Conn){
		"waits":   func(_ *testing.T, c *Conn) { c.Unpoll() },
		"is gone": func(*testing.T, *Conn) {},
		"is gone after a poll during which the watch ended": pollWhileWatchEnds,
		"closes": nil,
	} {
		t.Run(name, func(t *testing.T) {
			a, b, _, lent, _ := lendingPair(t, 13*20)
			parked := false
			for i := 1; i < len(lent) && !parked; i++ {
				if len(lent[i]) < 64<<10 {
					continue
				}
				held, release := make(chan struct{}), make(chan struct{})
				go b.c.WithReceiver(func() { close(held); <-release })
				<-held
				sent := a.sentFrames()
				a.c.Poll()
				b.got = func([]byte) {} // frames are missing from here on, so do not compare
				a.post(lent[i])
				a.c.Kick()
				if parked = a.c.tx.parks.Load() > 0; parked && a.sentFrames() != sent {
					t.Error("sent, though the peer has copied nothing")
				}
				if parked && leave == nil {
					close(release)
					return // closed by the end of the test
				}
				if parked {
					leave(t, a.c)
				}
				close(release)
				testkit.Eventually(t, "the frame is sent", func() bool { return a.sentFrames() == sent+1 })
			}
			if !parked {
				t.Error("the send role was never parked")
			}
		})
	}
}

// pollWhileWatchEnds makes a poll that finds the role still owed, and stops between its two steps
// until the watch, which finds nothing parked, has ended.
func pollWhileWatchEnds(t *testing.T, c *Conn) {
	done := make(chan struct{})
	c.tx.mu.Lock()
	go func() {
		defer close(done)
		c.takeUp()
	}()
	testkit.Eventually(t, "the role is not parked", func() bool { return !c.tx.parked.Load() })
	testkit.Eventually(t, "the watch ends", func() bool { return !c.tx.watched.Load() })
	c.tx.mu.Unlock()
	<-done
}

// TestParkedPins: a region a parked role has pinned can be deregistered at once, and a connection
// closed with a parked role holds no pins.
func TestParkedPins(t *testing.T) {
	for _, closes := range []bool{false, true} {
		t.Run(fmt.Sprintf("closes=%t", closes), func(t *testing.T) {
			a, b, _, lent, _ := lendingPair(t, 13*20)
			g := regmem.New(regmem.Limits{})
			pinned := func(mem []byte) (*regmem.Region, regmem.Ref) {
				r, err := g.Register(mem, regmem.Options{})
				if err != nil {
					t.Fatal(err)
				}
				ref, out := r.Access(r.Base(), uint64(len(mem)), nil, nil, regmem.LocalRead)
				if out != regmem.OK {
					t.Fatal(out)
				}
				return r, ref
			}
			deregister := func(r *regmem.Region) <-chan error {
				gone := make(chan error, 1)
				go func() { gone <- g.Deregister(r) }()
				return gone
			}
			b.c.WithReceiver(func() { b.got = func([]byte) {} }) // frames are missing from here on, so do not compare
			for _, mem := range lent {
				if len(mem) < 64<<10 {
					continue
				}
				held, release := make(chan struct{}), make(chan struct{})
				go b.c.WithReceiver(func() { close(held); <-release })
				<-held
				r, ref := pinned(mem)
				sent := a.sentFrames()
				a.c.Poll()
				a.postRef(ref)
				a.c.Kick()
				if a.c.tx.parks.Load() == 0 {
					close(release)
					testkit.Eventually(t, "the frame is sent", func() bool { return a.sentFrames() == sent+1 })
					continue
				}
				defer close(release)
				if !closes {
					if err := testkit.Await(t, "the region is deregistered", deregister(r)); err != nil {
						t.Error(err)
					}
					return
				}
				a.c.Close()
				other, ref := pinned(make([]byte, 10))
				gone := deregister(other)
				testkit.Eventually(t, "it asks for pins", ref.Closing)
				time.Sleep(time.Millisecond)
				ref.Release()
				if err := testkit.Await(t, "another region is deregistered", gone); err != nil {
					t.Error(err)
				}
				return
			}
			t.Error("the send role was never parked")
		})
	}
}
