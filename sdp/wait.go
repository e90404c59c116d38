package sdp

import (
	"context"

	"viaduct/internal/attend"
	"viaduct/internal/perturb"
)

// A half is a direction of a connection, for the calls waiting there.
type half struct {
	deadline

	mu    perturb.Mutex  // locked with Conn.mu held, or alone
	calls attend.Waiters // guarded by mu
}

// wake gives o the state s, and wakes the waiting calls.
func (h *half) wake(o *op, s opState) {
	h.mu.Lock()
	o.state = s
	h.calls.WakeAllLocked()
	h.mu.Unlock()
}

// await waits until the call of o may return. If bounded is true, a passed deadline
// cancels o. await is called and returns with mu held.
func (c *Conn) await(o *op, bounded bool) {
	h := c.calls.half(o)
	if o.read {
		c.held.wary = c.held.isWary()
	} else if o.state == opWaits {
		// Credit most likely arrives soon; waiting costs less than copying the bytes.
		o.late = c.now() + patienceTime
	}
	ctx := context.Context(&h.deadline)
	if !bounded || o.cancel {
		ctx = context.Background()
	}
	for o.state == opWaits {
		c.unlock()
		if o.read {
			c.receive(ctx, o)
		}
		err := c.until(ctx, h, o)
		c.mu.Lock()
		if err != nil && o.state == opWaits {
			c.cancel(o)
			ctx = context.Background()
		}
	}
}

// until waits for o, without mu. It returns nil if o is ready, or the error of ctx.
func (c *Conn) until(ctx context.Context, h *half, o *op) error {
	h.mu.Lock()
	err := attend.Until(ctx, &h.mu, &h.calls, o, (*waiting)(c))
	if err == nil {
		h.mu.Unlock()
	}
	return err
}

// waiting adapts a Conn to attend.SourceSleeper for a blocked call.
type waiting Conn

var _ attend.SourceSleeper = (*waiting)(nil)

// Poll implements [attend.Progress]. The handler of the completion queue handles the arrivals.
func (w *waiting) Poll() bool { return (*Conn)(w).progress().Poll() }

// Unpoll implements [attend.Progress].
func (w *waiting) Unpoll() { (*Conn)(w).progress().Unpoll() }

// Expects implements [attend.SourceSleeper].
func (w *waiting) Expects() bool { return (*Conn)(w).progress().Expects() }

// Near implements [attend.SourceSleeper].
func (w *waiting) Near() bool { return (*Conn)(w).progress().Near() }

// SleepAt implements [attend.SourceSleeper].
func (w *waiting) SleepAt(s *attend.Sleeper) bool { return (*Conn)(w).progress().SleepAt(s) }

// cancel asks the machine to end o early. A write waiting only for TCP ends at once.
func (c *Conn) cancel(o *op) {
	o.cancel = true
	switch {
	case o.read:
		c.exec(c.m.CancelRead(c.now(), o.id, c.room()))
		return
	case !o.own:
		c.exec(c.m.CancelWrite(c.now(), o.id, c.room()))
	}
	if o.state != opDone && o.after > c.send.done {
		c.keepSends()
	}
}

// keepSends ends the writes waiting only for TCP. TCP may take a long time if the network is down.
// The unsent bytes of the writes are copied. [D-32]
func (c *Conn) keepSends() {
	c.send.keep()
	c.calls.free()
}
