package frameio

import (
	"sync/atomic"
	"time"
)

// Small frames that are sent one by one cost both ends more the sooner they
// are read: the receiver is woken for each, each read has the system send an
// acknowledgement, and two processors take the socket from each other. So a
// stream of them is left to pile up for a moment at a time, as a network card
// does that moderates its interrupts. That is for frames nobody looks out for:
// not where a consumer polls or has just done so, and not where anything is
// sent meanwhile, since the peer may be waiting for that.
const (
	// lull is for how long. Systems make it some 50 us longer.
	lull = 20 * time.Microsecond

	// streamGap is how far apart receives are at most that make a stream, and
	// streamRun how many of them are needed.
	streamGap = 40 * time.Microsecond
	streamRun = 4

	// small is how many bytes each of them brings at most.
	small = 16 << 10

	// maxSkips is how many occasions are passed over at most after lulls that
	// brought little.
	maxSkips = 1 << 10

	// maxLulls is how many goroutines may be in a lull at a time: each keeps a
	// thread meanwhile.
	maxLulls = 4
)

// lulls is how many are.
var lulls atomic.Int32

// A pacer decides when arrivals pile up. It belongs to the passive goroutine.
type pacer struct {
	on    bool      // they do, and are not reported
	first time.Time // of the run's receives
	last  time.Time
	count int    // of the run's receives, without the first
	bytes int    // that they got
	sent  uint32 // as of the last receive
	skip  int    // occasions to be passed over
	skips int    // occasions to be passed over after the next lull in vain
}

// begins tells, after a receive that got n bytes, whether what comes next is
// left to pile up. sent moves whenever something leaves.
func (p *pacer) begins(n int, sent uint32) bool {
	if n > small || sent != p.sent { // the clock is not for free
		p.sent, p.last = sent, time.Time{}
		return false
	}
	return p.beginsAt(time.Now(), n)
}

func (p *pacer) beginsAt(now time.Time, n int) bool {
	if now.Sub(p.last) > streamGap {
		p.restart(now)
		return false
	}
	p.last = now
	p.bytes += n
	if p.count++; p.count < streamRun {
		return false
	}
	if p.skip > 0 {
		p.skip--
	} else if lulls.Add(1) <= maxLulls {
		p.on = true
		return true
	} else {
		lulls.Add(-1)
	}
	p.restart(now)
	return false
}

func (p *pacer) restart(now time.Time) {
	p.first, p.last = now, now
	p.count, p.bytes = 0, 0
}

// goesOn tells, after a lull in which n bytes came, whether another follows:
// if they came at no less than half the rate of before. A peer that waits for
// something sends less.
func (p *pacer) goesOn(now time.Time, n int, sent uint32) bool {
	before, during := p.last.Sub(p.first), now.Sub(p.last)
	if sent == p.sent && 2*int64(n)*int64(before) >= int64(p.bytes)*int64(during) {
		p.first, p.last = p.first.Add(during), now
		p.skips = 0
		return true
	}
	p.skips = min(2*p.skips+1, maxSkips)
	p.skip = p.skips
	p.sent = sent
	p.restart(now)
	p.end()
	return false
}

// end has arrivals reported again.
func (p *pacer) end() {
	if p.on {
		p.on = false
		lulls.Add(-1)
	}
}

// interrupted tells that somebody polls.
func (p *pacer) interrupted() {
	p.end()
	p.last = time.Time{}
}
