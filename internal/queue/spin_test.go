package queue

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"viaduct/internal/attend"
	"viaduct/internal/budget"
)

// A slowProgress makes progress in every other poll. Each poll takes 0.6 of the time after which a
// consumer without progress stops polling.
type slowProgress struct {
	polls, unpolls int
	polled         func(n int)
	slept          func()
}

func (p *slowProgress) Poll() bool {
	time.Sleep(budget.Wait.Time * 6 / 10)
	p.polls++
	p.polled(p.polls)
	return p.polls%2 == 0
}

func (p *slowProgress) Unpoll() {
	p.unpolls++
	p.slept()
}

// on makes the test run as if there were n processors.
func on(t *testing.T, n int) { t.Cleanup(attend.AssumeProcessors(n)) }

// TestSpinAfterProgress checks that a waiting consumer continues to poll while there is progress,
// however long, and sleeps soon after the progress stops.
func TestSpinAfterProgress(t *testing.T) {
	on(t, 2)
	synctest.Test(t, func(t *testing.T) {
		var c Completions[int]
		p := &slowProgress{slept: func() { t.Error("a consumer sleeps while something comes") }}
		p.polled = func(n int) {
			if n == 20 {
				c.Push(7)
			}
		}
		if v, err := c.Wait(context.Background(), p); v != 7 || err != nil || p.polls != 20 {
			t.Errorf("waited for %d, %v in %d polls", v, err, p.polls)
		}
		dry := &slowProgress{polls: 1, polled: func(int) {}} // only the first poll makes progress
		dry.slept = func() {
			if dry.polls != 4 { // two more polls without progress exceed the limit
				t.Errorf("sleeps after poll %d", dry.polls)
			}
			c.Push(8)
		}
		odd := &vain{slowProgress: dry}
		if v, err := c.Wait(context.Background(), odd); v != 8 || err != nil || dry.unpolls != 1 {
			t.Errorf("waited for %d, %v, slept %d times", v, err, dry.unpolls)
		}
	})
}

// A near is a progress whose peer may be on this host: field is has the answer. Polls of a near
// make no progress.
type near struct {
	*slowProgress
	is bool
}

func (p *near) Poll() bool                   { p.slowProgress.Poll(); return false }
func (p *near) Near() bool                   { return p.is }
func (p *near) Expects() bool                { return false }
func (p *near) SleepAt(*attend.Sleeper) bool { return false }

// TestSpinNear checks how long a consumer polls. Polling must last longer for an answer from this
// host than for an answer from another host, unless other goroutines wait as well. If many wait, no
// consumer polls.
func TestSpinNear(t *testing.T) {
	on(t, 2)
	synctest.Test(t, func(t *testing.T) {
		for range 4 { // the checks below need recent waits
			polled(t, new(Completions[int]), false)
		}
		for _, test := range []struct {
			near   bool
			others int
			polls  time.Duration
		}{
			{true, 0, budget.WaitNear.Time},
			{true, 1, budget.Wait.Time},
			{true, 2, budget.Wait.Time},
			{true, 3, 0},
			{false, 0, budget.Wait.Time},
			{false, 3, 0},
		} {
			for range test.others {
				attend.Park()
			}
			if got := polled(t, new(Completions[int]), test.near); got < test.polls ||
				got > test.polls+budget.Wait.Time || test.polls == 0 && got > 0 {
				t.Errorf("near %v, others %d: polled for %v instead of %v", test.near, test.others, got, test.polls)
			}
			for range test.others {
				attend.Unpark()
			}
		}
		// Waiters without progress do not count.
		for range 3 {
			attend.Park()
			defer attend.Unpark()
		}
		var c Completions[int]
		for range 16 {
			polled(t, &c, true)
		}
		for range 512 { // few waiters poll, because no poll makes progress
			if polled(t, &c, true) >= budget.WaitNear.Time {
				return
			}
		}
		t.Error("an answer is not polled for since idle goroutines wait")
	})
	synctest.Test(t, func(t *testing.T) {
		// Of two concurrent pollers, one polls for long.
		var long atomic.Int32
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				if polled(t, new(Completions[int]), true) >= budget.WaitNear.Time {
					long.Add(1)
				}
			})
		}
		wg.Wait()
		if n := long.Load(); n != 1 {
			t.Errorf("%d of 2 consumers poll for long", n)
		}
	})
}

// A crowd is a progress whose consumer may sleep at the sources.
type crowd struct {
	near
	asked int // how often Until has called Expects
}

func (p *crowd) Expects() bool { p.asked++; return false }

// TestSleepAtSourcesCrowded checks that a consumer does not sleep at the sources if there are more
// waiters than processors, because the sleeping thread would hold a processor.
func TestSleepAtSourcesCrowded(t *testing.T) {
	for _, test := range []struct{ processors, others, asked int }{
		{1, 0, 1}, {1, 1, 1}, {1, 2, 0}, {2, 2, 1}, {2, 3, 0}, {4, 4, 1}, {4, 5, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			on(t, test.processors)
			for range 6 { // the checks below need recent waits
				polled(t, new(Completions[int]), false)
			}
			for range test.others {
				attend.Park()
				defer attend.Unpark()
			}
			var c Completions[int]
			p := &crowd{near: near{&slowProgress{polled: func(int) {}}, false}}
			p.slept = func() { c.Push(1) }
			if _, err := c.Wait(t.Context(), p); err != nil || p.asked != test.asked {
				t.Errorf("%d processors, %d other waits: asked %d times, want %d; %v",
					test.processors, test.others, p.asked, test.asked, err)
			}
		})
	}
}

// polled returns how long a consumer of c polls without progress before sleeping.
func polled(t *testing.T, c *Completions[int], isNear bool) (d time.Duration) {
	start := time.Now()
	p := &near{&slowProgress{polled: func(int) {}}, isNear}
	p.slept = func() { d = time.Since(start); c.Push(1) }
	if _, err := c.Wait(t.Context(), p); err != nil {
		t.Error(err)
	}
	return d
}

// A vain makes progress only in its second poll.
type vain struct{ *slowProgress }

func (p *vain) Poll() bool { return p.slowProgress.Poll() && p.polls == 2 }
