package sdp

import (
	"time"

	"viaduct/internal/attend"
	"viaduct/internal/sdpcore"
	"viaduct/internal/wire/sdpwire"
	"viaduct/iwarp"
)

// A streamState tells what is done with the stream of a connection.
type streamState uint8

const (
	streamUp       streamState = iota // arrivals are handled
	streamOver                        // the end of the stream was handled
	streamMoved                       // the connection continues on another stream or in another process
	streamReleased                    // the connection has ended, and the stream is being closed
)

// stopped reports whether completions are left alone, because the stream has moved or is being
// closed; see drained.
func (s streamState) stopped() bool { return s >= streamMoved }

const (
	// Time after which a new connection receives arrivals even if no call waits.
	attendTime   = time.Millisecond
	bulkSize     = 16 << 10               // least bytes of payload of a message in a steady stream
	patienceTime = 200 * time.Microsecond // time that a write waits before its bytes are copied
	// Time that Close waits for the peer's DisConn after the peer's TCP has acknowledged ours.
	answerTime = 20 * time.Microsecond
)

// completed is the handler of the completion queue. The goroutine that holds mu handles
// completions. If another goroutine holds mu, completed leaves the completions to the holder:
// unlock handles them.
func (c *Conn) completed() {
	if c.mu.TryLock() {
		c.unlockOnly()
	}
}

// unlock releases mu after an event. First, unlock handles completions that arrived meanwhile,
// lends the buffer of a waiting read, and sets the alarm.
func (c *Conn) unlock() {
	if c.unlockOnly() {
		c.progress().Poll() // receives bytes that stayed unread, because no buffer was lent
	}
}

// unlockOnly does the work of unlock for the handler of completions. It reports whether the caller
// should receive at once, because bytes may have been left unread.
func (c *Conn) unlockOnly() (left bool) {
	for {
		before := c.flow.streak
		ran := c.run()
		if c.held.on && c.state != streamUp {
			c.settle(c.now()) // the missing part of a message will not arrive
		}
		c.calls.letLeave(c.m, &c.send, c.now)
		full, now := c.lend()
		left = now || left
		if ran {
			c.flow.brought(c.flow.streak-before, full, c.now)
		}
		c.setAlarm()
		cq, stopped := c.queue.Load(), c.state.stopped()
		c.mu.Unlock()
		if stopped || cq.Len() == 0 || !c.mu.TryLock() {
			return left
		}
	}
}

// progress returns the object that receives for a waiting call.
func (c *Conn) progress() attend.SourceSleeper { return attend.ProgressOf(c.queue.Load()) }

// look receives arrivals without waiting, and passes them to the machine. After the end of the
// stream, look does nothing. mu must be held.
func (c *Conn) look() {
	if c.state == streamUp {
		c.progress().Poll()
		c.run()
	}
}

// run passes completions to the machine. It reports whether there were any.
func (c *Conn) run() bool {
	if c.state.stopped() {
		return false
	}
	cq := c.queue.Load()
	n := cq.PollN(c.comps[:])
	if n == 0 {
		return false
	}
	now := c.now()
	for {
		// A read gets all received bytes, not only the bytes of the first message.
		c.m.Expect(len(c.calls.reads) > 0)
		for i := range c.comps[:n] {
			c.completion(now, &c.comps[i])
		}
		if c.state.stopped() {
			break
		}
		if n = cq.PollN(c.comps[:]); n == 0 {
			break
		}
	}
	if len(c.calls.reads) > 0 && c.state == streamUp && c.recv.in.lending() {
		c.held.begin(now)
	} else {
		c.settle(now)
	}
	return true
}

// settle ends a read that has some bytes and waits for more.
func (c *Conn) settle(now sdpcore.Time) {
	c.held.on = false
	c.m.Expect(false)
	c.exec(c.m.Settle(now, c.room()))
}

// lend lends the inbox the unused rest of the buffer of the oldest waiting read, or nothing if no
// read waits. left reports whether messages stayed unread for lack of a buffer. now is true if a
// read waits for the unread messages, so that the caller must receive at once.
func (c *Conn) lend() (left, now bool) {
	var into []byte
	if len(c.calls.reads) > 0 && c.state == streamUp {
		if id, off, ok := c.m.Landing(); ok {
			into = find(c.calls.reads, id).buf[off:]
		}
	}
	return c.recv.in.lend(into, len(c.calls.reads) == 0, c.held.wary)
}

// completion handles the completion e of a request.
func (c *Conn) completion(now sdpcore.Time, e *iwarp.Completion) {
	if e.QP != c.qp {
		return // the completion belongs to the stream before the last move
	}
	if e.Status != iwarp.StatusOK {
		c.streamEnded()
		return
	}
	switch e.Op {
	case iwarp.OpRecv:
		c.received(now, e)
	case iwarp.OpRead:
		c.recv.fetched()
		c.sendsDone(e.ID)
		c.exec(c.m.ReadDone(now, c.room()))
	default:
		c.sendsDone(e.ID)
		c.send.flush()
	}
}

// received passes a received message to the machine.
func (c *Conn) received(now sdpcore.Time, e *iwarp.Completion) {
	r := &c.recv
	head, body := r.in.message(e.ID, int(e.Len))
	msg, n, err := sdpwire.ParseHead(head, int(e.Len), c.layout)
	if err != nil {
		c.exec(c.m.ReceiveBad(now, msg.MID, err, c.room()))
		return
	}
	if logsMessages(c.opt.Logger) {
		shown := msg // otherwise every message would be allocated on the heap
		c.opt.Logger.Debug("received", "remote", c.path.Remote, "msg", &shown)
	}
	if body == nil {
		body = head[n:]
	}
	r.open(int(e.ID), body)
	c.flow.message(len(body))
	c.exec(c.m.Receive(now, &msg, e.STag, e.Invalidated, c.room()))
	r.close()
}

// setAlarm sets the timer for the next due event.
func (c *Conn) setAlarm() {
	if c.state.stopped() {
		return
	}
	at, _ := c.m.Deadline()
	at = soonest(at, soonest(c.alarm.attend, c.alarm.close))
	if c.held.on {
		at = soonest(at, c.held.until)
	}
	c.alarm.set(soonest(at, c.calls.late()), c.now)
}

// wakeUp performs the due events.
func (c *Conn) wakeUp() {
	c.mu.Lock()
	defer c.unlock()
	now := c.now()
	c.alarm.at = 0
	if c.state == streamReleased {
		return
	}
	if at, ok := c.m.Deadline(); ok && now >= at {
		c.exec(c.m.Tick(now, c.room()))
	}
	if due(&c.alarm.attend, now) {
		c.progress().Unpoll()
	}
	if c.held.on && c.held.over(now) {
		c.settle(now)
	}
	if due(&c.alarm.close, now) {
		c.exec(c.m.Abort(now, sdpcore.ErrClosed, c.room()))
	}
}
