package link

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

func newShaper(f Fault) *shaper { return &shaper{f: f, r: rand.New(rand.NewPCG(1, 2))} }

var start = time.Unix(1000, 0)

// run sends n packets of 1000 bytes, a millisecond apart.
func run(f Fault, n int) (s *shaper, all [][]arrival) {
	s = newShaper(f)
	for i := range n {
		all = append(all, s.packet(start.Add(time.Duration(i)*time.Millisecond), uint32(i%2), 1000))
	}
	return s, all
}

func TestPerfect(t *testing.T) {
	_, all := run(Fault{}, 100)
	for i, a := range all {
		if len(a) != 1 || a[0].flip != -1 || !a[0].at.Equal(start.Add(time.Duration(i)*time.Millisecond)) {
			t.Fatalf("packet %d: %+v", i, a)
		}
	}
}

func TestProbabilities(t *testing.T) {
	const n = 100_000
	for _, c := range []struct {
		name  string
		f     Fault
		count func(*shaper) uint64
		want  float64
	}{
		{"loss", Fault{Loss: 0.05}, func(s *shaper) uint64 { return s.counters.Lost }, 0.05},
		{"a thousandth", Fault{Loss: 0.001}, func(s *shaper) uint64 { return s.counters.Lost }, 0.001},
		{"every", Fault{LossEvery: 1000}, func(s *shaper) uint64 { return s.counters.Lost }, 0.001},
		{"duplicate", Fault{Duplicate: 0.1}, func(s *shaper) uint64 { return s.counters.Doubled }, 0.1},
		{"corrupt", Fault{Corrupt: 0.01}, func(s *shaper) uint64 { return s.counters.Corrupted }, 0.01},
		{"reorder", Fault{Reorder: 0.25, Delay: time.Second}, func(s *shaper) uint64 { return s.counters.Overtaken }, 0.25},
		{"blackhole", Fault{Blackhole: true}, func(s *shaper) uint64 { return s.counters.Lost }, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, all := run(c.f, n)
			got := float64(c.count(s)) / n
			if deviation := 5 * math.Sqrt(c.want*(1-c.want)/n); math.Abs(got-c.want) > deviation+1e-9 {
				t.Errorf("%g in place of %g", got, c.want)
			}
			arrived, flips := 0, 0
			for _, as := range all {
				arrived += len(as)
				for _, a := range as {
					if a.flip >= 0 {
						flips++
						if a.flip < headerEnd*8 || a.flip >= 8000 {
							t.Fatalf("bit %d", a.flip)
						}
					}
				}
			}
			if want := n - int(s.counters.Lost) + int(s.counters.Doubled); arrived != want || flips != int(s.counters.Corrupted) {
				t.Errorf("%d arrived and %d corrupt: %+v", arrived, flips, s.counters)
			}
		})
	}
}

// TestOrder: jitter keeps the order; only Reorder lets packets overtake.
func TestOrder(t *testing.T) {
	_, all := run(Fault{Delay: 20 * time.Millisecond, Jitter: 5 * time.Millisecond}, 10_000)
	var last time.Time
	early, late := time.Hour, time.Duration(0)
	for i, a := range all {
		if a[0].at.Before(last) {
			t.Fatalf("packet %d overtakes", i)
		}
		last = a[0].at
		d := a[0].at.Sub(start.Add(time.Duration(i) * time.Millisecond))
		early, late = min(early, d), max(late, d)
	}
	if early < 15*time.Millisecond || early > 17*time.Millisecond || late < 24*time.Millisecond || late > 25*time.Millisecond {
		t.Errorf("delays from %v to %v", early, late)
	}
	s, all := run(Fault{Delay: 20 * time.Millisecond, Reorder: 0.1}, 1000)
	overtakes := uint64(0)
	for i, a := range all {
		if a[0].at.Equal(start.Add(time.Duration(i) * time.Millisecond)) {
			overtakes++
		}
	}
	if overtakes == 0 || overtakes != s.counters.Overtaken {
		t.Errorf("%d overtake, and %d are counted", overtakes, s.counters.Overtaken)
	}
}

// TestLossEvery: each flow loses the same share of packets.
func TestLossEvery(t *testing.T) {
	s := newShaper(Fault{LossEvery: 3})
	got := ""
	for i := range 12 {
		if s.packet(start, uint32(i%2), 1000) == nil {
			got += string(rune('a' + i))
		}
		if s.packet(start, 0, bulk-1) == nil {
			t.Error("a short packet was lost")
		}
	}
	if got != "efkl" {
		t.Errorf("lost: %s", got)
	}
}

// TestRate: 1000 bytes at 10 Mbit/s take 0.8 ms each, and a full queue loses packets.
func TestRate(t *testing.T) {
	s := newShaper(Fault{Rate: 10_000_000, Queue: 10_000})
	var got []arrival
	for range 100 {
		got = append(got, s.packet(start, 0, 1000)...)
	}
	if len(got) != 10 || s.counters.Overflowed != 90 {
		t.Fatalf("%d arrive, %+v", len(got), s.counters)
	}
	for i, a := range got {
		if want := start.Add(time.Duration(i+1) * 800 * time.Microsecond); !a.at.Equal(want) {
			t.Errorf("packet %d at %v, not %v", i, a.at, want)
		}
	}
	if a := s.packet(start.Add(time.Second), 0, 1000); len(a) != 1 || a[0].at.Sub(start) != time.Second+800*time.Microsecond {
		t.Errorf("after a pause: %+v", a)
	}
}
