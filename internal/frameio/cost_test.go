package frameio

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"viaduct/internal/testkit"
)

// TestNoAllocations: a message each way, sent by Kick and received by Poll, allocates nothing.
func TestNoAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("under the race detector pools forget at random")
	}
	a, b := kinds[0].connect(t)
	var got atomic.Int64
	count := func([]byte) { got.Add(1) }
	a.got, b.got = count, count
	a.c.Start(nil)
	b.c.Start(nil)
	if a.c.sock.Load() == nil { // set by Start
		if runtime.GOOS == "linux" {
			t.Fatal("no fast path")
		}
		t.Skip("no fast path on this system")
	}
	for _, n := range []int{16, 900, 5000, 60000} {
		frame := make([]byte, n)
		send := func(p, q *lengthFramed) {
			want := got.Load() + 1
			p.post(frame)
			p.c.Kick()
			for got.Load() < want {
				q.c.Poll()
			}
		}
		round := func() { send(a, b); send(b, a) }
		for range 50 {
			round() // fills the pools and the scratch space
		}
		if allocs := testing.AllocsPerRun(300, round); allocs >= 1 {
			t.Errorf("frames of %d bytes: %v allocations per round trip", n, allocs)
		}
	}
}

// TestIdleMemory: an idle connection has neither a staging buffer nor a batch. The test measures
// 500 connections with both ends in the process.
func TestIdleMemory(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector's own memory would be measured")
	}
	const conns = 500
	measure := func() uint64 {
		for range 3 {
			runtime.GC() // the second call empties the pools
		}
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc + m.StackInuse
	}
	type end struct {
		p *lengthFramed
	}
	var ends []end
	before := measure()
	for range conns {
		x, y := testkit.TCPPair(t)
		p, q := newFramed(x, Options{}), newFramed(y, Options{})
		done := q.expect(t, [][]byte{{1, 2, 3}, make([]byte, 3000)})
		p.c.Start(nil)
		q.c.Start(nil)
		p.post([]byte{1, 2, 3})
		p.c.Kick()
		p.post(make([]byte, 3000))
		p.c.Kick()
		testkit.Await(t, "traffic", done)
		q.place, p.place, p.queue = nil, nil, nil
		ends = append(ends, end{p}, end{q})
	}
	time.Sleep(5 * time.Millisecond) // no goroutine reads any more
	after := measure()
	per := (float64(after) - float64(before)) / (2 * conns)
	t.Logf("%.0f bytes per idle connection, net.Conn included", per)
	if per > 6<<10 {
		t.Errorf("%.0f bytes per idle connection, want at most 6 KiB", per)
	}
	for _, e := range ends {
		e.p.close(t)
	}
}
