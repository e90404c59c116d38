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
func (d *driver) await(o *op, bounded bool) {
	h := d.calls.half(o)
	if o.read {
		d.held.wary = d.held.isWary()
	} else if o.state == opWaits {
		// Credit most likely arrives soon; waiting costs less than copying the bytes.
		o.late = d.now() + patienceTime
	}
	ctx := context.Context(&h.deadline)
	if !bounded || o.cancel {
		ctx = context.Background()
	}
	for o.state == opWaits {
		d.unlock()
		if o.read {
			d.receive(ctx, o)
		}
		err := d.until(ctx, h, o)
		d.mu.Lock()
		if err != nil && o.state == opWaits {
			d.cancel(o)
			ctx = context.Background()
		}
	}
}

// until waits for o, without mu. It returns nil if o is ready, or the error of ctx.
func (d *driver) until(ctx context.Context, h *half, o *op) error {
	h.mu.Lock()
	err := attend.Until(ctx, &h.mu, &h.calls, o, (*waiting)(d))
	if err == nil {
		h.mu.Unlock()
	}
	return err
}

// waiting adapts a driver to attend.SourceSleeper for a blocked call.
type waiting driver

var _ attend.SourceSleeper = (*waiting)(nil)

// Poll implements [attend.Progress]. The handler of the completion queue handles the arrivals.
func (w *waiting) Poll() bool { return (*driver)(w).progress().Poll() }

// Unpoll implements [attend.Progress].
func (w *waiting) Unpoll() { (*driver)(w).progress().Unpoll() }

// Expects implements [attend.SourceSleeper].
func (w *waiting) Expects() bool { return (*driver)(w).progress().Expects() }

// Near implements [attend.SourceSleeper].
func (w *waiting) Near() bool { return (*driver)(w).progress().Near() }

// SleepAt implements [attend.SourceSleeper].
func (w *waiting) SleepAt(s *attend.Sleeper) bool { return (*driver)(w).progress().SleepAt(s) }

// cancel asks the machine to end o early. A write waiting only for TCP ends at once.
func (d *driver) cancel(o *op) {
	o.cancel = true
	switch {
	case o.read:
		d.exec(d.m.CancelRead(d.now(), o.id, d.room()))
		return
	case !o.own:
		d.exec(d.m.CancelWrite(d.now(), o.id, d.room()))
	}
	if o.state != opDone && o.after > d.send.done {
		d.keepSends()
	}
}

// keepSends ends the writes waiting only for TCP. TCP may take a long time if the network is down.
// The unsent bytes of the writes are copied. [D-32]
func (d *driver) keepSends() {
	d.send.keep(d.recv.in.stream)
	d.calls.free()
}
