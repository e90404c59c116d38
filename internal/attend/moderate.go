package attend

import (
	"time"

	"viaduct/internal/budget"
)

// Small frames sent one by one cost both ends more, the sooner each is read: the receiver is woken
// for each frame, each read makes the system send an acknowledgement, and two processors compete
// for the socket. So the frames of a stream may accumulate for a moment at a time, like the packets
// of a network card with interrupt moderation. Frames accumulate only while no consumer polls or
// has just polled, and while this end sends nothing, because a peer that gets answers may be
// waiting for the next answer.
const (
	// pause is how long frames accumulate. Systems make the pause some 50 us longer.
	pause = 20 * time.Microsecond

	// streamGap is the largest time between receives of a stream, and streamRun the number of
	// receives a stream needs.
	streamGap = 40 * time.Microsecond
	streamRun = 4

	// small is the largest number of bytes of a receive of a stream.
	small = 16 << 10

	// maxPauses is the largest number of attendants pausing at a time, because each occupies a
	// thread meanwhile.
	maxPauses = 4
)

// A moderator decides when the arrivals of an attendant accumulate.
type moderator struct {
	on    bool      // whether arrivals accumulate, without being reported
	first time.Time // time of the first receive of the run
	last  time.Time
	count int    // number of the run's receives, except the first
	bytes int    // bytes of these receives
	sent  uint32 // value of sent at the last receive
	worth budget.Budget
}

// begins reports, after a receive of n bytes, whether the next arrivals should accumulate. sent is
// a number that changes with every write.
func (m *moderator) begins(n int, sent uint32) bool {
	if n > small || sent != m.sent { // reading the clock costs time
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
		if process.pauses.Add(1) <= maxPauses {
			m.on = true
			return true
		}
		process.pauses.Add(-1)
	}
	m.restart(now)
	return false
}

func (m *moderator) restart(now time.Time) {
	m.first, m.last = now, now
	m.count, m.bytes = 0, 0
}

// goesOn reports, after a pause that brought n bytes, whether another pause follows. Another pause
// follows if the bytes arrived at no less than half the rate before the pause. If the peer waits
// for an answer, the rate is less.
func (m *moderator) goesOn(now time.Time, n int, sent uint32) bool {
	before, during := m.last.Sub(m.first), now.Sub(m.last)
	if sent == m.sent && 2*int64(n)*int64(before) >= int64(m.bytes)*int64(during) {
		m.first, m.last = m.first.Add(during), now
		m.worth.Hit(&budget.Pause)
		return true
	}
	m.worth.Miss(&budget.Pause)
	m.sent = sent
	m.restart(now)
	m.end()
	return false
}

// end ends a pause, so that arrivals are reported again.
func (m *moderator) end() {
	if m.on {
		m.on = false
		process.pauses.Add(-1)
	}
}

// forget ends the run of receives, because a consumer polls.
func (m *moderator) forget() { m.last = time.Time{} }
