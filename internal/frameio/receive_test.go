package frameio

import (
	"context"
	"io"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"viaduct/internal/testkit"
)

// TestAnySplittingPortable: a stream gives the same frames however reads split it, on the portable
// path.
func TestAnySplittingPortable(t *testing.T) {
	fs := frames(14)
	for name, faults := range map[string][]testkit.Fault{
		"whole":   nil,
		"pieces1": {testkit.SplitReads(1)},
		"pieces2": {testkit.SplitReads(2)},
		"seven":   {testkit.MaxRead(7)},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := testkit.PipeSize(3000)
			a.Fault(faults...)
			p, q := newFramed(a, Options{}), newFramed(b, Options{})
			done := q.expect(t, fs)
			p.c.Start(nil)
			q.c.Start(nil)
			for i, f := range fs {
				p.post(f)
				if i%3 == 0 {
					p.c.Kick()
				}
			}
			p.c.Kick()
			testkit.Await(t, "all frames", done)
			p.close(t)
			q.close(t)
		})
	}
}

// TestAnySplitting: a stream gives the same frames however reads split it, on the fast path. The
// peer writes pieces of all sizes, and the reader sees many of the cuts.
func TestAnySplitting(t *testing.T) {
	fs := frames(30)
	s := stream(fs)
	for _, polling := range []bool{false, true} {
		for seed := range uint64(4) {
			nc, peer := testkit.TCPPair(t)
			p := newFramed(nc, Options{})
			done := p.expect(t, fs)
			p.c.Start(nil)
			stop := make(chan struct{})
			polled := make(chan struct{})
			go func() {
				defer close(polled)
				for polling {
					select {
					case <-stop:
						return
					default:
						p.c.Poll()
					}
				}
			}()
			rnd := rand.New(rand.NewPCG(seed, 3))
			for rest := s; len(rest) > 0; {
				n := min(len(rest), 1+rnd.IntN([]int{3, 60, 3000, 90000}[rnd.IntN(4)]))
				if _, err := peer.Write(rest[:n]); err != nil {
					t.Fatal(err)
				}
				rest = rest[n:]
				if n < 100 {
					// Lets the reader see some cuts.
					time.Sleep(time.Duration(rnd.IntN(3)) * 20 * time.Microsecond)
				}
			}
			testkit.Await(t, "all frames", done)
			close(stop)
			<-polled
			peer.Close()
			if err := testkit.Await(t, "the end", p.failed); err != io.EOF {
				t.Errorf("end of stream: %v", err)
			}
			p.close(t)
		}
	}
}

// TestEveryCut cuts the stream at every position. The reader has consumed all bytes before the cut
// when the bytes after the cut are sent.
func TestEveryCut(t *testing.T) {
	fs := [][]byte{frame(3), frame(7), {}, frame(8), frame(1)} // a long frame between short ones
	s := stream(fs)
	nc, peer := testkit.TCPPair(t)
	defer peer.Close()
	p := newFramed(nc, Options{})
	p.c.Start(nil)
	// taken returns the number of bytes the receiver has, wherever they are.
	var whole int // bytes of complete frames; guarded by the receive role
	taken := func() int {
		p.c.Poll()
		r := &p.c.rx
		p.c.att.Lock()
		defer p.c.att.Unlock()
		n := whole + r.fill + len(r.early)
		if p.missing > 0 {
			n += 4 + p.at
		}
		return n
	}
	for cut := 1; cut < len(s); cut++ {
		if cut > 300 && cut < len(s)-20 && cut%61 != 0 {
			continue
		}
		p.c.att.Lock()
		done := p.expect(t, fs)
		compare := p.got
		whole = 0
		p.got = func(b []byte) { whole += 4 + len(b); compare(b) }
		p.c.att.Unlock()
		if _, err := peer.Write(s[:cut]); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, "all before the cut is taken", func() bool { return taken() == cut })
		if _, err := peer.Write(s[cut:]); err != nil {
			t.Fatal(err)
		}
		for more := true; more; {
			select {
			case <-done:
				more = false
			default:
				p.c.Poll()
			}
		}
		if t.Failed() {
			t.Fatalf("cut at %d of %d", cut, len(s))
		}
	}
	if p.calls == 0 {
		t.Error("nothing was read straight into place")
	}
	p.close(t)
}

