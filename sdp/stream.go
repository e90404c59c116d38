package sdp

import (
	"time"

	"viaduct/internal/frameio"
)

const (
	// A stream that flows is best taken in larger pieces. Its reader sleeps for a
	// moment where it would look again and again: nobody has to wake it, and each
	// look costs the sender too.
	napTime   = 40 * time.Microsecond
	napBytes  = 128 << 10 // a look that brought so many was not too soon
	streakLen = 1 << 20   // bytes that came in one direction alone
)

// A held read has got something, and waits for the rest of a message that has
// begun to come into its buffer behind that: to move what is there would cost more.
// Where the rest did not come soon several times, later reads are wary of that.
type held struct {
	on    bool
	since time.Time
	skip  int // reads that are wary
	skips int // reads that will be after the next time
}

const (
	heldTime    = 200 * time.Microsecond // since something came
	maxHeldSkip = 1 << 10
)

func (h *held) begin(now time.Time) {
	if h.on {
		h.skips = 0
	}
	h.on, h.since = true, now
}

// over reports whether the rest is not waited for any more.
func (h *held) over(now time.Time) bool {
	if now.Sub(h.since) < heldTime {
		return false
	}
	h.skips = min(2*h.skips+1, maxHeldSkip)
	h.skip = h.skips
	return true
}

// wary tells whether a read that begins does not wait for the rest of a message.
func (h *held) wary() bool {
	if h.skip > 0 {
		h.skip--
		return true
	}
	return false
}

// flowing reports whether what comes is a stream of large messages that nothing
// is said in answer to.
func (d *driver) flowing() bool { return frameio.CanNap && d.large && d.streak >= streakLen }

// tooSoon reports whether another look at a stream that flows would bring little.
func (d *driver) tooSoon() bool {
	return d.got < napBytes && d.flowing() && time.Since(d.gotAt) < napTime
}
