package sdp

import (
	"time"

	"viaduct/internal/attend"
)

// leave sees to it that the connection is driven after a call. Called
// with mu held, at the end of every call.
func (c *Conn) leave() {
	dr := &c.drv
	switch {
	case c.suspended || dr.llp || c.released:
	case dr.sleepers > 0:
		// The others sleep on the events that this call may have used up, and
		// know no deadline that was this call's to watch.
		c.arm()
		for c.poll() {
		}
		dr.due = 0
		c.rouse()
	case dr.own:
		// It sleeps on the events too, and an event goes to one sleeper.
		if dr.took {
			c.arm()
			for c.poll() {
			}
		}
		c.rouseOwn()
	case c.pressing():
		c.startOwn()
	default:
		c.lookLater()
	}
}

// pressing reports whether something is under way that no call waits for.
func (c *Conn) pressing() bool {
	return c.m.SendQueue() > 0 || c.closed || len(c.ending) > 0 || c.hasLent()
}

// lookLater has look called when calls may have stayed away for a while.
func (c *Conn) lookLater() {
	dr := &c.drv
	if dr.scheduled {
		return
	}
	dr.scheduled, dr.seen = true, dr.visits
	if dr.timer == nil {
		dr.timer = time.AfterFunc(attendTime, c.look)
	} else {
		dr.timer.Reset(attendTime)
	}
}

// rouse wakes the calls that sleep if the machine has a deadline that none of them
// will wake for.
func (c *Conn) rouse() {
	dr := &c.drv
	at, ok := c.m.Deadline()
	if !ok || dr.sleepers == 0 || dr.due != 0 && dr.due <= at {
		return
	}
	for _, o := range c.rops {
		o.signal()
	}
	for _, o := range c.wops {
		o.signal()
	}
}

// rouseOwn wakes the goroutine of the connection if the machine has a deadline
// that it will not wake for.
func (c *Conn) rouseOwn() {
	dr := &c.drv
	for dr.leftover && c.poll() {
		// Bytes that were read already wake nothing.
	}
	if at, ok := c.m.Deadline(); ok && (dr.ownDue == 0 || at < dr.ownDue) {
		select {
		case dr.kick <- struct{}{}:
		default:
		}
	}
}

func (c *Conn) hasLent() bool {
	for _, o := range c.rops {
		if o.lent {
			return true
		}
	}
	return false
}

// look starts the connection's own goroutine when calls have stayed away.
func (c *Conn) look() {
	if !c.mu.TryLock() {
		// A call is busy with the connection, and this one must not stand in
		// the way of the next.
		time.AfterFunc(attendTime, c.look)
		return
	}
	defer c.mu.Unlock()
	dr := &c.drv
	dr.scheduled = false
	switch {
	case dr.own || dr.sleepers > 0 || c.suspended || dr.llp || c.released:
	case dr.visits != dr.seen || dr.calls > 0:
		c.lookLater()
	default:
		c.startOwn()
	}
}

func (c *Conn) startOwn() {
	c.drv.own = true
	attend.Go(c.drv.crewed, c.runOwn)
}

// runOwn drives the connection while no call does.
func (c *Conn) runOwn() {
	c.mu.Lock()
	dr := &c.drv
	dr.inOwn = true
	c.driveOwn()
	last := dr.last
	dr.own, dr.inOwn, dr.last = false, false, nil
	c.mu.Unlock()
	if last != nil {
		last()
	}
}

func (c *Conn) driveOwn() {
	dr := &c.drv
	visits := dr.visits
	for {
		if c.suspended || dr.llp || c.released {
			return
		}
		c.arm()
		for c.poll() {
		}
		c.tick()
		if c.suspended || dr.llp || c.released {
			return
		}
		if dr.sleepers > 0 {
			c.rouse()
			return // the call that leaves last sees to the rest
		}
		if dr.visits != visits && !c.pressing() {
			c.lookLater() // calls have come back
			return
		}
		visits = dr.visits
		var due <-chan time.Time
		var t *time.Timer
		wait := time.Duration(-1)
		dr.ownDue = 0
		if at, ok := c.m.Deadline(); ok {
			dr.ownDue = at
			wait = max(at-c.now(), 0)
		}
		if c.closed && (wait < 0 || wait > time.Second) {
			wait = time.Second
		}
		if wait >= 0 {
			t = time.NewTimer(wait)
			due = t.C
		}
		events, kick, done := c.cq.Events(), dr.kick, dr.done
		dr.inOwn = false
		c.mu.Unlock()
		select {
		case <-events:
		case <-due:
		case <-kick:
		case <-done:
		}
		if t != nil {
			t.Stop()
		}
		c.mu.Lock()
		dr.inOwn = true
	}
}
