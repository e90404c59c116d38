package sdp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"time"

	"viaduct/internal/frameio"
	"viaduct/iwarp"
	"viaduct/sdp/sdpcore"
	"viaduct/sdp/sdpwire"
)

// Who drives a connection changes hands. A call that waits polls the completion
// queue itself, for a moment, then sleeps on its events: no other goroutine is
// in the way of the message it waits for. When no call waits, a goroutine of
// the connection's own takes over, but only after the calls have been away for
// a while, so that a program that calls in turn never meets it. All of them
// hold mu while they take completions and carry out actions, so that events
// reach the machine in order.
type driver struct {
	sleepers  int           // calls that wait
	due       sdpcore.Time  // deadline of the machine that one of them will wake at, or 0
	took      bool          // one of them got an event, and no other was asked for yet
	spinning  bool          // one of them is polling
	vain      int           // times that was in vain since it was not
	passed    uint          // occasions for it after too many of those
	visits    uint          // calls that have driven the connection
	seen      uint          // of them, when look was last there
	scheduled bool          // look is due
	own       bool          // the goroutine of the connection runs
	crewed    bool          // it may be one of the crew, see frameio.Go
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
}

const (
	spinTime   = 30 * time.Microsecond // waking a sleeper takes about as long
	attendTime = time.Millisecond

	// Where polling for an answer was in vain several times in a row, the other end
	// may be waiting for this very processor: then few of those poll that would.
	inVain   = 4
	oneEach  = 16
	bulkSize = 16 << 10 // bytes of a message that is part of a stream

	// A stream that flows is best taken in larger pieces. Its reader sleeps for a
	// moment where it would look again and again: nobody has to wake it, and each
	// look costs the sender too.
	napTime   = 40 * time.Microsecond
	napBytes  = 128 << 10 // a look that brought so many was not too soon
	streakLen = 1 << 20   // bytes that came in one direction alone

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
// come to somebody else.
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
	if c.opt.Logger.Enabled(context.Background(), slog.LevelDebug) {
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

// streamEnded tells the machine that the stream below has ended, once, and why.
func (c *Conn) streamEnded() {
	if c.drv.llp || c.suspended {
		return
	}
	c.drv.llp = true
	reset, err := true, error(nil)
	select {
	case <-c.qp.Ended():
		err = c.qp.Err()
		// Both directions closed in order, or we closed after the last message.
		reset = err != io.EOF && !(c.m.Finished() && errors.Is(err, iwarp.ErrClosed))
	default:
		reset = false // the peer's FIN
	}
	var te *iwarp.TerminateError
	switch {
	case errors.As(err, &te): // [D-49]
		err = fmt.Errorf("%w: %w", ErrReset, te)
	case !reset || errors.Is(err, iwarp.ErrClosed):
		err = nil
	default:
		err = fmt.Errorf("%w: %w", ErrReset, err)
	}
	c.exec(c.m.LLPClosed(c.now(), reset, err, c.acts[:0]))
	if c.m.Dead() {
		c.abortNow(err)
	}
}

// finish ends the stream in order, both directions being closed. [D-49]
// [SDP-8.2.1-23]
func (c *Conn) finish() { c.release(false, nil) }

// abortNow resets the stream, once what was posted has gone. [SDP-8.2.2-1]
func (c *Conn) abortNow(err error) {
	c.release(true, err)
}

// release lets go of the stream and of all that belongs to it, in the
// background, as it may take the peer two seconds. [SDP-8.2.1-14] [SDP-8.2.1-24]
func (c *Conn) release(reset bool, err error) {
	if c.released {
		return
	}
	c.released = true
	c.send.rang = false
	qp, cq := c.qp, c.cq
	qp.Flush()
	if c.opt.Logger.Enabled(context.Background(), slog.LevelInfo) {
		c.opt.Logger.Info("connection down", "conn", c.path.Remote, "err", err)
	}
	letGo := func() {
		if reset {
			// AbortConn, if there is one, goes into the socket before the reset.
			for i := 0; i < 20 && cq.Len() == 0; i++ {
				if _, ok := cq.Poll(); ok {
					break
				}
				time.Sleep(50 * time.Microsecond)
			}
			qp.Abort()
		}
		_ = qp.Close()
		c.mu.Lock()
		c.drained()
		c.mu.Unlock()
	}
	if c.drv.inOwn {
		c.drv.last = letGo
	} else {
		frameio.Go(c.drv.crewed, letGo)
	}
}

// drained is called when nothing completes any more.
func (c *Conn) drained() {
	for n := c.cq.PollN(c.comps[:]); n > 0; n = c.cq.PollN(c.comps[:]) {
	}
	if !c.m.Dead() && !c.m.Finished() {
		c.exec(c.m.LLPClosed(c.now(), true, nil, c.acts[:0]))
	}
	c.sendsDone(^uint64(0))
	for len(c.send.advs) > 0 {
		c.revoke(c.send.advs[0].key)
	}
	if c.drv.timer != nil {
		c.drv.timer.Stop()
	}
	for _, f := range c.onEnd {
		f()
	}
	c.flush()
	clear(c.acts[:cap(c.acts)])
	actions.Put(new(c.acts[:0]))
	c.acts = nil
	close(c.drv.done)
	close(c.gone)
	for _, o := range c.rops {
		o.signal()
	}
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
	dozed := false // which is followed by a look, and now and then by another sleep
	defer func() {
		if dr.held.on {
			c.settle()
		}
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
			frameio.Nap(napTime)
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

// A held read has got something, and waits for the rest of a message that has
// begun to come into its buffer behind that: to move what is there would cost more.
// Where the rest did not come soon several times, later reads are wary of that.
type held struct {
	on    bool
	since time.Time
	skip  int // reads that are wary
	skips int // reads that will be after the next time
}

const (
	heldTime    = 200 * time.Microsecond // since something came
	maxHeldSkip = 1 << 10
)

func (h *held) begin(now time.Time) {
	if h.on {
		h.skips = 0
	}
	h.on, h.since = true, now
}

// over reports whether the rest is not waited for any more.
func (h *held) over(now time.Time) bool {
	if now.Sub(h.since) < heldTime {
		return false
	}
	h.skips = min(2*h.skips+1, maxHeldSkip)
	h.skip = h.skips
	return true
}

// wary tells whether a read that begins does not wait for the rest of a message.
func (h *held) wary() bool {
	if h.skip > 0 {
		h.skip--
		return true
	}
	return false
}

// flowing reports whether what comes is a stream of large messages that nothing
// is said in answer to.
func (d *driver) flowing() bool { return frameio.CanNap && d.large && d.streak >= streakLen }

// tooSoon reports whether another look at a stream that flows would bring little.
func (d *driver) tooSoon() bool {
	return d.got < napBytes && d.flowing() && time.Since(d.gotAt) < napTime
}

// spin polls for a moment and reports whether something came.
func (c *Conn) spin(o *op) bool {
	if spinTime == 0 || processors == 1 {
		return false
	}
	dr := &c.drv
	answer := o.read && !dr.large
	if answer && dr.vain >= inVain {
		if dr.passed++; dr.passed%oneEach != 0 {
			return false
		}
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
			dr.vain = 0
			return true
		}
	}
	if answer {
		dr.vain++
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

// arm asks for an event at the next completion, for whoever sleeps.
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
	if o.own {
		return
	}
	if o.read {
		c.exec(c.m.CancelRead(c.now(), o.id, c.acts[:0]))
	} else {
		c.exec(c.m.CancelWrite(c.now(), o.id, c.acts[:0]))
	}
}

// leave sees to it that somebody drives the connection after a call. Called
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

// rouse wakes those who sleep if the machine has a deadline that none of them
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
		// Nobody is woken by bytes that were read already.
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
	case dr.visits != dr.seen:
		c.lookLater()
	default:
		c.startOwn()
	}
}

func (c *Conn) startOwn() {
	c.drv.own = true
	frameio.Go(c.drv.crewed, c.runOwn)
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
			return // whoever leaves last sees to the rest
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
