package sdp

import (
	"time"

	"viaduct/internal/attend"
	"viaduct/internal/sdpcore"
	"viaduct/internal/wire/sdpwire"
	"viaduct/iwarp"
)

// A driver holds state that results from performing actions of the machine.
type driver struct {
	pooled  bool // goroutines may be workers, see attend.Go
	resized bool
	fail    error
	llp     bool // the end of the stream has been dealt with
	left    bool // by a reset, before the peer had acknowledged everything
}

const (
	attendTime   = time.Millisecond       // after which arrivals are waited for though no call waits
	bulkSize     = 16 << 10               // bytes of a message that is part of a stream
	patienceTime = 200 * time.Microsecond // that a write waits before it is copied
	answerTime   = 20 * time.Microsecond  // that Close waits for the peer's DisConn when its TCP has acknowledged ours
)

// completed is the handler of the completion queue. Completions are handled by the goroutine that
// has mu: another one leaves them to it, and it finds them when it unlocks.
func (c *Conn) completed() {
	if c.mu.TryLock() {
		c.unlockOnly()
	}
}

// unlock releases mu, after each event for the machine. It also handles completions that came
// meanwhile, lends the buffer of a waiting read, and sets the alarm.
func (c *Conn) unlock() {
	if c.unlockOnly() {
		c.progress().Poll() // bytes were left until there was memory for them
	}
}

// unlockOnly is unlock for the handler of completions. It reports whether bytes may
// have been left that are best received at once.
func (c *Conn) unlockOnly() (left bool) {
	for {
		before := c.flow.streak
		ran := c.run()
		if c.held.on && (c.drv.llp || c.stopped()) {
			c.settle(c.now()) // no rest of a message comes
		}
		c.letLeave()
		full, now := c.lend()
		left = now || left
		if ran {
			c.flow.brought(c.flow.streak-before, full, c.now)
		}
		c.setAlarm()
		cq, stopped := c.queue.Load(), c.stopped()
		c.mu.Unlock()
		if stopped || cq.Len() == 0 || !c.mu.TryLock() {
			return left
		}
	}
}

// stopped reports whether completions are left alone: the stream has moved, or is
// being closed, see drained.
func (c *Conn) stopped() bool { return c.suspended || c.released }

// progress is what a call that waits receives by.
func (c *Conn) progress() attend.SourceSleeper { return attend.ProgressOf(c.queue.Load()) }

// look receives arrivals.
func (c *Conn) look() {
	if !c.stopped() && !c.drv.llp {
		c.progress().Poll()
		c.run()
	}
}

// run passes completions to the machine. It reports whether there were any.
func (c *Conn) run() bool {
	if c.stopped() {
		return false
	}
	cq := c.queue.Load()
	n := cq.PollN(c.comps[:])
	if n == 0 {
		return false
	}
	now := c.now()
	for {
		// A read takes what is there, not only the first message of it.
		c.m.Expect(len(c.rops) > 0)
		for i := range c.comps[:n] {
			c.completion(now, &c.comps[i])
		}
		if c.stopped() {
			break
		}
		if n = cq.PollN(c.comps[:]); n == 0 {
			break
		}
	}
	if len(c.rops) > 0 && !c.drv.llp && !c.stopped() && c.recv.in.lending() {
		c.held.begin(now)
	} else {
		c.settle(now)
	}
	return true
}

// settle ends the read that has got something.
func (c *Conn) settle(now sdpcore.Time) {
	c.held.on = false
	c.m.Expect(false)
	c.exec(c.m.Settle(now, c.room()))
}

// lend lends the buffer of the waiting read to the next bytes. left reports whether bytes were left
// unread until this was done. now means that they must be received now, since no call is about to
// look for them.
func (c *Conn) lend() (left, now bool) {
	var into []byte
	if len(c.rops) > 0 && !c.drv.llp && !c.released {
		if id, off, ok := c.m.Landing(); ok {
			into = c.readOp(id).buf[off:]
		}
	}
	return c.recv.in.lend(into, len(c.rops) == 0, c.held.wary)
}

