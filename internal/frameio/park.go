package frameio

import "time"

// A batch that the peer is to copy from where it is takes about as long as the copying,
// and a goroutine that looks for its end takes a processor from a consumer that polls
// anyway. So the send role is parked then: it has no goroutine, and the polls of the
// consumer take it up again. If they end, a goroutine has the role as ever.

// parkTime is after how long at least a role is taken up that no poll has.
const parkTime = time.Millisecond

// park leaves the role, whose batch waits for the peer, to the consumer, if that has
// polled since the role last waited.
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
	t.parked.Store(true)
	if !t.watched.Swap(true) {
		c.Go(c.watch)
	}
	return true
}

// unpark gives the role to a goroutine if it is parked.
func (c *Conn) unpark() {
	if c.tx.parked.CompareAndSwap(true, false) {
		c.tx.release() // the goroutine lists itself when it waits, and may have nothing to wait for
		go c.sendLoop()
	}
}

// takeUp goes on with a batch that the peer has copied, in a poll of the consumer, and
// reports whether it has.
func (c *Conn) takeUp() bool {
	t := &c.tx
	if !t.parked.CompareAndSwap(true, false) {
		return false
	}
	t.mu.Lock()
	ready := t.closed || c.sock.Load().Roomy()
	t.mu.Unlock()
	if !ready {
		t.parked.Store(true)
		return false
	}
	t.release()
	c.drainOn()
	c.deliver()
	return true
}

// watch takes up a role that was parked and is not polled for any more.
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
		if !t.parked.Load() || t.watched.Swap(true) { // parked just now, or watched by another
			return
		}
	}
}
