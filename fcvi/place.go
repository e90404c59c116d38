package fcvi

import (
	"viaduct/internal/fc"
	"viaduct/internal/wire/iu"
	"viaduct/vi"
)

// placeFrame puts the bytes of a frame where they belong if it is the turn of
// their message, and holds them otherwise: a later Write must not be overtaken
// in memory by an earlier one. Bytes are placed as frames come, which is in
// ascending order where the path keeps their order. It reports whether the
// message goes on. [VIA-4.2-5]
func (c *conn) placeFrame(now fc.Time, m *rxMsg, off uint32, b []byte) bool {
	r := &c.rx
	if m.h.Op == iu.ReadRqst {
		return true
	}
	if !m.held && m.h.MsgID == r.mexp && !r.waiting {
		if m.h.Op == iu.WriteRqst {
			c.placeWrite(m, off, b)
			return true
		}
		if m.taken || c.takeRecv(now, m) {
			return c.scatter(now, m, off, b)
		}
		if !r.waiting {
			return false
		}
	}
	return c.hold(now, m, off, b)
}

// placeWrite places bytes of a Write. Its rights and bounds are checked as a
// whole before its first byte; an error is told when the message is complete.
// [FCVI-5.2.3-3]
// [FCVI-5.2.3-1] [FCVI-5.9.8-2] [FCVI-7.3-7]
func (c *conn) placeWrite(m *rxMsg, off uint32, b []byte) {
	if !m.checked {
		m.checked = true
		if !c.up.check(m.h.RmtHandle, m.h.RmtVA, m.h.Total, true) {
			m.bad = iu.RDMAWriteProt
			if !c.attrs.Write {
				m.bad = iu.RDMAWriteOff
			}
		}
	}
	if m.bad != 0 || len(b) == 0 {
		return
	}
	if !c.up.place(m.h.RmtHandle, m.h.RmtVA, m.h.Total, off, b) { // [VIA-4.2-1]
		m.bad = iu.RDMAWriteProt
		return
	}
	c.p.stats.PlacedBytes += uint64(len(b))
	c.traffic.ReceivedBytes += uint64(len(b))
}

// hold keeps bytes until their message's turn.
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

// takeRecv takes a receive descriptor for the message at mexp. Without one the
// message waits, is dropped or breaks the connection. [FCVI-3-8]
func (c *conn) takeRecv(now fc.Time, m *rxMsg) bool {
	r := &c.rx
	if r.haveRecv { // left over from a message that was discarded [FCVI-B-5]
		m.taken = true
		return true
	}
	capacity, bad, ok := c.up.takeRecv()
	if !ok {
		if c.holds {
			r.waiting = true // what was placed of it, by a Write, stays [VIA-4.1-3]
			return false
		}
		c.p.stats.NoReceive++                             // [FCVI-5.2.3-4]
		c.up.async(vi.ErrorRecvQEmpty, controlOf(m.h.Op)) // [VIA-4.6-4] [VIA-5.2-4]
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

// recvPosted is the doorbell of the receive queue: a message that waits may go
// on.
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

func controlOf(o iu.Opcode) vi.Control {
	switch o {
	case iu.WriteRqst:
		return vi.OpRDMAWrite
	case iu.ReadRqst:
		return vi.OpRDMARead
	}
	return vi.OpSendReceive
}

// recvError completes the receive descriptor in hand with an error and deals
// with its message.
func (c *conn) recvError(now fc.Time, m *rxMsg, st vi.Status, reason iu.Reason) {
	c.rx.haveRecv = false
	c.up.finishRecv(vi.Delivery{Length: 0, Status: st})
	c.reject1(now, m, reason)
}

// scatter places bytes of a Send into the receive descriptor.
func (c *conn) scatter(now fc.Time, m *rxMsg, off uint32, b []byte) bool {
	if uint64(off)+uint64(len(b)) > c.rx.capacity {
		c.recvError(now, m, vi.StatusLengthError, iu.LengthError) // [VIA-4.1-2] [VIA-4.6-5]
		return false
	}
	if len(b) == 0 {
		return true
	}
	if st := c.up.scatter(off, b); st != 0 { // [VIA-4.6-7]
		c.recvError(now, m, st, iu.RecvProt)
		return false
	}
	c.p.stats.PlacedBytes += uint64(len(b))
	c.traffic.ReceivedBytes += uint64(len(b))
	return true
}
