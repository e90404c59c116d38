package iwarp

import (
	"runtime"
	"testing"
)

// TestIdleMemory measures the heap and the goroutine stacks of idle streams, with both ends in this
// process. The limit is generous; the log has the figure.
func TestIdleMemory(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector has memory of its own")
	}
	const streams = 100
	used := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc + m.StackInuse)
	}
	cfg := func() *Config { return &Config{Device: nil, Interop: Interop{NoNudge: true}} }
	before := used()
	var qs []*QueuePair
	for range streams {
		a, b := connect(t, cfg(), cfg())
		qs = append(qs, a, b)
	}
	per := (used() - before) / (2 * streams)
	t.Logf("%d bytes per idle stream", per)
	if per > 24<<10 {
		t.Errorf("%d bytes per idle stream", per)
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	t.Log(m.HeapAlloc, m.StackInuse)
	runtime.KeepAlive(qs)
}
