package sdp

import (
	"context"
	"sync/atomic"
	"time"

	"viaduct/internal/attend"
	"viaduct/internal/budget"
	"viaduct/internal/sdpcore"
)

const (
	// A stream that flows is best taken in larger pieces. Its reader sleeps for a
	// moment where it would look again and again: nothing has to wake it, and each
	// look costs the sender too.
	napTime   = 40 * time.Microsecond
	napBytes  = 128 << 10 // a look that brought so many was not too soon
	streakLen = 1 << 20   // bytes that came in one direction alone
)

// A flow tells whether what comes is a stream of large messages that nothing is said
// in answer to.
type flow struct {
	large  bool // the last message was part of a stream
	streak int  // bytes of payload since a call last wrote something

	on    atomic.Bool  // it does
	until atomic.Int64 // when another look is not too soon: a time since the connection began
}

// message counts a message of n bytes.
func (f *flow) message(n int) {
	f.large = n >= bulkSize
	f.streak += n
}

// brought tells that n bytes have come, and whether more was there.
func (f *flow) brought(n int, more bool, now func() sdpcore.Time) {
	on := attend.CanNap && f.large && f.streak >= streakLen
	if on != f.on.Load() {
		f.on.Store(on)
	}
	if on && n < napBytes && !more {
		f.until.Store(int64(now() + napTime))
	} else if f.until.Load() != 0 {
		f.until.Store(0)
	}
}

// tooSoon reports whether another look would bring little.
func (f *flow) tooSoon(now sdpcore.Time) bool {
	until := f.until.Load()
	return until != 0 && int64(now) < until
}

// receive receives a stream that flows, for the read o and not beyond the end of ctx: a
// look now and then brings more at a time than to be woken for what comes.
func (c *Conn) receive(ctx context.Context, o *op) {
	if !c.flow.on.Load() {
		return
	}
	for soon, vain := c.flow.tooSoon(c.now()), 0; vain < 3 && c.flow.on.Load() && ctx.Err() == nil; soon = true {
		if soon {
			attend.Nap(napTime)
		}
		if !c.progress().Poll() {
			vain++
		}
		c.rd.mu.Lock()
		done := o.done
		c.rd.mu.Unlock()
		if done {
			return
		}
	}
}

// A held read has got something, and waits for the rest of a message that has
// begun to come into its buffer behind that: to move what is there would cost more.
// Where the rest did not come soon several times, later reads are wary of that.
type held struct {
	on    bool
	until sdpcore.Time
	wary  bool          // the read that waits is
	worth budget.Budget // whether the rest is waited for
}

// heldTime is how long the rest is waited for, since something came.
const heldTime = 200 * time.Microsecond

// seldomCame is how waiting for the rest of a message backs off.
var seldomCame = budget.Rule{Max: 1 << 10}

func (h *held) begin(now sdpcore.Time) {
	if h.on {
		h.worth.Hit(&seldomCame)
	}
	h.on, h.until = true, now+heldTime
}

// over reports whether the rest is not waited for any more.
func (h *held) over(now sdpcore.Time) bool {
	if now < h.until {
		return false
	}
	h.worth.Miss(&seldomCame)
	return true
}

// isWary tells whether a read that begins does not wait for the rest of a message.
func (h *held) isWary() bool { return !h.worth.Worth() }