// letLeave lets waiting writes return that have waited long enough and may return, and transfers
// that were cancelled and copied. It is not called while actions are performed, because the machine
// already counts their bytes as sent.
func (c *Conn) letLeave() {
	for i := 0; i < len(c.wops); i++ {
		o := c.wops[i]
		if o.own && o.onDone != nil && o.after <= c.send.done {
			c.letTransferGo(o)
			continue
		}
		if o.late == 0 || o.free || c.now() < o.late {
			continue
		}
		o.past = true // whatever lets it leave is an event
		if c.mayLeave(o) {
			c.wd.letGo(o)
		}
	}
}

// completion deals with the end of a request.
func (c *Conn) completion(now sdpcore.Time, e *iwarp.Completion) {
	if e.QP != c.qp {
		return // of the stream before the last move
	}
	if e.Status != iwarp.StatusOK {
		c.streamEnded()
		return
	}
	switch e.Op {
	case iwarp.OpRecv:
		c.received(now, e)
	case iwarp.OpRead:
		b := c.recv.local[0]
		c.recv.local = c.recv.local[1:]
		if b != nil {
			c.recv.holds = append(c.recv.holds, hold{b, -1})
		}
		c.sendsDone(e.ID)
		c.exec(c.m.ReadDone(now, c.room()))
	default:
		c.sendsDone(e.ID)
		if c.send.rang {
			c.exec(c.room())
		}
	}
}

// received hands a message to the machine.
func (c *Conn) received(now sdpcore.Time, e *iwarp.Completion) {
	r := &c.recv
	head, body := r.in.message(e.ID, int(e.Len))
	msg, n, err := sdpwire.ParseHead(head, int(e.Len), c.layout)
	if err != nil {
		c.exec(c.m.ReceiveBad(now, msg.MID, err, c.room()))
		return
	}
	if c.logsMessages() {
		shown := msg // or every message would be on the heap
		c.opt.Logger.Debug("received", "remote", c.path.Remote, "msg", &shown)
	}
	if body == nil {
		body = head[n:]
	}
	r.cur, r.index, r.kept = body, int(e.ID), false
	c.flow.message(len(body))
	if len(r.cur) == 0 {
		r.in.release(r.index) // before a message says so
		r.kept = true
	}
	c.exec(c.m.Receive(now, &msg, e.STag, e.Invalidated, c.room()))
	if !r.kept {
		r.in.release(r.index)
	}
	r.cur = nil
}

// An alarm is the timer of a connection, and its purposes besides the deadline of the machine.
type alarm struct {
	timer  *time.Timer
	at     sdpcore.Time // when it goes off, 0 for never
	attend sdpcore.Time // from when on arrivals are waited for; 0 if they are already
	close  sdpcore.Time // a closed connection is reset then; 0 for never
}

// setAlarm sets the timer for the next due event. A timer that fires earlier is not changed.
func (c *Conn) setAlarm() {
	if c.stopped() {
		return
	}
	a := &c.alarm
	at, ok := c.m.Deadline()
	if !ok && a.attend == 0 && a.close == 0 && !c.held.on && len(c.wops) == 0 {
		return
	}
	soonest := func(t sdpcore.Time) {
		if t != 0 && (at == 0 || t < at) {
			at = t
		}
	}
	soonest(a.attend)
	soonest(a.close)
	if c.held.on {
		soonest(c.held.until)
	}
	for _, o := range c.wops {
		if !o.past {
			soonest(o.late)
		}
	}
	if at == 0 || a.at != 0 && a.at <= at {
		return
	}
	a.at = at
	if left := max(at-c.now(), 0); a.timer == nil {
		a.timer = time.AfterFunc(left, c.wakeUp)
	} else {
		a.timer.Reset(left)
	}
}

// wakeUp lets the machine do what time has made due.
func (c *Conn) wakeUp() {
	c.mu.Lock()
	defer c.unlock()
	a, now := &c.alarm, c.now()
	a.at = 0
	if c.released {
		return
	}
	if at, ok := c.m.Deadline(); ok && now >= at {
		c.exec(c.m.Tick(now, c.room()))
	}
	if a.attend != 0 && now >= a.attend {
		a.attend = 0
		c.progress().Unpoll()
	}
	if c.held.on && c.held.over(now) {
		c.settle(now)
	}
	if a.close != 0 && now >= a.close {
		a.close = 0
		c.exec(c.m.Abort(now, sdpcore.ErrClosed, c.room()))
	}
}
