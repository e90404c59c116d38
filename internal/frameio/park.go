package frameio

import "time"

// If the peer copies a batch directly out of our memory, the send takes as long as the copy. A
// goroutine polling for the end of the copy would take a processor from the consumer, although the
// consumer polls anyway. So the send role is parked during the copy: no goroutine holds the role,
// and a poll of the consumer resumes it. If the consumer stops polling, a goroutine takes the role
// again.

// parkTime is the least time before a goroutine resumes a parked role, if no poll has resumed it.
const parkTime = time.Millisecond

// park parks the send role, whose batch waits for the peer, and reports whether it did. The role is
// parked only if the consumer has polled since the role last waited, and the peer still has to copy
// bytes of the batch.
func (c *Conn) park() bool {
	t := &c.tx
	looks := c.att.Looks()
	polled := looks != t.looks
	if t.looks = looks; !polled {
		return false
	}
	t.mu.Lock()
	owed := !t.closed && c.sock.Load().Owes()
	if owed {
		t.holdLocked()
	}
	t.mu.Unlock()
	if !owed {
		return false
	}
	t.parks.Add(1)
	c.leaveParked()
	return true
}

// leaveParked makes the role available to a poll, and to a watch. Between a takeUp's first step and
// its end the role is not parked, and a watch may have ended for that reason.
func (c *Conn) leaveParked() {
	t := &c.tx
	t.parked.Store(true)
	if !t.watched.Load() && !t.watched.Swap(true) {
		c.Go(c.watch)
	}
}

// unpark passes the role to a goroutine if the role is parked.
func (c *Conn) unpark() {
	if c.tx.parked.CompareAndSwap(true, false) {
		c.tx.release() // the goroutine registers as a holder only if it waits
		go c.sendLoop()
	}
}

// takeUp resumes the parked send role in a poll of the consumer, and returns true. It returns false
// if the role is not parked or the peer has not copied the batch yet.
func (c *Conn) takeUp() bool {
	t := &c.tx
	if !t.parked.CompareAndSwap(true, false) {
		return false
	}
	t.mu.Lock()
	ready := t.closed || c.sock.Load().Roomy()
	t.mu.Unlock()
	if !ready {
		c.leaveParked()
		return false
	}
	t.release()
	c.drainOn()
	c.deliver()
	return true
}

// watch waits until no park has happened for parkTime: the consumer has stopped polling then.
// Afterwards watch passes a parked role to a goroutine.
func (c *Conn) watch() {
	t := &c.tx
	for last := t.parks.Load(); ; {
		time.Sleep(parkTime)
		parks := t.parks.Load()
		if parks != last {
			last = parks
			continue
		}
		t.watched.Store(false)
		c.unpark()
		if !t.parked.Load() || t.watched.Swap(true) { // not parked again, or another goroutine watches
			return
		}
	}
}
