package sdp

import (
	"time"

	"viaduct/internal/attend"
	"viaduct/internal/budget"
)

const (
	// A stream that flows is best taken in larger pieces. Its reader sleeps for a
	// moment where it would look again and again: nothing has to wake it, and each
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
	worth budget.Budget // whether the rest is waited for
}

// heldTime is how long the rest is waited for, since something came.
const heldTime = 200 * time.Microsecond

// seldomCame is how waiting for the rest of a message backs off.
var seldomCame = budget.Rule{Max: 1 << 10}

func (h *held) begin(now time.Time) {
	if h.on {
		h.worth.Hit(&seldomCame)
	}
	h.on, h.since = true, now
}

// over reports whether the rest is not waited for any more.
func (h *held) over(now time.Time) bool {
	if now.Sub(h.since) < heldTime {
		return false
	}
	h.worth.Miss(&seldomCame)
	return true
}

// wary tells whether a read that begins does not wait for the rest of a message.
func (h *held) wary() bool { return !h.worth.Worth() }

// flowing reports whether what comes is a stream of large messages that nothing
// is said in answer to.
func (d *driver) flowing() bool { return attend.CanNap && d.large && d.streak >= streakLen }

// tooSoon reports whether another look at a stream that flows would bring little.
func (d *driver) tooSoon() bool {
	return d.got < napBytes && d.flowing() && time.Since(d.gotAt) < napTime
}
