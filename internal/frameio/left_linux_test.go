package frameio

import (
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/internal/attend"
	"viaduct/internal/sock"
	"viaduct/internal/testkit"
)

// TestLeft: bytes a protocol leaves by ErrEnough are received although no arrival follows. Usually
// the reading goroutine receives them at once. If the protocol keeps them for a consumer, the next
// poll receives them; without a poll, another goroutine receives them soon.
func TestLeft(t *testing.T) {
	for _, from := range []attend.State{attend.Shared, attend.Dedicated, attend.Reserved} {
		t.Run(from.String(), func(t *testing.T) {
			nc, peer := testkit.TCPPair(t)
			defer peer.Close()
			p := newFramed(nc, Options{})
			defer p.close(t)
			var got, allowed, byConsumer atomic.Int32
			var keep, polls atomic.Bool
			delivered := make(chan bool, 1000)
			p.got = func([]byte) {
				got.Add(1)
				if p.c.Polled() && polls.Load() {
					byConsumer.Add(1)
				}
			}
			p.enough = func() bool { return got.Load() >= allowed.Load() }
			p.keep = func() bool {
				keeps := keep.Load() && got.Load()%2 == 1
				if !keeps {
					allowed.Store(got.Load() + 1) // one more frame may be received
				}
				select {
				case delivered <- true:
				default:
				}
				return keeps
			}
			if from == attend.Reserved {
				p.c.StartPolled(nil)
			} else if p.c.Start(nil); from == attend.Dedicated {
				p.c.att.Dedicate()
			}
			if p.c.sock.Load() == nil {
				t.Skip("SKIPPED: only the fast path leaves anything")
			}
			two := stream([][]byte{{1, 2, 3}, {4, 5}})
			send := func() {
				t.Helper()
				allowed.Store(got.Load() + 1)
				if _, err := peer.Write(two); err != nil {
					t.Fatal(err)
				}
			}
			if from == attend.Reserved {
				keep.Store(true)
				send()
				testkit.Eventually(t, "the first frame", func() bool { p.c.Poll(); return got.Load() == 1 })
				if s := p.c.att.State(); s == attend.Reserved {
					t.Error("nothing waits for what a consumer has left")
				}
				keep.Store(false)
				allowed.Store(2)
				testkit.Eventually(t, "the second frame", func() bool { return got.Load() == 2 })
			}
			first := got.Load()
			for i := range int32(20) {
				keep.Store(false)
				send()
				testkit.Eventually(t, "both frames", func() bool { return got.Load() == first+4*i+2 })
				keep.Store(true) // the consumer does not poll
				send()
				testkit.Eventually(t, "the first frame", func() bool { return got.Load() >= first+4*i+3 })
				keep.Store(false)
				allowed.Store(first + 4*i + 4)
				testkit.Eventually(t, "both frames, without a consumer",
					func() bool { return got.Load() == first+4*i+4 })
			}
			// The consumer polls, usually within a millisecond. On a busy machine it may come too late
			// many times.
			best := int32(0)
			for end := time.Now().Add(testkit.Patience); best == 0 && time.Now().Before(end); {
				for len(delivered) > 0 {
					<-delivered
				}
				byConsumer.Store(0)
				keep.Store(true)
				before := got.Load()
				send()
				testkit.Eventually(t, "the first frame", func() bool { return got.Load() > before })
				testkit.Await(t, "its delivery", delivered)
				allowed.Store(before + 2)
				polls.Store(true)
				for got.Load() < before+2 {
					p.c.Poll()
				}
				polls.Store(false)
				best = max(best, byConsumer.Load())
			}
			if best == 0 {
				t.Error("what was kept never came to the consumer")
			}
		})
	}
}

// TestLeftStays: a connection with staged bytes keeps its attendant, because only an arrival would
// wake a shared poller.
func TestLeftStays(t *testing.T) {
	nc, peer := testkit.TCPPair(t)
	defer peer.Close()
	p := newFramed(nc, Options{})
	defer p.close(t)
	p.c.Start(nil)
	if s := p.c.att.State(); s != attend.Shared {
		t.Fatalf("it begins in state %v", s)
	}
	left := func(left bool) { p.c.WithReceiver(func() { p.c.rx.left = left }) }
	for range 3 {
		left(true) // before there is an attendant, which would retire with nothing left
		p.c.att.Dedicate()
		for range 20 {
			p.c.sock.Load().Interrupt()
			time.Sleep(time.Millisecond)
			// Polled is possible for a moment, because left has held the receive role.
			if p.c.att.State() == attend.Shared {
				t.Fatal("left staged: it waits with a shared poller")
			}
		}
		left(false)
		testkit.Eventually(t, "it waits with a shared poller", func() bool {
			p.c.sock.Load().Interrupt()
			return p.c.att.State() == attend.Shared
		})
	}
}

// TestEndBehindEnough: the end of the stream is found even if the protocol returned ErrEnough after
// it was shown all bytes. Nothing else reports the end.
func TestEndBehindEnough(t *testing.T) {
	for _, keep := range []bool{false, true} {
		nc, peer := testkit.TCPPair(t)
		if _, err := peer.Write(stream([][]byte{{1, 2, 3}})); err != nil {
			t.Fatal(err)
		}
		peer.Close()
		raw, err := nc.(*net.TCPConn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, "both are there", func() (ended bool) {
			raw.Control(func(fd uintptr) {
				fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
				_, _ = sock.Poll(fds, 0)
				ended = fds[0].Revents&unix.POLLRDHUP != 0
			})
			return ended
		})
		p := newFramed(nc, Options{})
		var got atomic.Int32
		p.got = func([]byte) { got.Add(1) }
		p.enough = func() bool { return got.Load() > 0 }
		p.keep = func() bool { return keep }
		p.c.Start(nil)
		if err := testkit.Await(t, "the end", p.failed); err != io.EOF || got.Load() != 1 {
			t.Errorf("keep %t: %v after %d frames", keep, err, got.Load())
		}
		p.close(t)
	}
}
