package fcvi

import (
	"viaduct/internal/fc"
	"viaduct/internal/wire/iu"
	"viaduct/vi"
)

// txState is the state of the transmitting side of a connection.
type txState struct {
	nextID   iu.MsgID
	cur      work // the descriptor in transmission, if busy is set
	busy     bool
	curID    iu.MsgID
	oxid     uint16
	seq      uint8
	cnt      uint16
	off      uint32
	answered bool
	hdr      [iu.LongLen]byte
	hdrLen   int
	use      iu.Use
	rctl     fc.RCtl
	dfctl    uint8

	pending      fifo[pending] // in MSG_ID order
	unproven     int64         // payload bytes of the pending messages
	reads        int
	unasked      int // streamed messages since the last requested response
	unaskedBytes int
	proof        proof
	answers      fifo[answer]
	turn         bool // the turn of a response; responses and requests alternate

	stream    bool // a stream Exchange is open
	streamOX  uint16
	streamN   int
	streamCnt uint16
	streamAt  fc.Time

	acking  fifo[ackWait] // class 2: messages whose ACKs are awaited
	timer   *fc.Timer     // expires when a response is overdue
	heard   fc.Time       // time of the last progress of the response stream
	respGap fc.Time       // time at which the gap in the response stream counts as a loss
	stopped bool

	draining bool // a descriptor failed at this side; the connection ends after the answers to earlier ones
}

// startStreams initializes the streams of both directions. [FCVI-5.9.6-1]
func (c *conn) startStreams() {
	c.tx = txState{nextID: c.initTx}
	c.tx.timer = c.p.np.Timers().New(c.respExpired)
	c.tx.proof.timer = c.p.np.Timers().New(c.proofDue)
	c.rx = rxState{mexp: c.initRx, front: c.initRx, failed: iu.Accepted}
	c.rx.timer = c.p.np.Timers().New(c.gapExpired)
}

// stopStreams ends message transfer in both directions.
func (c *conn) stopStreams(now fc.Time) {
	if c.tx.timer == nil {
		return // never connected
	}
	c.tx.stopped = true
	c.tx.timer.Stop()
	c.tx.proof.timer.Stop()
	c.rx.timer.Stop()
	if c.tx.busy {
		c.p.oxids.lock(now, c.tx.oxid)
	}
	c.tx.busy = false
	c.tx.acking.truncate(0)
	// Answers to RDMA Reads are dropped, because their memory must not be accessed any more.
	// Answers without data are still sent.
	n := 0
	answers := c.tx.answers.all()
	for _, a := range answers {
		if a.op != iu.ReadResp || a.flags&iu.FlagErr != 0 {
			answers[n] = a
			n++
		}
	}
	c.tx.answers.truncate(n)
}

// posted runs when send descriptors were posted.
func (c *conn) posted(now fc.Time) {
	if c.state == stConnected && c.up != nil {
		c.p.activate(c)
		c.p.pump(now)
	}
}

// step sends one frame, or several successive frames of a sequence, at most room. It returns their
// number, or 0 if nothing can be sent now.
func (c *conn) step(now fc.Time, room int) int {
	if c.gone || c.remote == nil || !c.remote.Ready() {
		return 0
	}
	if c.class == fc.Class2 {
		if room = 1; !c.remote.Room() {
			return 0
		}
	}
	t := &c.tx
	t.turn = !t.turn
	if t.turn && t.answers.len() > 0 {
		return c.sendAnswer(now, room)
	}
	if c.state == stConnected && c.up != nil && !c.paused {
		if t.proof.want && !t.busy && c.openProbe(now) {
			return 1
		}
		if t.busy || c.startMessage(now) {
			return c.sendFrames(now, room)
		}
	}
	if t.answers.len() > 0 {
		return c.sendAnswer(now, room)
	}
	return 0
}

// startMessage starts the next send descriptor, if the peer can accept another request. It returns
// false if no message was started. [FCVI-F-2]
func (c *conn) startMessage(now fc.Time) bool {
	t := &c.tx
	for !t.draining {
		ctl, ok := c.up.peek()
		if !ok {
			return false
		}
		read := ctl.Op() == vi.OpRDMARead
		if read && t.reads >= max(1, int(c.rattrs.MaxReads)) { // [FCVI-5.2.4-7] [VIA-4.3-4]
			return false
		}
		limit := c.sendWindow()
		if (read || c.rr()) && (t.pending.len() >= limit || // [FCVI-E-1]
			t.pending.len() > 0 && t.unproven+int64(c.mts) > int64(c.maxHold())) {
			return false
		}
		if t.acking.len() > 0 && int(t.nextID-t.acking.at(0).id) >= limit {
			return false // a lost frame is sent again, and the peer stores the messages after it
		}
		w := &t.cur
		*w = work{}
		c.up.next(w)
		if w.bad == 0 {
			return c.openMessage(now)
		}
		c.up.finish(w, w.bad)
		if c.reliable() {
			c.drain(now)
			return false
		}
	}
	return false
}

// drain ends the connection because a local descriptor is in error. drain first waits until the
// requests before the descriptor are answered, or in class 2 acknowledged, so that they complete
// with success.
func (c *conn) drain(now fc.Time) {
	t := &c.tx
	t.draining = true
	if n := t.pending.len(); n > 0 && !t.pending.at(n-1).asked && c.probes() {
		t.proof.want = true // the answer to a probe proves the delivery of all requests before the probe
		c.p.activate(c)
	}
	c.drained(now)
}

// drained ends a draining connection if nothing is outstanding, and returns true if it has.
func (c *conn) drained(now fc.Time) bool {
	t := &c.tx
	if !t.draining || t.pending.len() > 0 || t.acking.len() > 0 {
		return false
	}
	c.fail2(now, iu.PortInternal, true)
	return true
}

// fail2 breaks the connection because of a local error. completed means that a descriptor has
// completed with the error; the other descriptors are then flushed.
func (c *conn) fail2(now fc.Time, reason iu.Reason, completed bool) {
	if c.state != stConnected {
		return
	}
	c.breakNow(now, completed)
	c.setState(stError)
	c.sendDisconnect(now, reason, 0, false)
}
