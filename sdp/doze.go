package sdp

import (
	"viaduct/internal/attend"
)

// doze has a call that reads sleep on the socket itself, if the peer may be about
// to answer and no other call or goroutine sleeps on behalf of the connection, and
// reports whether it did and may again. It does not look at the socket before.
// Called with mu held.
//
// No wake-up is lost. What the call waits for comes by a completion, from the goroutine
// that receives, by a signal of its operation, under mu, or over the socket. Completions
// and operation are looked at after the sleeper fell asleep and was made known to
// both; deadlines are further away than it sleeps.
func (c *Conn) doze(o *op, d *deadline) bool {
	if !c.mayDoze(o, d) {
		return false
	}
	c.mu.Unlock() // other calls may wait for it
	z := attend.TakeSleeper()
	c.mu.Lock()
	if z == nil {
		return false
	}
	defer z.Free()
	dr, cq := &c.drv, c.cq // which is another after a move
	if o.done || !c.mayDoze(o, d) || !cq.SleepAt(z) {
		return false
	}
	dr.sleepers++
	o.dozing, o.hopes = z, true
	out := attend.Woken
	if cq.Len() == 0 {
		dr.due = 0
		c.mu.Unlock()
		out = z.Sleep()
		c.mu.Lock()
	}
	o.dozing = nil
	cq.Rouse()
	dr.sleepers--
	return out != attend.Paused
}

// mayDoze reports whether a call may sleep on the socket alone.
func (c *Conn) mayDoze(o *op, d *deadline) bool {
	dr := &c.drv
	switch {
	case !o.read || o.cancel || dr.sleepers > 0 || dr.own || dr.leftover || dr.held.on || dr.large || len(c.wops) > 0:
		return false
	case c.suspended || dr.llp || c.released || !o.hopes && !c.cq.Expects():
		return false
	case d != nil && d.within(attend.Period):
		return false
	}
	at, ok := c.m.Deadline()
	return !ok || at-c.now() >= attend.Period
}
