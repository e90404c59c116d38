package rxe

import "time"

// rnrTimes holds the meanings of the values of a responder's timer field, in microseconds.
var rnrTimes = [32]time.Duration{655360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640,
	960, 1280, 1920, 2560, 3840, 5120,
	7680, 10240, 15360, 20480, 30720, 40960, 61440, 81920, 122880, 163840, 245760, 327680, 491520}

func rnrTime(timer uint8) time.Duration { return rnrTimes[timer&31] * time.Microsecond }

// rnrLimit returns how long a requester waits for a responder without a receive: count times the
// responder's timer. forever is true for a count without a limit.
func rnrLimit(count, timer uint8) (limit time.Duration, forever bool) {
	return time.Duration(count) * rnrTime(timer), count == retryAlways
}

// ackLimit returns how long a requester waits for a silent queue pair before giving up: a timeout,
// and another for each retry. forever is true for a timeout of 0: no limit.
func ackLimit(timeout, retries uint8) (limit time.Duration, forever bool) {
	return (4096 * time.Nanosecond << timeout) * (time.Duration(retries) + 1), timeout == 0
}

// A wait describes why the entry at the head of a send queue waits, and since when.
type wait struct {
	why   outcome
	since time.Time // zero if the entry does not wait
	timer uint8     // timer field of the responder
}

// over reports whether the wait has exceeded the limit of the requester's attributes.
func (w *wait) over(now time.Time, a *Attributes) bool {
	limit, forever := w.limit(a)
	return !forever && now.Sub(w.since) >= limit
}

func (w *wait) limit(a *Attributes) (time.Duration, bool) {
	switch w.why {
	case notReady:
		return rnrLimit(a.RNRRetry, w.timer)
	case noRoom:
		return 0, true
	}
	return ackLimit(a.Timeout, a.Retry)
}

// Intervals between attempts of the head. They are needed because a posted receive, or room in a
// socket, causes no notification.
const (
	lookSoon  = 50 * time.Microsecond
	lookLater = time.Millisecond
	lookRare  = 5 * time.Millisecond
)

// next returns the time until the head is tried again.
func (w *wait) next(now time.Time, a *Attributes) time.Duration {
	waited := now.Sub(w.since)
	limit, forever := w.limit(a)
	rest := limit - waited
	if w.why == noAnswer { // the state change of the other queue pair ends this wait
		if forever {
			return time.Hour
		}
		return max(rest, 0)
	}
	look := lookSoon
	switch {
	case waited > time.Second:
		look = lookRare
	case waited > 2*time.Millisecond:
		look = lookLater
	}
	if !forever {
		look = min(look, max(rest, 0))
	}
	return look
}
