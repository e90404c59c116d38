package frameio

import "viaduct/internal/attend"

// Expects reports whether the next arrival may be an answer: a frame was sent since a consumer last
// slept at the socket, and the send role is free.
func (c *Conn) Expects() bool {
	return uint32(c.tx.batches.Load()) != c.slept.Load() && c.tx.state.Load() == idle
}

// Near reports whether the peer is known to be on the same host. Near is false for a portable
// stream.
func (c *Conn) Near() bool { return c.sock.Load() != nil && c.near }

// SleepAt adds the socket to the sources that wake s. It returns false if the consumer must call
// Unpoll instead: the stream is portable or has ended, another goroutine reads, the sender is busy
// or waits for room, or long frames are arriving. The goroutine waiting for arrivals keeps waiting;
// if both wake up, one of them reads. Close wakes the sleeper. After an arrival wakes a consumer,
// the consumer polls.
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
	// tearDown closes the attention before waking all sleepers, so s cannot miss the wake-up.
	return c.att.SleepAt(s)
}
