package sdp

import (
	"context"
	"slices"

	"viaduct/internal/attend"
	"viaduct/internal/perturb"
	"viaduct/iwarp"
)

// A half is a direction of a connection, for the calls waiting there.
type half struct {
	deadline

	mu    perturb.Mutex  // locked with Conn.mu held, or alone
	calls attend.Waiters // guarded by mu
}

// finish marks o as done and wakes the waiting call.
func (h *half) finish(o *op) {
	h.mu.Lock()
	o.done = true
	h.calls.WakeAllLocked()
	h.mu.Unlock()
}

// letGo lets the call of write o return, although o may not be done.
func (h *half) letGo(o *op) {
	h.mu.Lock()
	o.free = true
	h.calls.WakeAllLocked()
	h.mu.Unlock()
}

// ReadyLocked implements [attend.Condition] for the call of o.
func (o *op) ReadyLocked() (bool, error) { return o.done || o.free, nil }

// await waits until o is done, or the call of o may return. If bounded is true, a passed deadline
// cancels o. await is called and returns with mu held.
func (c *Conn) await(o *op, bounded bool) {
	h := &c.wd
	if o.read {
		h = &c.rd
		c.held.wary = c.held.isWary()
	} else if !o.free {
		// Credit most likely arrives soon; waiting costs less than copying the bytes.
		o.late = c.now() + patienceTime
	}
	ctx := context.Context(&h.deadline)
	if !bounded || o.cancel {
		ctx = context.Background()
	}
	for !o.done && !o.free {
		c.unlock()
		if o.read {
			c.receive(ctx, o)
		}
		err := c.until(ctx, h, o)
		c.mu.Lock()
		if err != nil && !o.done && !o.free {
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
	if !o.done && o.after > c.send.done {
		c.keepSends()
	}
}

// keepSends ends the writes waiting only for TCP. TCP may take a long time if the network is down.
// The unsent bytes of the writes are copied. [D-32]
func (c *Conn) keepSends() {
	c.qp.KeepSends()
	for i := range c.send.backlog { // the requests of the backlog refer to that memory too
		b := &c.send.backlog[i]
		if b.wr.Op == iwarp.OpRead {
			continue
		}
		for k := range b.sg {
			b.sg[k].Buf = slices.Clone(b.sg[k].Buf)
		}
	}
	c.send.lent = c.send.done
	for _, o := range c.wops {
		o.after = 0
	}
	for _, o := range c.ending {
		c.endOp(o)
	}
	clear(c.ending)
	c.ending = c.ending[:0]
}
