package sdpcore

import (
	"viaduct/internal/wire/sdpwire"
)

// Receive handles the next message of the peer. msg is the result of Parse, and inv the STag the
// Send invalidated if invalidated is set. Messages must be passed in iWARP's order of delivery. A
// dead or suspended machine ignores all messages. [SDP-10.1-2]
func (m *Machine) Receive(now Time, msg *sdpwire.Message, inv uint32, invalidated bool, out []Action) []Action {
	m.begin(now, out)
	if m.life == lifeDead || m.life == lifeSuspended {
		return m.end()
	}
	x := &m.in
	*x = inbound{Message: *msg, n: msg.PayloadLen(), inv: inv, invalidated: invalidated}
	err := m.head(x)
	if err == nil {
		err = m.byType(x)
	}
	if err != nil {
		m.fail(err)
	}
	return m.end()
}

// ReceiveBad handles a message Parse refused with err: it ends the connection. [SDP-8.2.2-6]
func (m *Machine) ReceiveBad(now Time, mid sdpwire.MID, err error, out []Action) []Action {
	m.begin(now, out)
	if m.life != lifeDead {
		m.fail(wireViolation(mid, err))
	}
	return m.end()
}

// fail ends the connection if the result of a message, err, is a violation or another reason.
func (m *Machine) fail(err error) {
	if err == nil || err == errVoid {
		return
	}
	if _, ok := err.(*Violation); ok {
		m.stats.Violations++
	}
	m.abort(err)
}

// head handles the fields every message carries.
func (m *Machine) head(msg *inbound) error {
	c := &m.cr
	switch {
	case m.susp.peerDone && msg.MID != sdpwire.SuspCommAck && msg.MID != sdpwire.AbortConn && !msg.isCreditUpdate():
		return violation("SDP-13.1.1-5", msg.MID, "after the peer had suspended")
	case serial(msg.MSeq) != c.expect: // [SDP-10.1-2] [D-06]
		return violation("SDP-6.1.5-2", msg.MID, "MSeq %d where %d was due", msg.MSeq, uint32(c.expect))
	case c.free < 0: // this message would need a second spare
		return violation("SDP-10.5-5", msg.MID, "no credit for it")
	case int64(msg.Len) > int64(m.p.RecvSize): // messages up to RecvSize are accepted [SDP-10-1] [SDP-5-2]
		return violation("SDP-10-4", msg.MID, "%d bytes for buffers of %d", msg.Len, m.p.RecvSize)
	case !c.received(int(msg.Bufs), serial(msg.MSeqAck)):
		return violation("D-09", msg.MID, "MSeqAck %d outside what is unacknowledged", msg.MSeqAck)
	case msg.invalidated && !messageTypes[msg.MID].invalidates: // [D-41]
		return violation("D-41", msg.MID, "invalidates an STag")
	}
	c.expect++
	c.free--
	if msg.n == 0 {
		c.free++ // a message without payload frees its buffer at once
		if msg.MID == sdpwire.Data {
			c.empties++
		}
	}
	m.stats.RecvMessages++
	m.src.mode.acknowledged(c.acked)
	if msg.Flags&sdpwire.OOBPend != 0 {
		m.urg.pending()
	}
	return nil
}

// byType handles the message according to its type, after head.
func (m *Machine) byType(msg *inbound) error {
	t := &messageTypes[msg.MID]
	switch {
	case m.life == lifeFinished && msg.MID != sdpwire.AbortConn:
		if msg.n > 0 || msg.MID == sdpwire.SrcAvail {
			return violation("SDP-8.2.1-8", msg.MID, "after DisConn")
		}
		return nil
	case t.end == nil: // Hello, HelloAck, and types that Parse refuses [D-75]
		return violation("SDP-6.1.1-3", msg.MID, "has no place on a running connection")
	}
	if t.begin != nil {
		if err := t.begin(m, msg); err != nil {
			return err
		}
	}
	if msg.n > 0 {
		if err := t.target(m, msg); err != nil {
			return err
		}
	}
	return t.end(m, msg)
}
