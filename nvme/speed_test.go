package nvme

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"viaduct/internal/testkit"
	"viaduct/internal/wire/nvmewire"
	"viaduct/iwarp"
)

// A pair is the two ends of a stream without NVMe: a is the connecting end and must send first, b
// is the accepting end.
type pair struct {
	a, b *iwarp.QueuePair
}

func connectPair(t testing.TB, crc bool) *pair {
	t.Helper()
	cfg := *crcConfig(crc).Stream
	cfg.SendDepth, cfg.RecvDepth = 256, 256
	l, err := iwarp.Listen("127.0.0.1:0", &cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := new(pair)
	accepted := make(chan error, 1)
	go func() {
		r, err := l.AcceptRequest(patience(t))
		if err == nil {
			p.b, err = r.Accept(nil)
		}
		accepted <- err
	}()
	p.a, err = iwarp.Dial(patience(t), l.Addr().String(), &iwarp.Config{SendDepth: 256, RecvDepth: 256, Device: withoutCRC()})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-accepted; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.a.Abort(); p.b.Abort() })
	return p
}

// poll waits for a completion by polling.
func poll(t testing.TB, cq *iwarp.CompletionQueue) iwarp.Completion {
	for end := time.Now().Add(time.Minute); ; runtime.Gosched() {
		switch c, ok := cq.Poll(); {
		case ok && c.Status != iwarp.StatusOK:
			t.Fatal(c.Status)
		case ok:
			return c
		case time.Now().After(end):
			t.Fatal("no completion")
		}
	}
}

// pingPong returns a function for an exchange: a Send of the length of a command, answered by a
// Send of n bytes plus the length of a response.
func pingPong(t testing.TB, crc bool, n int) func() {
	p := connectPair(t, crc)
	there, back := make([]byte, nvmewire.SQELen), make([]byte, n+nvmewire.CQELen)
	end := func(q *iwarp.QueuePair, recv, send []byte) (receive, reply func() error) {
		in, out := []iwarp.SGE{iwarp.Buf(make([]byte, len(recv)))}, []iwarp.SGE{iwarp.Buf(send)}
		receive = func() error { return q.PostRecv(iwarp.RecvWR{SG: in}) }
		reply = func() error { return q.Post(iwarp.SendWR{SG: out, Unsignaled: true}) }
		return receive, reply
	}
	receiveA, ping := end(p.a, back, there)
	receiveB, pong := end(p.b, there, back)
	if err := receiveB(); err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			if c, err := p.b.RecvCQ().Wait(context.Background()); err != nil || c.Status != iwarp.StatusOK || receiveB() != nil || pong() != nil {
				return
			}
		}
	}()
	return func() {
		if err := receiveA(); err != nil {
			t.Fatal(err)
		}
		if err := ping(); err != nil {
			t.Fatal(err)
		}
		poll(t, p.a.RecvCQ())
	}
}

// writes returns a function that makes count Writes of n bytes, depth at a time, and waits until
// the last Write has arrived.
func writes(t testing.TB, crc bool, n, depth, count int) func() {
	p := connectPair(t, crc)
	mr, err := p.b.Register(make([]byte, n), iwarp.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	wr := iwarp.SendWR{Op: iwarp.OpWrite, SG: []iwarp.SGE{iwarp.Buf(make([]byte, n))}, Remote: iwarp.RemoteAddr{STag: mr.STag(), TO: mr.TO()}}
	return func() {
		if err := p.b.PostRecv(iwarp.RecvWR{}); err != nil {
			t.Fatal(err)
		}
		for i := range count + depth {
			if i >= depth {
				poll(t, p.a.SendCQ())
			}
			if i < count {
				if err := p.a.Post(wr); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := p.a.Post(iwarp.SendWR{Unsignaled: true}); err != nil {
			t.Fatal(err)
		}
		poll(t, p.b.RecvCQ())
	}
}

// reads returns a function that makes count Reads of n bytes through NVMe, depth at a time.
func reads(t testing.TB, crc bool, n, depth, count int) func() {
	_, addr := serveWith(t, crcConfig(crc), Memory(1<<20))
	_, h := attach(t, addr, 32)
	l := newLoop(h, h.rw(nvmewire.OpRead, 0, n), 0)
	return func() {
		for i := range count + depth {
			if i >= depth {
				l.response(t)
			}
			if i < count {
				l.post(t)
			}
		}
	}
}

// compared returns the median times of two functions that run in turns. The shortest times would
// say less, because a round whose bytes happen to stay in the processor's cache takes a third of
// the usual time.
func compared(rounds int, a, b func()) (time.Duration, time.Duration) {
	var times [2][]time.Duration
	for range rounds {
		for i, f := range []func(){a, b} {
			begin := time.Now()
			f()
			times[i] = append(times[i], time.Since(begin))
		}
	}
	slices.Sort(times[0])
	slices.Sort(times[1])
	return times[0][rounds/2], times[1][rounds/2]
}

// atLeast measures until a ratio reaches the bound, for a minute at most. Other load on the machine
// can slow down one side of a measurement more than the other.
func atLeast(t *testing.T, bound float64, what string, measure func() float64) {
	t.Helper()
	ratio := 0.0
	for end := time.Now().Add(testkit.Patience); time.Now().Before(end); {
		ratio = measure()
		t.Logf("%s: ratio %.2f", what, ratio)
		if ratio >= bound {
			return
		}
	}
	t.Errorf("%s: ratio %.2f, want at least %.2f", what, ratio, bound)
}

// TestSpeed compares commands with the stream without NVMe. On a quiet machine the ratios should be
// 0.77 and 0.8; the lower bounds of the test allow for a busy machine.
func TestSpeed(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector makes the two sides slow in different ways")
	}
	for _, crc := range []bool{true, false} {
		t.Run(fmt.Sprintf("CRC %v", crc), func(t *testing.T) {
			const count, rounds = 400, 12
			once, small := pingPong(t, crc, 4096), reads(t, crc, 4096, 1, count)
			atLeast(t, 0.3, "ping-pongs to 4 KiB reads at depth 1", func() float64 {
				read, ping := compared(rounds, small, func() {
					for range count {
						once()
					}
				})
				t.Logf("%v a read, %v a ping-pong", read/count, ping/count)
				return float64(ping) / float64(read)
			})
			const large, many, depth = 128 << 10, 100, 16
			long, plain := reads(t, crc, large, depth, many), writes(t, crc, large, depth, many)
			atLeast(t, 0.2, "128 KiB reads to RDMA Writes at depth 16", func() float64 {
				read, write := compared(rounds, long, plain)
				t.Logf("reads %.0f MB/s, RDMA Writes %.0f MB/s", large*many/read.Seconds()/1e6, large*many/write.Seconds()/1e6)
				return float64(write) / float64(read)
			})
		})
	}
}