// TestEarlyBytes: the bytes that were read before the start are handled first.
func TestEarlyBytes(t *testing.T) {
	fs := frames(40)
	s := stream(fs)
	everyKind(t, func(t *testing.T, k kind) {
		for _, n := range []int{0, 1, 5, 200, 6000, 100000, 200000} {
			x, peer := k.pair(t)
			p := newFramed(x, k.opt)
			done := p.expect(t, fs)
			p.c.Start(slices.Clone(s[:n]))
			if _, err := peer.Write(s[n:]); err != nil {
				t.Fatal(err)
			}
			testkit.Await(t, "all frames", done)
			p.close(t)
			peer.Close()
		}
		// Early bytes must be handled without another arrival.
		x, peer := k.pair(t)
		p := newFramed(x, k.opt)
		done := p.expect(t, fs[:2])
		p.c.Start(stream(fs[:2]))
		testkit.Await(t, "early frames", done)
		p.close(t)
		peer.Close()
	})
}

// TestEnds: the end of the receiving direction is reported once, with the right error.
func TestEnds(t *testing.T) {
	long := stream([][]byte{make([]byte, 50000)})
	everyKind(t, func(t *testing.T, k kind) {
		for name, c := range map[string]struct {
			write []byte
			want  error
		}{
			"between frames": {stream(frames(3)), io.EOF},
			"at once":        {nil, io.EOF},
			"in a header":    {long[:3], io.ErrUnexpectedEOF},
			"in a payload":   {long[:100], io.ErrUnexpectedEOF},
			"in a long one":  {long[:40000], io.ErrUnexpectedEOF},
		} {
			for _, polling := range []bool{false, true} {
				x, peer := k.pair(t)
				p := newFramed(x, k.opt)
				p.c.Start(nil)
				if _, err := peer.Write(c.write); err != nil {
					t.Fatal(err)
				}
				peer.Close()
				var err error
				for end := time.Now().Add(testkit.Patience); err == nil && time.Now().Before(end); {
					if polling {
						p.c.Poll()
					}
					select {
					case err = <-p.failed:
					case <-time.After(time.Millisecond):
					}
				}
				if err != c.want {
					t.Errorf("%s (polling %t): %v, want %v", name, polling, err, c.want)
				}
				p.close(t)
			}
		}
	})
}

// TestRefused: an error of the protocol ends the direction.
func TestRefused(t *testing.T) {
	everyKind(t, func(t *testing.T, k kind) {
		// Bytes sent first: the error comes from Receive, or from Plan.
		for _, first := range []int{0, 3000} {
			x, peer := k.pair(t)
			p := newFramed(x, k.opt)
			p.c.Start(nil)
			s := stream([][]byte{make([]byte, 60000)})
			if _, err := peer.Write(s[:first]); err != nil {
				t.Fatal(err)
			}
			if first > 0 && k.name == "tcp" {
				testkit.Eventually(t, "the long frame begins", func() bool {
					p.c.att.Lock()
					defer p.c.att.Unlock()
					return p.missing > 0
				})
			}
			p.refuse.Store(&errRefused)
			if _, err := peer.Write(s[first:]); err != nil {
				t.Fatal(err)
			}
			if err := testkit.Await(t, "the failure", p.failed); err != errRefused {
				t.Errorf("%v", err)
			}
			p.close(t)
			peer.Close()
		}
	})
}

