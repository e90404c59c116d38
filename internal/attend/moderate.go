package attend

import (
	"sync/atomic"
	"time"

	"viaduct/internal/budget"
)

// Small frames that are sent one by one cost both ends more the sooner they
// are read: the receiver is woken for each, each read has the system send an
// acknowledgement, and two processors take the socket from each other. So a
// stream of them is left to accumulate for a moment at a time, as a network card
// does that moderates its interrupts. This applies only while no consumer polls
// or has just done so, and while nothing is sent, since the peer may be waiting
// for what is sent.
const (
	// pause is how long frames accumulate. Systems make it some 50 us longer.
	pause = 20 * time.Microsecond

	// streamGap is how far apart receives are at most that make a stream, and
	// streamRun how many of them are needed.
	streamGap = 40 * time.Microsecond
	streamRun = 4

	// small is how many bytes each of them brings at most.
	small = 16 << 10

	// maxPauses is how many attendants may pause at a time: each keeps a thread
	// meanwhile.
	maxPauses = 4
)

// pauses is how many attendants let frames accumulate.
var pauses atomic.Int32

// inVain is how moderators back off after pauses that brought little.
var inVain = budget.Rule{Max: 1 << 10}

// A moderator decides when arrivals accumulate. It belongs to an attendant.
type moderator struct {
	on    bool      // they do, and are not reported
	first time.Time // of the run's receives
	last  time.Time
	count int    // of the run's receives, without the first
	bytes int    // that they brought
	sent  uint32 // as of the last receive
	worth budget.Budget
}

// begins tells, after a receive that brought n bytes, whether what comes next is
// left to accumulate. sent moves whenever something is sent.
func (m *moderator) begins(n int, sent uint32) bool {
	if n > small || sent != m.sent { // reading the clock is not free
		m.sent, m.last = sent, time.Time{}
		return false
	}
	return m.beginsAt(time.Now(), n)
}

func (m *moderator) beginsAt(now time.Time, n int) bool {
	if now.Sub(m.last) > streamGap {
		m.restart(now)
		return false
	}
	m.last = now
	m.bytes += n
	if m.count++; m.count < streamRun {
		return false
	}
	if m.worth.Worth() {
		if pauses.Add(1) <= maxPauses {
			m.on = true
			return true
		}
		pauses.Add(-1)
	}
	m.restart(now)
	return false
}

func (m *moderator) restart(now time.Time) {
	m.first, m.last = now, now
	m.count, m.bytes = 0, 0
}

// goesOn tells, after a pause in which n bytes came, whether another follows: if
// they came at no less than half the rate of before. A peer that waits for
// something sends less.
func (m *moderator) goesOn(now time.Time, n int, sent uint32) bool {
	before, during := m.last.Sub(m.first), now.Sub(m.last)
	if sent == m.sent && 2*int64(n)*int64(before) >= int64(m.bytes)*int64(during) {
		m.first, m.last = m.first.Add(during), now
		m.worth.Hit(&inVain)
		return true
	}
	m.worth.Miss(&inVain)
	m.sent = sent
	m.restart(now)
	m.end()
	return false
}

// end has arrivals reported again.
func (m *moderator) end() {
	if m.on {
		m.on = false
		pauses.Add(-1)
	}
}

// forget ends the run of receives: a consumer polls.
func (m *moderator) forget() { m.last = time.Time{} }
