package fcvi

import (
	"viaduct/internal/wire/iu"
	"viaduct/vi"
)

// An ackWait is a class 2 message whose last ACK has not arrived.
type ackWait struct {
	w        work
	id       iu.MsgID
	oxid     uint16
	complete bool // the message completes with its last ACK, not with a response
	left     int  // frames that are sent and not acknowledged
	sent     bool // all frames are sent
}

// An acks has the class 2 messages whose ACKs are awaited, in the order of their transmission.
type acks struct {
	*shared
	fifo[ackWait]
}

// last returns the message in transmission, or the message sent last.
func (q *acks) last() *ackWait { return q.at(q.len() - 1) }

// acked counts an ACK_1 for Exchange oxid. The last ACK completes a message that needs no response.
func (q *acks) acked(oxid uint16) {
	for i := range q.len() {
		if a := q.at(i); a.oxid == oxid && a.left > 0 {
			a.left--
			q.settle(i)
			return
		}
	}
}

// settle removes the message at index i if all its frames are sent and acknowledged. It completes
// the message unless a response will.
func (q *acks) settle(i int) {
	if !q.at(i).sent || q.at(i).left > 0 {
		return
	}
	a := *q.at(i)
	q.remove(i)
	if a.complete {
		q.p.oxids.release(a.oxid)
		if q.up != nil {
			q.up.finish(&a.w, 0)
		}
	}
}

// find returns the index of the message on Exchange oxid, or -1 if there is none.
func (q *acks) find(oxid uint16) int {
	for i := range q.len() {
		if q.at(i).oxid == oxid {
			return i
		}
	}
	return -1
}

// drop removes the message on Exchange oxid, if any, because its ACKs are not awaited any more.
func (q *acks) drop(oxid uint16) {
	if i := q.find(oxid); i >= 0 {
		q.remove(i)
	}
}

// undelivered completes the message on Exchange oxid with an error, because a frame of the message
// was rejected or not acknowledged. [FCVI-8.4-15]
func (t *sender) undelivered(oxid uint16) {
	i := t.acks.find(oxid)
	if i < 0 {
		return
	}
	a := *t.acks.at(i)
	t.acks.remove(i)
	if a.sent {
		t.up.finish(&a.w, vi.StatusTransportError)
		return
	}
	t.busy = false
	t.up.finish(&t.cur, vi.StatusTransportError)
}
