package roceudp

import (
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"viaduct/internal/rocecore"
	"viaduct/internal/testkit"
	"viaduct/internal/wire/ib"
)

// The goroutine of a port stays away from the socket while a consumer polls, and returns a
// millisecond after the last poll, or at once after Unpoll and Close.
func TestStepAside(t *testing.T) {
	polling := func(p *Port, n int, every time.Duration) {
		for range n {
			p.polls.Add(1)
			time.Sleep(every)
		}
	}
	for name, v := range map[string]struct {
		do   func(p *Port)
		want time.Duration
	}{
		"nobody polls": {func(*Port) {}, 0},
		"one poll":     {func(p *Port) { polling(p, 1, 0) }, quietTime},
		"polling":      {func(p *Port) { polling(p, 100, quietTime/10*3) }, 31 * quietTime},
		"Unpoll":       {func(p *Port) { polling(p, 10, quietTime/10); p.Unpoll() }, quietTime},
		"Close":        {func(p *Port) { polling(p, 10, quietTime/10); close(p.done) }, quietTime},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPort(netip.MustParseAddr("127.0.0.1"), new(Share))
				go v.do(p)
				synctest.Wait() // the first poll
				begin := time.Now()
				p.stepAside()
				if took := time.Since(begin); took != v.want || p.aside.Load() {
					t.Errorf("returned after %v, want %v; aside %v", took, v.want, p.aside.Load())
				}
				synctest.Wait()
			})
		})
	}
}

// sentBy records the opcodes of sent packets by its method tap, each retransmitted packet once.
type sentBy struct {
	mu   sync.Mutex
	sent []ib.Opcode     // guarded by mu
	seen map[ib.BTH]bool // guarded by mu
}

func (s *sentBy) tap(out bool, _, _ netip.AddrPort, b []byte) {
	p, err := ib.Parse(b[:len(b)-ib.ICRCLen])
	s.mu.Lock()
	defer s.mu.Unlock()
	if out && err == nil && !s.seen[p.BTH] {
		s.seen[p.BTH] = true
		s.sent = append(s.sent, p.Opcode)
	}
}

// take returns the opcodes since the last call.
func (s *sentBy) take() []ib.Opcode {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.sent = nil }()
	return s.sent
}

// Poll leaves the acknowledgement of a message to the consumer's reply, and the reply leaves first. A
// consumer that does not reply twice in a row has the next messages acknowledged at once.
// [ROCE-RESP-14]
func TestPollDefers(t *testing.T) {
	a, b := port(t), port(t)
	c := newTalk(t, ib.RC, a, b)
	s := sentBy{seen: map[ib.BTH]bool{}}
	b.SetTap(s.tap)
	b.rx.Lock() // so that the goroutine of b receives nothing
	defer b.rx.Unlock()
	write := func(q *Pair) { q.Post(&rocecore.Request{Op: rocecore.Write, Buf: zeros(0)}) }
	arrives := func() {
		t.Helper()
		write(c.pairs[0])
		testkit.Eventually(t, "the message", func() bool {
			any, _, _ := b.pollLocked(nil, deferring)
			return any
		})
	}
	check := func(what string, want ...ib.Opcode) {
		t.Helper()
		if got := s.take(); !slices.Equal(got, want) {
			t.Errorf("%s: sent %v, want %v", what, got, want)
		}
	}
	for range 3 {
		arrives()
		check("before the reply")
		write(c.pairs[1])
		check("the reply", ib.WriteOnly, ib.Acknowledge)
		b.sendDeferredLocked()
		check("after the reply")
		testkit.Eventually(t, "the acknowledgement of the reply", func() bool {
			b.pollLocked(nil, deferring)
			return c.done(1) > 0
		})
		c.pairs[1].mu.Lock()
		c.hosts[1].done = 0
		c.pairs[1].mu.Unlock()
	}
	for range 2 {
		arrives()
		check("before the next poll")
		b.sendDeferredLocked()
		check("the next poll", ib.Acknowledge)
	}
	arrives()
	check("a message without a reply", ib.Acknowledge)
}

// The goroutine of the port sends the acknowledgement that a consumer has left by polling no more.
func TestPollEnds(t *testing.T) {
	a, b := port(t), port(t)
	c := newTalk(t, ib.RC, a, b)
	s := sentBy{seen: map[ib.BTH]bool{}}
	b.SetTap(s.tap)
	n := 0
	arrives := func() {
		n++
		c.pairs[0].Post(&rocecore.Request{Op: rocecore.Write, Buf: zeros(0)})
		testkit.Eventually(t, "the message", func() bool {
			b.Poll()
			return c.pairs[1].Counters().ReceivedPackets >= uint64(n)
		})
	}
	for range 10 {
		for !b.aside.Load() {
			arrives() // wakes the goroutine of b, which steps aside if Poll was first
		}
		testkit.Eventually(t, "earlier acknowledgements", func() bool { return c.done(0) == n })
		s.take()
		b.replies.Reset()
		arrives()
		c.pairs[0].mu.Lock() // so that it does not repeat the message
		testkit.Eventually(t, "the acknowledgement", func() bool { return len(s.take()) > 0 })
		c.pairs[0].mu.Unlock()
	}
}