// TestPassiveTakesOver: a poller keeps the connection's goroutine (the passive goroutine) away, and
// this goroutine returns about a millisecond after the last poll, or at once after Unpoll.
func TestPassiveTakesOver(t *testing.T) {
	for _, unpoll := range []bool{false, true} {
		nc, peer := testkit.TCPPair(t)
		p := newFramed(nc, Options{})
		got := make(chan time.Time, 1)
		p.got = func([]byte) { got <- time.Now() }
		p.c.Start(nil)
		one := stream([][]byte{{1, 2, 3}})
		// The best result counts, because the machine may be busy. The rounds go on until one is quick.
		const limit = 5 * time.Millisecond
		best := testkit.Patience
		end := time.Now().Add(testkit.Patience)
		for i := 0; i < 15 || best > limit && time.Now().Before(end); i++ {
			for begin := time.Now(); time.Since(begin) < 3*time.Millisecond; {
				p.c.Poll()
			}
			if _, err := peer.Write(one); err != nil {
				t.Fatal(err)
			}
			for len(got) == 0 { // the poller receives the frame
				p.c.Poll()
			}
			<-got
			if unpoll {
				p.c.Unpoll()
			}
			begin := time.Now()
			if _, err := peer.Write(one); err != nil {
				t.Fatal(err)
			}
			best = min(best, testkit.Await(t, "a frame without a poller", got).Sub(begin))
		}
		if best > limit {
			t.Errorf("unpoll %t: the passive goroutine took %v at best", unpoll, best)
		}
		if unpoll && best > time.Millisecond {
			t.Logf("after Unpoll it took %v at best", best)
		}
		p.close(t)
		peer.Close()
	}
}

// TestPollerIsLeftAlone: the consumer handles all arrivals as long as it polls, and the passive
// goroutine handles none.
func TestPollerIsLeftAlone(t *testing.T) {
	nc, peer := testkit.TCPPair(t)
	defer peer.Close()
	p := newFramed(nc, Options{})
	const frameCount = 400
	one := stream([][]byte{{1}})
	var polling atomic.Bool
	var mine, others atomic.Int32
	p.got = func([]byte) {
		if polling.Load() {
			mine.Add(1)
		} else {
			others.Add(1)
		}
	}
	p.c.Start(nil)
	best, most := int32(frameCount), int32(frameCount/4)
	// The machine may take the processor away from the poller.
	for end := time.Now().Add(testkit.Patience); best > most && time.Now().Before(end); {
		mine.Store(0)
		others.Store(0)
		for i := range int32(frameCount) {
			if _, err := peer.Write(one); err != nil {
				t.Fatal(err)
			}
			// Poll at least once, or the passive goroutine could not know that there is a poller:
			// on a busy machine it may run before the writer continues.
			for first := true; first || mine.Load()+others.Load() <= i; first = false {
				polling.Store(true)
				p.c.Poll()
				polling.Store(false)
				// No consumer is in Poll for a moment. A passive goroutine that did not keep away
				// would often be first.
				for begin := time.Now(); time.Since(begin) < 20*time.Microsecond; {
				}
			}
		}
		best = min(best, others.Load())
	}
	if best > most {
		t.Errorf("the passive goroutine took %d frames of %d at best", best, frameCount)
	}
	p.close(t)
}

// TestPollersShare: frames arrive whole and in order while several goroutines poll and the passive
// goroutine runs too.
func TestPollersShare(t *testing.T) {
	fs := frames(300)
	nc, peer := testkit.TCPPair(t)
	p := newFramed(nc, Options{})
	done := p.expect(t, fs)
	p.c.Start(nil)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	for i := range 3 {
		go func() {
			defer func() { ended <- struct{}{} }()
			for ctx.Err() == nil {
				p.c.Poll()
				if i == 0 {
					p.c.Unpoll()
				}
				time.Sleep(time.Duration(i) * 300 * time.Microsecond)
			}
		}()
	}
	if _, err := peer.Write(stream(fs)); err != nil {
		t.Fatal(err)
	}
	testkit.Await(t, "all frames", done)
	stop()
	for range 3 {
		<-ended
	}
	p.close(t)
	peer.Close()
}

// TestFrameTooLong: a frame that is too long for staging ends the connection instead of filling
// memory.
func TestFrameTooLong(t *testing.T) {
	everyKind(t, func(t *testing.T, k kind) {
		x, peer := k.pair(t)
		p := &hoarder{lengthFramed: newFramed(x, k.opt)}
		p.c.proto = p
		p.c.Start(nil)
		go io.Copy(peer, &io.LimitedReader{R: zeros{}, N: 1 << 20})
		if err := testkit.Await(t, "the failure", p.failed); err != io.ErrShortBuffer {
			t.Errorf("%v", err)
		}
		p.close(t)
		peer.Close()
	})
}

// A hoarder is a protocol that never consumes a byte.
type hoarder struct{ *lengthFramed }

func (hoarder) Receive([]byte, bool) (int, int, error) { return 0, 0, nil }

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
