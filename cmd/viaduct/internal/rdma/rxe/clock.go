package rxe

import "time"

// rnrTimes are the waits that a responder's timer field stands for, in microseconds.
var rnrTimes = [32]time.Duration{655360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1280, 1920, 2560, 3840, 5120,
	7680, 10240, 15360, 20480, 30720, 40960, 61440, 81920, 122880, 163840, 245760, 327680, 491520}

func rnrTime(timer uint8) time.Duration { return rnrTimes[timer&31] * time.Microsecond }

// rnrLimit is how long a requester waits for a receive: count waits of the responder's time. forever is true if it
// never gives up.
func rnrLimit(count, timer uint8) (limit time.Duration, forever bool) {
	return time.Duration(count) * rnrTime(timer), count == retryAlways
}

// ackLimit is how long a requester waits for a queue pair that does not answer: as long as an ACK
// may take, once and for each retry.
func ackLimit(timeout, retries uint8) (limit time.Duration, forever bool) {
	return (4096 * time.Nanosecond << timeout) * (time.Duration(retries) + 1), timeout == 0
}

// A wait is that of the entry at the head of a send queue.
type wait struct {
	why   outcome
	since time.Time // zero if there is none
	timer uint8     // of the responder
}

// over reports whether the wait has been too long, with what the requester allows.
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

// How soon it is looked again for a receive, or for room in a socket: neither rings.
const (
	lookSoon  = 50 * time.Microsecond
	lookLater = time.Millisecond
	lookRare  = 5 * time.Millisecond
)

// next is how long it is until the head is tried again.
func (w *wait) next(now time.Time, a *Attributes) time.Duration {
	waited := now.Sub(w.since)
	limit, forever := w.limit(a)
	rest := limit - waited
	if w.why == noAnswer { // the other queue pair's change of state ends it
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
