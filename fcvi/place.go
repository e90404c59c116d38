package fcvi

import (
	"viaduct/internal/fc"
	"viaduct/internal/wire/iu"
	"viaduct/vi"
)

// placeFrame places the bytes of a frame if m is the next message to deliver. Otherwise the bytes
// are stored, because an earlier Write must not overwrite a later one. Bytes are placed in the
// order of arrival of frames: ascending on a path that keeps order. placeFrame returns false if the
// message does not continue. [VIA-4.2-5]
func (c *conn) placeFrame(now fc.Time, m *rxMsg, off uint32, b []byte) bool {
	r := &c.rx
	t := &messageTypes[m.h.Op]
	if t.place == nil {
		return true
	}
	if !m.held && m.h.MsgID == r.mexp && !r.waiting {
		if goesOn := t.place(c, now, m, off, b); goesOn || m.taken || !r.waiting {
			return goesOn
		}
	}
	return c.hold(now, m, off, b)
}

// hold stores bytes of m until m is the next message to deliver. If the stored messages exceed
// maxHold bytes, it rejects m and returns false.
func (c *conn) hold(now fc.Time, m *rxMsg, off uint32, b []byte) bool {
	r := &c.rx
	m.held = true
	need := int(off) + len(b)
	if more := need - len(m.buf); more > 0 {
		if r.hold+more > c.maxHold() {
			c.p.stats.WindowFull++
			c.reject1(now, m, iu.PortResources)
			return false
		}
		r.hold += more
		if need > cap(m.buf) {
			m.buf = append(make([]byte, 0, max(need, min(2*cap(m.buf), int(c.mts)))), m.buf...)
		}
		m.buf = m.buf[:need]
	}
	copy(m.buf[off:], b)
	return true
}

// takeRecv takes a receive descriptor for the message at mexp. If none is posted, or the descriptor
// is in error, takeRecv returns false: the message waits, is dropped or breaks the connection.
// [FCVI-3-8]
func (c *conn) takeRecv(now fc.Time, m *rxMsg) bool {
	r := &c.rx
	if r.haveRecv { // the descriptor of a message that was discarded [FCVI-B-5]
		return true
	}
	capacity, bad, ok := c.up.takeRecv()
	if !ok {
		if c.holds {
			r.waiting = true // bytes that a Write has placed are not removed [VIA-4.1-3]
			return false
		}
		c.p.stats.NoReceive++                                        // [FCVI-5.2.3-4]
		c.up.async(vi.ErrorRecvQEmpty, messageTypes[m.h.Op].control) // [VIA-4.6-4] [VIA-5.2-4]
		c.reject1(now, m, iu.NoRecvDesc)
		return false
	}
	r.haveRecv, r.capacity, m.taken = true, capacity, true
	if bad != 0 {
		reason := iu.RecvProt
		if bad&vi.StatusFormatError != 0 {
			reason = iu.RecvFormat
		}
		c.recvError(now, m, bad, reason)
		return false
	}
	return true
}

// recvPosted runs when receive descriptors were posted. A message waiting for a descriptor
// continues.
func (c *conn) recvPosted(now fc.Time) {
	r := &c.rx
	if c.state != stConnected || c.up == nil || !r.waiting {
		return
	}
	r.waiting = false
	m := r.at(r.mexp)
	if m.open && m.complete {
		c.deliver(now)
	} else if m.open && r.stallAt == 0 {
		c.stall(now, m)
	}
	c.p.pump(now)
}

// recvError completes the current receive descriptor with an error and handles its message.
func (c *conn) recvError(now fc.Time, m *rxMsg, st vi.Status, reason iu.Reason) {
	c.rx.haveRecv = false
	c.up.finishRecv(vi.Delivery{Length: 0, Status: st})
	c.reject1(now, m, reason)
}
