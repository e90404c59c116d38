package sdp

import (
	"runtime"
	"time"

	"viaduct/internal/attend"
	"viaduct/internal/budget"
)

// await waits until o is done, or stop says so; a passed deadline cancels o.
// Called with mu held, returns with it held.
func (c *Conn) await(o *op, d *deadline, stop func() bool) {
	dr := &c.drv
	var start time.Time
	if stop != nil {
		start = time.Now()
	}
	if o.read {
		c.recv.in.wary = dr.held.wary()
	}
	dr.calls++
	dozed := false // which is followed by a look, and now and then by another sleep
	defer func() {
		if dr.held.on {
			c.settle()
		}
		dr.calls--
		dr.visits++
		c.leave()
	}()
	for !o.done {
		if processors == 1 && !dozed && c.doze(o, d) {
			dozed = true
			continue
		}
		dozed = false
		if o.read && dr.tooSoon() {
			c.mu.Unlock()
			attend.Nap(napTime)
			c.mu.Lock()
		}
		dr.patient = o.read
		before := dr.streak
		came := c.poll()
		if dr.flowing() {
			dr.got, dr.gotAt = dr.streak-before, time.Now()
		}
		if dr.patient = false; came {
			continue
		}
		c.tick()
		if d != nil && !o.cancel && d.passed() {
			c.cancel(o)
			continue
		}
		if dr.held.on {
			if dr.held.over(time.Now()) {
				c.settle()
				continue
			}
			c.mu.Unlock()
			runtime.Gosched()
			c.mu.Lock()
			continue
		}
		bulk := dr.came >= bulkSize
		dr.came = 0
		if !dr.spinning && !bulk && c.spin(o) {
			continue
		}
		patience := time.Duration(-1)
		if stop != nil {
			// Credit is on its way, most likely; waiting for it is cheaper than
			// what stop does.
			if patience = patienceTime - time.Since(start); patience <= 0 {
				if stop() {
					return
				}
				o.leaves = true
			}
		}
		if processors == 1 || !c.doze(o, d) {
			c.sleep(o, d, patience)
		}
	}
}

// looking is how calls back off whose polls for an answer are in vain.
var looking = budget.Rule{Grace: 4, Max: 15}

// spin polls for a moment and reports whether something came.
func (c *Conn) spin(o *op) bool {
	if processors == 1 {
		return false
	}
	dr := &c.drv
	answer := o.read && !dr.large
	if answer && !dr.looks.Worth() {
		return false
	}
	dr.spinning = true
	defer func() { dr.spinning = false }()
	for start := time.Now(); time.Since(start) < spinTime; {
		c.mu.Unlock()
		// The other end may be a goroutine of this process that waits for this
		// very processor.
		runtime.Gosched()
		c.mu.Lock()
		if c.poll() || o.done {
			dr.looks.Hit(&looking)
			return true
		}
	}
	if answer {
		dr.looks.Miss(&looking)
	}
	return false
}

// sleep waits for an event, or until patience, if it is positive, is over.
func (c *Conn) sleep(o *op, d *deadline, patience time.Duration) {
	dr := &c.drv
	if c.suspended || dr.llp || c.released {
		o.asleep = true
		c.mu.Unlock()
		var expired <-chan struct{}
		if d != nil && !o.cancel {
			expired = d.wait()
		}
		select {
		case <-o.wake:
		case <-expired:
		case <-time.After(100 * time.Millisecond):
		}
		c.mu.Lock()
		o.asleep = false
		return
	}
	dr.sleepers++
	c.arm()
	if c.poll() || o.done {
		dr.sleepers--
		return
	}
	var expired <-chan struct{}
	if d != nil && !o.cancel {
		expired = d.wait()
	}
	var due <-chan time.Time
	wait := patience
	dr.due = 0
	if at, ok := c.m.Deadline(); ok {
		dr.due = at
		if left := max(at-c.now(), 0); wait <= 0 || left < wait {
			wait = left
			patience = 0
		}
	}
	if wait > 0 || patience == 0 {
		t := time.NewTimer(wait)
		defer t.Stop()
		due = t.C
	}
	events, done := c.cq.Events(), dr.done
	took := false
	o.asleep = true
	c.mu.Unlock()
	select {
	case <-events:
		took = true
	case <-o.wake:
	case <-expired:
	case <-due:
	case <-done:
	}
	c.mu.Lock()
	o.asleep = false
	dr.took = dr.took || took
	dr.sleepers--
}

// arm asks for an event at the next completion, for the calls that sleep.
func (c *Conn) arm() {
	c.drv.took = false
	if _, lend := c.landing(); lend && c.drv.large {
		// Or it would come into a Private Buffer. What is short gets here sooner
		// that way.
		c.cq.ArmArrival(c.qp)
		return
	}
	c.cq.Arm(false)
}

// cancel asks the machine to give o back.
func (c *Conn) cancel(o *op) {
	o.cancel = true
	switch {
	case o.read:
		c.exec(c.m.CancelRead(c.now(), o.id, c.acts[:0]))
		return
	case !o.own:
		c.exec(c.m.CancelWrite(c.now(), o.id, c.acts[:0]))
	}
	if !o.done && o.after > c.send.done {
		c.keepSends()
	}
}

// keepSends ends the writes that wait for nothing but TCP, which may not take their
// bytes for as long as the network is down: those are copied. [D-32]
func (c *Conn) keepSends() {
	c.qp.KeepSends()
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
