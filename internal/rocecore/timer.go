package rocecore

import (
	"time"

	"viaduct/internal/wire/ib"
)

// A timer is the clock of a requester: until packets go again for want of an acknowledgement, until
// a peer that had no receive is tried again, and until a probe.
type timer struct {
	timeout time.Duration // 0 for never
	running bool          // packets are outstanding
	at      Time          // when they go again

	probeAt  Time          // when the oldest packet goes once more
	probeGap time.Duration // doubles with each probe without progress
	probe    bool          // one is due

	waiting bool // for a peer without receives
	until   Time

	retries, rnrRetries int // left
	cfg                 SendConfig

	// Round trips: the packet that is measured, and the smoothed time.
	measuring  bool
	measured   ib.PSN
	measuredAt Time
	roundTrip  time.Duration
}

// The time until a probe: a multiple of the round trip, or this while none was measured.
const (
	firstProbe = 20 * time.Millisecond
	minProbe   = time.Millisecond
	probeTrips = 4
)

// restore gives all retries back. [ROCE-REQ-10]
func (t *timer) restore(cfg SendConfig) {
	t.cfg, t.timeout = cfg, cfg.Timeout
	t.retries, t.rnrRetries = cfg.Retries, cfg.RNRRetry
	t.probeGap = firstProbe
	if t.roundTrip > 0 {
		t.probeGap = max(minProbe, probeTrips*t.roundTrip)
	}
}

// run starts the clock if it does not run.
func (t *timer) run(now Time) {
	if !t.running {
		t.running = true
		t.at, t.probeAt = now+t.timeout, now+t.probeGap
	}
}

func (t *timer) stop() { t.running, t.probe = false, false }

// measure begins to measure the round trip of the packet psn, unless one is being measured.
func (t *timer) measure(now Time, psn ib.PSN) {
	if !t.measuring {
		t.measuring, t.measured, t.measuredAt = true, psn, now
	}
}

// arrived ends the measurement if oldest, the oldest packet that is not acknowledged, is behind.
func (t *timer) arrived(now Time, oldest ib.PSN) {
	if !t.measuring || !t.measured.Less(oldest) {
		return
	}
	t.measuring = false
	d := max(now-t.measuredAt, 1)
	if t.roundTrip == 0 {
		t.roundTrip = d
		return
	}
	t.roundTrip += (d - t.roundTrip) / 8
}

// probes reports whether a probe may come before the timeout.
func (t *timer) probes() bool {
	return t.running && (t.timeout == 0 || t.probeGap < t.timeout/2)
}

func (q *requester) deadline() (at Time, ok bool) {
	t := &q.timer
	if t.waiting {
		return t.until, true
	}
	if !t.running {
		return 0, false
	}
	at, ok = t.at, t.timeout > 0
	if t.probes() && (!ok || t.probeAt < at) {
		at, ok = t.probeAt, true
	}
	return at, ok
}

// Tick does what is due at now. Transmit sends what comes of it.
func (c *Connection) Tick(now Time) {
	q, t := &c.req, &c.req.timer
	if c.failed {
		return
	}
	if t.waiting {
		if now >= t.until {
			t.waiting = false
		}
		return
	}
	if !t.running {
		return
	}
	if t.timeout > 0 && now >= t.at { // [ROCE-REQ-9]
		c.count.Timeouts++
		c.retry(RetryExceeded)
		return
	}
	if t.probes() && now >= t.probeAt && q.oldest != q.next {
		t.probe, t.measuring = true, false
		t.probeGap *= 2
		t.probeAt = now + t.probeGap
	}
}

// retry sends everything again from the oldest packet that is not acknowledged, or fails with s if
// that has happened often enough. [ROCE-REQ-9] [ROCE-REQ-11]
func (c *Connection) retry(s Status) {
	q := &c.req
	if q.timer.retries == 0 {
		c.fail(s)
		return
	}
	q.timer.retries--
	q.window.lost(q.oldest, q.sent)
	q.goBack()
}
