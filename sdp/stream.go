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
	// A steady stream is best received in large pieces. So the reader naps instead of polling again
	// and again: no wake-up is needed, and each poll delays the sender too.
	napTime   = 40 * time.Microsecond
	napBytes  = 128 << 10 // bytes after which the next poll need not wait
	streakLen = 1 << 20   // bytes in one direction without an answer that make a steady stream
)

// A flow detects a steady stream: large messages in one direction, without messages in the other.
type flow struct {
	large  bool // the last message was at least bulkSize long
	streak int  // bytes of payload received since a call last wrote

	on    atomic.Bool  // whether a steady stream arrives
	until atomic.Int64 // time since Conn.born before which a poll would return little; 0 for none
}

// message counts a received message of n bytes.
func (f *flow) message(n int) {
	f.large = n >= bulkSize
	f.streak += n
}

// brought records the n bytes of payload from a poll, and whether more have arrived.
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

// tooSoon reports whether another poll would return little.
func (f *flow) tooSoon(now sdpcore.Time) bool {
	until := f.until.Load()
	return until != 0 && int64(now) < until
}

// receive polls for read o while a steady stream arrives, until o is done, ctx ends, or three polls
// have found nothing. A poll every 40 us returns more bytes per call than waking for each arrival.
func (d *driver) receive(ctx context.Context, o *op) {
	if !d.flow.on.Load() {
		return
	}
	for soon, vain := d.flow.tooSoon(d.now()), 0; vain < 3 && d.flow.on.Load() && ctx.Err() == nil; soon = true {
		if soon {
			attend.Nap(napTime)
		}
		if !d.progress().Poll() {
			vain++
		}
		d.calls.rd.mu.Lock()
		done := o.state != opWaits
		d.calls.rd.mu.Unlock()
		if done {
			return
		}
	}
}

// A held read has received bytes, and waits for the rest of a message whose beginning has arrived
// in the read's buffer, because moving the beginning would cost more. If the rest was late several
// times, later reads are wary, and do not wait.
type held struct {
	on    bool
	until sdpcore.Time
	wary  bool          // the waiting read is wary
	worth budget.Budget // whether to wait for the rest
}

// heldTime is the time a read waits for the rest of a message, counted from the last arrival.
const heldTime = 200 * time.Microsecond

func (h *held) begin(now sdpcore.Time) {
	if h.on {
		h.worth.Hit(&budget.Rest)
	}
	h.on, h.until = true, now+heldTime
}

// over reports whether the time for the rest has passed.
func (h *held) over(now sdpcore.Time) bool {
	if now < h.until {
		return false
	}
	h.worth.Miss(&budget.Rest)
	return true
}

// isWary reports whether a new read does not wait for the rest of a message.
func (h *held) isWary() bool { return !h.worth.Worth() }
