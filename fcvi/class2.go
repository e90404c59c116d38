package fcvi

import (
	"viaduct/internal/fc"
	"viaduct/internal/wire/iu"
	"viaduct/vi"
)

// An ackWait is a class 2 message whose last ACK has not arrived.
type ackWait struct {
	w        work
	id       iu.MsgID
	oxid     uint16
	complete bool // the message completes with its last ACK, not with a response
	left     int
	sent     bool
}

// acked counts an ACK_1 for Exchange oxid. The last ACK completes a message that needs no response.
func (c *conn) acked(now fc.Time, oxid uint16) {
	t := &c.tx
	for i := range t.acking.len() {
		if t.acking.at(i).oxid == oxid && t.acking.at(i).left > 0 {
			t.acking.at(i).left--
			c.settle(i)
			break
		}
	}
	if c.drained(now) {
		return
	}
	c.p.activate(c)
}

// settle removes the class 2 message at index i if all its frames are sent and acknowledged. It
// completes the message unless a response will.
func (c *conn) settle(i int) {
	t := &c.tx
	if !t.acking.at(i).sent || t.acking.at(i).left > 0 {
		return
	}
	a := *t.acking.at(i)
	t.acking.remove(i)
	if a.complete {
		c.p.oxids.release(a.oxid)
		if c.up != nil {
			c.up.finish(&a.w, 0)
		}
	}
}

func (c *conn) dropAck(oxid uint16) {
	t := &c.tx
	for i := range t.acking.len() {
		if t.acking.at(i).oxid == oxid {
			t.acking.remove(i)
			return
		}
	}
}

// class2Failed ends an Exchange whose frame was rejected or not acknowledged. At Unreliable
// Delivery only the message is lost; at the other levels the connection ends. [FCVI-8.4-15]
func (c *conn) class2Failed(now fc.Time, oxid uint16) {
	t, p := &c.tx, c.p
	p.oxids.abort(now, c.remote, c.class, oxid, fc.Unassigned)
	if c.reliable() { // set-up and disconnect recover by their own timers
		c.fail(now, iu.Class2Fail, 0, false)
		return
	}
	for i := range t.acking.len() {
		if a := *t.acking.at(i); a.oxid == oxid {
			t.acking.remove(i)
			if a.sent {
				c.up.finish(&a.w, vi.StatusTransportError)
			} else {
				t.busy = false
				c.up.finish(&t.cur, vi.StatusTransportError)
			}
			break
		}
	}
	p.activate(c)
	p.pump(now)
}
