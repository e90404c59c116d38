package attend

import (
	"testing"
	"time"
)

// TestPacer: arrivals accumulate only if they are close together and short, if nothing is sent
// meanwhile, and if as many bytes arrive during pauses as before.
func TestPacer(t *testing.T) {
	const gap = streamGap / 4
	start := time.Now()
	run := func(p *moderator, now time.Time, n int) (time.Time, bool) {
		on := false
		for i := range streamRun + 1 {
			if on {
				t.Errorf("a pause after %d receives", i)
			}
			now = now.Add(gap)
			on = p.beginsAt(now, n)
		}
		return now, on
	}
	for name, receive := range map[string]func(p *moderator, i int) bool{
		"far apart": func(p *moderator, i int) bool {
			return p.beginsAt(start.Add(time.Duration(i)*(streamGap+1)), 100)
		},
		"long": func(p *moderator, i int) bool {
			return p.begins(small+1, 0)
		},
		"answered": func(p *moderator, i int) bool {
			return p.begins(100, uint32(i+1))
		},
		"polled": func(p *moderator, i int) bool {
			p.end()
			p.forget()
			return p.begins(100, 0)
		},
	} {
		var p moderator
		for i := range 10 * streamRun {
			if receive(&p, i) {
				t.Errorf("%s: a pause", name)
			}
		}
	}

	var p moderator
	now, on := run(&p, start, 100)
	if !on || process.pauses.Load() != 1 {
		t.Fatalf("no pause (%d)", process.pauses.Load())
	}
	for range 3 { // the rate is a little less than before the pause
		now = now.Add(8 * gap)
		if !p.goesOn(now, 500, 0) {
			t.Error("the pause ends in the midst of the stream")
		}
	}
	// After a useless pause one occasion is skipped, then three, and so on.
	for want := 1; want < 10; want = 2*want + 1 {
		if now = now.Add(8 * gap); p.goesOn(now, 390, 0) || p.on || process.pauses.Load() != 0 {
			t.Error("the pause goes on although less came")
		}
		for i := 0; ; i++ {
			if now, on = run(&p, now.Add(streamGap), 100); on {
				if i != want {
					t.Errorf("%d occasions passed over, want %d", i, want)
				}
				break
			}
		}
	}
	if now = now.Add(8 * gap); !p.goesOn(now, 800, 0) || p.goesOn(now.Add(8*gap), 800, 1) {
		t.Error("an answer does not end the pause")
	}
	// The useful pause has halved the number of skipped occasions, and the useless pause has doubled
	// it.
	for passed := 0; ; passed++ {
		if now, on = run(&p, now.Add(streamGap), 100); on {
			if passed != 7 {
				t.Errorf("%d occasions passed over, want 7", passed)
			}
			break
		}
	}
	p.end()

	var ps [maxPauses + 1]moderator
	for i := range ps {
		if _, on := run(&ps[i], start, 100); on != (i < maxPauses) {
			t.Errorf("pause %d: %t", i, on)
		}
	}
	for i := range ps {
		ps[i].end()
		ps[i].end()
	}
	if n := process.pauses.Load(); n != 0 {
		t.Errorf("%d pauses after the end of all", n)
	}
}
