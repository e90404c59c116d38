package frameio

import "viaduct/internal/attend"

// Expects tells whether something was sent since a consumer last slept at the
// socket, so that what comes next may be an answer.
func (c *Conn) Expects() bool {
	return uint32(c.tx.batches.Load()) != c.slept.Load() && c.tx.state.Load() == idle
}

// Near tells whether the other end is on this host.
func (c *Conn) Near() bool { return c.sock.Load() != nil && c.near }

// SleepAt adds the socket to what s sleeps at. It is false if a consumer can't
// sleep at it instead of calling Unpoll: the stream is portable or has ended,
// something else is reading, or what is to be sent waits for room. What waits for
// arrivals is left as it is: if both are woken, one of them reads. Close wakes the
// sleeper. A consumer that is woken by an arrival polls.
func (c *Conn) SleepAt(s *attend.Sleeper) bool {
	from := c.sock.Load()
	if from == nil || c.tx.state.Load() != idle || !c.att.TryLock() {
		return false
	}
	if state := c.att.State(); state == attend.Unstarted || state == attend.Closed || c.rx.large {
		c.att.Unlock()
		return false
	}
	c.slept.Store(uint32(c.tx.batches.Load()))
	return c.att.SleepAt(s) // tearDown, which closes the attention before it wakes all sleepers, has yet to
}
