package rocecore

import (
	"time"

	"viaduct/internal/wire/ib"
)

// A timer holds the deadlines of a requester: the retransmission timeout, the end of the wait for a
// peer that had no receive, and the next probe.
type timer struct {
	timeout time.Duration // time until packets are retransmitted; 0 means never
	running bool          // packets are unacknowledged
	at      Time          // time of the retransmission

	probeAt  Time          // time at which the oldest packet is sent again as a probe
	probeGap time.Duration // doubles after each probe without progress
	probe    bool          // a probe is due

	waiting bool // the requester waits for a peer that had no receive
	until   Time

	retries, rnrRetries int // retransmissions that remain
	cfg                 SendConfig

	// The round trip is measured with one packet at a time, and smoothed.
	measuring  bool
	measured   ib.PSN
	measuredAt Time
	roundTrip  time.Duration
}

// The time until a probe is probeTrips round trips, but at least minProbe. It is firstProbe before
// a round trip was measured.
const (
	firstProbe = 20 * time.Millisecond
	minProbe   = time.Millisecond
	probeTrips = 4
)

// restore resets the retries and the interval of probes. [ROCE-REQ-10]
func (t *timer) restore(cfg SendConfig) {
	t.cfg, t.timeout = cfg, cfg.Timeout
	t.retries, t.rnrRetries = cfg.Retries, cfg.RNRRetry
	t.probeGap = firstProbe
	if t.roundTrip > 0 {
		t.probeGap = max(minProbe, probeTrips*t.roundTrip)
	}
}

// run starts the timer unless it is running.
func (t *timer) run(now Time) {
	if !t.running {
		t.running = true
		t.at, t.probeAt = now+t.timeout, now+t.probeGap
	}
}

func (t *timer) stop() { t.running, t.probe = false, false }

// measure starts to measure the round trip of packet psn, unless another packet is being measured.
func (t *timer) measure(now Time, psn ib.PSN) {
	if !t.measuring {
		t.measuring, t.measured, t.measuredAt = true, psn, now
	}
}

// arrived ends the measurement if the measured packet is before oldest, the oldest unacknowledged
// packet.
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

// probes reports whether a probe can be due before the timeout.
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

// Tick handles the deadlines up to now. Call Transmit after Tick.
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

// retry retransmits from the oldest unacknowledged packet on. It fails the connection with s if no
// retries remain. [ROCE-REQ-9] [ROCE-REQ-11]
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
