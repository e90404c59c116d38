package fcvi

import (
	"viaduct/internal/fc"
	"viaduct/internal/wire/iu"
)

// While an endpoint is connected, conn gives each event to the part that the event concerns: the
// sender, the receiver or the answers. The part returns the failure that ends the connection, if
// there is one, and conn ends the connection.

// startStreams initializes the parts for both directions. [FCVI-5.9.6-1]
func (c *conn) startStreams() {
	s, timers := &c.shared, c.p.np.Timers()
	c.tx = sender{shared: s, nextID: c.initTx, acks: acks{shared: s},
		resp:  responses{shared: s, timer: timers.New(c.respExpired)},
		proof: proof{shared: s, timer: timers.New(c.proofDue)}}
	c.answers = answers{shared: s}
	c.rx = receiver{shared: s, answers: &c.answers, rxWindow: rxWindow{mexp: c.initRx, front: c.initRx},
		timer: timers.New(c.gapExpired), failed: iu.Accepted}
}

// stopStreams ends message transfer in both directions.
func (c *conn) stopStreams(now fc.Time) {
	if c.rx.timer == nil {
		return // never connected
	}
	c.tx.stop(now)
	c.rx.timer.Stop()
	c.answers.withdraw()
}

// transfers reports whether messages can be transferred.
func (c *conn) transfers() bool { return c.state == stConnected && c.up != nil }

// posted runs when send descriptors were posted.
func (c *conn) posted(now fc.Time) {
	if c.transfers() {
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
	q := &c.answers
	q.turn = !q.turn
	if (!q.turn || q.len() == 0) && c.transfers() && !c.early.paused {
		sent, idle, fail := c.tx.step(now, room)
		if fail != nil {
			c.fail(now, fail)
		}
		if !idle {
			return sent
		}
	}
	if q.len() == 0 {
		return 0
	}
	sent, fail := q.send(now, room)
	if fail != nil {
		c.fail(now, fail)
	}
	return sent
}

// request handles a frame of a message request. [FCVI 8.4] [FCVI-8.2-2]
func (c *conn) request(now fc.Time, f *fc.Frame, h *iu.Header) {
	if c.state == stResp2 || c.state == stRqst && c.sentResp2 {
		c.connected(now) // the peer sends messages only after RESP2 [FCVI-5.3.2-4] [FCVI-C-8]
	}
	if !c.transfers() {
		c.p.stats.WrongState++
		return
	}
	more, fail := c.rx.request(now, f, h)
	c.received(now, fail)
	if more {
		c.follow(now, f, false)
	}
}

// received ends the connection if the receiver has returned a failure, or has delivered the last
// message before a delayed disconnect.
func (c *conn) received(now fc.Time, fail *failure) {
	switch {
	case fail != nil:
		c.fail(now, fail)
	case c.rx.finished():
		c.disconnectNow(now)
	}
}

// recvPosted runs when receive descriptors were posted.
func (c *conn) recvPosted(now fc.Time) {
	if c.transfers() {
		c.received(now, c.rx.recvPosted(now))
		c.p.pump(now)
	}
}

func (c *conn) gapExpired(now fc.Time) {
	if c.transfers() {
		c.received(now, c.rx.gapExpired(now))
		c.p.pump(now)
	}
}

// response handles a frame of a message response. [FCVI-8.2-2]
func (c *conn) response(now fc.Time, f *fc.Frame, h *iu.Header) {
	if !c.transfers() {
		c.p.stats.WrongState++
		return
	}
	more, fail := c.tx.response(now, f, h)
	if fail != nil {
		c.fail(now, fail)
	}
	if more {
		c.follow(now, f, true)
	}
}

func (c *conn) respExpired(now fc.Time) {
	if c.state == stConnected {
		c.fail(now, c.tx.resp.expired(now))
	}
}

func (c *conn) proofDue(now fc.Time) {
	if c.transfers() {
		c.tx.proof.due(now)
		c.p.pump(now)
	}
}

// acked handles an ACK_1 for Exchange oxid.
func (c *conn) acked(now fc.Time, oxid uint16) {
	c.tx.acks.acked(oxid)
	if fail := c.tx.drained(); fail != nil {
		c.fail(now, fail)
		return
	}
	c.p.activate(c)
}

// class2Failed ends an Exchange whose frame was rejected or not acknowledged. At Unreliable
// Delivery only the message is lost; at the other levels the connection ends. [FCVI-8.4-15]
func (c *conn) class2Failed(now fc.Time, oxid uint16) {
	c.p.oxids.abort(now, c.remote, c.class, oxid, fc.Unassigned)
	if c.reliable() { // set-up and disconnect recover by their own timers
		c.fail(now, &failure{reason: iu.Class2Fail})
		return
	}
	c.tx.undelivered(oxid)
	c.p.activate(c)
	c.p.pump(now)
}

// abortedMessage handles an ABTS for an incomplete message. It returns true if a message or an
// answer of this connection has the Exchange.
func (c *conn) abortedMessage(oxid uint16) bool {
	return c.transfers() && (c.answers.has(oxid) || c.rx.aborted(oxid))
}
