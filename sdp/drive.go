package sdp

import (
	"time"

	"viaduct/internal/budget"
	"viaduct/internal/sdpcore"
	"viaduct/internal/wire/sdpwire"
	"viaduct/iwarp"
)

// The goroutine that drives a connection changes. A call that waits polls the completion
// queue itself, for a moment, then sleeps on its events: no other goroutine is
// in the way of the message it waits for. When no call waits, a goroutine of
// the connection's own takes over, but only after the calls have been away for
// a while, so that a program that calls in turn never meets it. All of them
// hold mu while they take completions and carry out actions, so that events
// reach the machine in order.
type driver struct {
	calls     int           // calls that wait, however they do
	sleepers  int           // of them, those that sleep on events
	due       sdpcore.Time  // deadline of the machine that one of them will wake at, or 0
	took      bool          // one of them got an event, and no other was asked for yet
	spinning  bool          // one of them is polling
	looks     budget.Budget // whether it polls for an answer
	visits    uint          // calls that have driven the connection
	seen      uint          // of them, when look was last there
	scheduled bool          // look is due
	own       bool          // the goroutine of the connection runs
	crewed    bool          // it may be one of the crew, see attend.Go
	inOwn     bool          // it is the one that has mu
	last      func()        // what it does when it has ended
	ownDue    sdpcore.Time  // deadline of the machine that it will wake at, or 0
	kick      chan struct{} // a slot: it has to look at the deadline again
	timer     *time.Timer
	done      chan struct{} // closed when the stream has ended and was dealt with
	closeBy   time.Time     // a closed connection is reset then
	came      int           // bytes of payload since a call last had to wait
	large     bool          // the last message that came was part of a stream
	streak    int           // bytes of payload since a call last wrote something
	leftover  bool          // bytes were read from the socket and left alone
	got       int           // bytes of payload that the last poll for a read of a flowing stream brought
	gotAt     time.Time
	patient   bool // a read polls
	held      held
	resized   bool
	fail      error
	llp       bool // the end of the stream has been dealt with
	left      bool // by a reset, before the peer had acknowledged everything
}

const (
	spinTime   = 30 * time.Microsecond // waking a sleeper takes about as long
	attendTime = time.Millisecond
	bulkSize   = 16 << 10 // bytes of a message that is part of a stream

	patienceTime = 200 * time.Microsecond // that a write waits before it is copied
)

// poll takes completions and deals with them. It reports whether there were
// any. Called with mu held.
func (c *Conn) poll() bool {
	if c.suspended {
		return false
	}
	n := c.cq.Take(c.comps[:])
	if n == 0 {
		if into, lend := c.landing(); lend {
			in := c.recv.in
			in.offer = into
			_, c.drv.leftover = c.qp.PollLent()
			in.offer = nil
			n = c.cq.Take(c.comps[:])
		} else {
			c.drv.leftover = false
			n = c.cq.PollN(c.comps[:])
		}
	}
	came := n > 0
	if !came {
		return false
	}
	now := c.now()
	for n > 0 {
		// A read takes what is there, not only the first message of it.
		for i := range c.comps[:n] {
			c.m.Expect(c.drv.patient || i < n-1 || c.cq.Len() > 0)
			c.completion(now, &c.comps[i])
		}
		if c.suspended {
			break
		}
		n = c.cq.Take(c.comps[:])
	}
	if c.drv.patient && c.recv.in.lending() {
		c.drv.held.begin(time.Now())
	} else {
		c.settle()
	}
	c.letLeave()
	return true
}

// settle ends the read that has got something.
func (c *Conn) settle() {
	c.drv.held.on = false
	c.m.Expect(false)
	c.exec(c.m.Settle(c.now(), c.acts[:0]))
}

// landing returns where payload that comes now belongs, if that is the buffer
// of a read. A message in progress in the buffer has been told so before.
func (c *Conn) landing() (into []byte, lend bool) {
	if len(c.rops) == 0 || c.drv.llp || c.released {
		return nil, false
	}
	if c.recv.in.lending() {
		return nil, true
	}
	id, off, ok := c.m.Landing()
	if !ok {
		return nil, false
	}
	if !c.recv.in.idle() {
		return nil, true // what is there already comes first
	}
	o := c.readOp(id)
	return o.buf[off:], true
}

// letLeave wakes the calls of writes that may leave now: what they wait for has
// come to another call.
func (c *Conn) letLeave() {
	if c.drv.sleepers == 0 {
		return
	}
	for _, o := range c.wops {
		if o.leaves && !o.done && c.mayLeave(o) {
			o.signal()
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
		c.exec(c.m.ReadDone(now, c.acts[:0]))
	default:
		c.sendsDone(e.ID)
		if c.send.rang {
			c.exec(c.acts[:0])
		}
	}
}

// received hands a message to the machine.
func (c *Conn) received(now sdpcore.Time, e *iwarp.Completion) {
	r := &c.recv
	head, body := r.in.message(e.ID, int(e.Len))
	msg, n, err := sdpwire.ParseHead(head, int(e.Len), c.layout)
	if err != nil {
		c.exec(c.m.ReceiveBad(now, msg.MID, err, c.acts[:0]))
		return
	}
	if c.logsMessages() {
		shown := msg // or every message would be on the heap
		c.opt.Logger.Debug("received", "conn", c.path.Remote, "msg", &shown)
	}
	if body == nil {
		body = head[n:]
	}
	r.cur, r.index, r.kept = body, int(e.ID), false
	c.drv.came += len(body)
	c.drv.large = len(body) >= bulkSize
	c.drv.streak += len(body)
	if len(r.cur) == 0 {
		r.in.release(r.index) // before a message says so
		r.kept = true
	}
	c.exec(c.m.Receive(now, &msg, e.STag, e.Invalidated, c.acts[:0]))
	if !r.kept {
		r.in.release(r.index)
	}
	r.cur = nil
}

// tick lets the machine do what time has made due.
func (c *Conn) tick() {
	if at, ok := c.m.Deadline(); ok && c.now() >= at {
		c.exec(c.m.Tick(c.now(), c.acts[:0]))
		c.letLeave()
	}
	if c.closed && !c.released && !c.drv.closeBy.IsZero() && time.Now().After(c.drv.closeBy) {
		c.exec(c.m.Abort(c.now(), sdpcore.ErrClosed, c.acts[:0]))
	}
}
