package fcvi

import (
	"viaduct/internal/fc"
	"viaduct/internal/wire/iu"
	"viaduct/vi"
)

// A messageType has the functions for Information Units of an opcode.
type messageType struct {
	// arrive handles an IU that names the endpoint c and comes from the port of its peer. The
	// functions below are for message requests only. The same functions handle frames arriving one
	// by one, as a run, or out of order.
	arrive func(c *conn, now fc.Time, f *fc.Frame, h *iu.Header)

	control vi.Control

	// begin reports whether a frame with the given payload length can belong to a message of this
	// type. It runs before all other checks.
	begin func(c *conn, h *iu.Header, payload int) bool

	// place places payload. It is nil for a type without payload. It returns false if the message
	// has ended, or waits for a receive descriptor.
	place func(c *conn, now fc.Time, m *rxMsg, off uint32, b []byte) bool

	// end completes a message that has arrived completely, and returns false if the message must
	// wait, or if the connection has ended.
	end func(c *conn, now fc.Time, m *rxMsg, d vi.Delivery) bool

	// fail reports a message that will stay incomplete. It is nil if the end of the connection is a
	// sufficient report for the consumer.
	fail func(c *conn, m *rxMsg)

	answers bool // end sends the answer itself, at every reliability level
}

// messageTypes has a row for each opcode; the port has checked the opcode. A CONNECT_RQST names no
// endpoint: port.connectRqst handles it. init fills the table, because the functions refer to
// messageTypes.
var messageTypes [256]messageType

func init() {
	messageTypes = [256]messageType{
		iu.SendRqst: {(*conn).request, vi.OpSendReceive, (*conn).beginAny, (*conn).placeSend,
			(*conn).endSend, (*conn).failSend, false},
		iu.WriteRqst: {(*conn).request, vi.OpRDMAWrite, (*conn).beginAny, (*conn).placeWrite,
			(*conn).endWrite, (*conn).failWrite, false},
		iu.ReadRqst: {(*conn).request, vi.OpRDMARead, (*conn).beginRead, nil, (*conn).serveRead, nil, true},

		iu.SendResp:       {arrive: (*conn).response},
		iu.WriteResp:      {arrive: (*conn).response},
		iu.ReadResp:       {arrive: (*conn).response},
		iu.ConnectRqst:    {arrive: func(*conn, fc.Time, *fc.Frame, *iu.Header) {}},
		iu.ConnectResp1:   {arrive: (*conn).resp1},
		iu.ConnectResp2:   {arrive: (*conn).resp2},
		iu.ConnectResp3:   {arrive: (*conn).resp3},
		iu.DisconnectRqst: {arrive: (*conn).disconnectRqst},
		iu.DisconnectResp: {arrive: (*conn).disconnectResp},
	}
}

func (c *conn) beginAny(*iu.Header, int) bool { return true }

// beginRead reports whether a Read is allowed. It is allowed only at the reliable levels, and only
// without payload. [FCVI-5.2.4-6]
func (c *conn) beginRead(h *iu.Header, payload int) bool {
	return c.reliable() && payload == 0 && h.Flags&iu.FlagImm == 0
}

// placeSend places bytes of a Send into the receive descriptor of the Send, after taking a
// descriptor if the Send has none. placeSend returns false if the Send has failed or waits for a
// descriptor.
func (c *conn) placeSend(now fc.Time, m *rxMsg, off uint32, b []byte) bool {
	return (m.taken || c.takeRecv(now, m)) && c.scatter(now, m, off, b)
}

// scatter places bytes of a Send into the current receive descriptor. If the bytes do not fit or
// the memory fails, scatter completes the descriptor with the error and returns false.
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

func (c *conn) endSend(now fc.Time, m *rxMsg, d vi.Delivery) bool {
	if !m.taken {
		if !c.takeRecv(now, m) {
			return c.up != nil && m.discard
		}
		if m.held && !c.scatter(now, m, 0, m.buf[:d.Length]) {
			return c.up != nil && m.discard
		}
	}
	c.rx.haveRecv = false
	c.up.finishRecv(d) // [FCVI-5.2.2-4]
	return true
}

func (c *conn) failSend(m *rxMsg) {
	if r := &c.rx; r.haveRecv {
		r.haveRecv = false
		c.up.finishRecv(vi.Delivery{Length: m.got.next(), Status: vi.StatusPartialError}) // [VIA-4.6-12]
	}
}

// placeWrite places bytes of a Write. Rights and bounds are checked for the whole message before
// its first byte is placed. An error is reported when the message is complete. [FCVI-5.2.3-3]
// [FCVI-5.2.3-1] [FCVI-5.9.8-2] [FCVI-7.3-7]
func (c *conn) placeWrite(_ fc.Time, m *rxMsg, off uint32, b []byte) bool {
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
		return true
	}
	if !c.up.place(m.h.RmtHandle, m.h.RmtVA, m.h.Total, off, b) { // [VIA-4.2-1]
		m.bad = iu.RDMAWriteProt
		return true
	}
	c.p.stats.PlacedBytes += uint64(len(b))
	c.traffic.ReceivedBytes += uint64(len(b))
	return true
}

// endWrite completes an RDMA Write. A Write with immediate data consumes a receive descriptor;
// without a descriptor the Write waits or fails.
func (c *conn) endWrite(now fc.Time, m *rxMsg, d vi.Delivery) bool {
	if m.held {
		c.placeWrite(now, m, 0, m.buf[:d.Length])
		m.held = false
		c.rx.hold -= len(m.buf)
		m.buf = m.buf[:0]
	}
	if m.bad != 0 {
		return c.writeError(now, m, d)
	}
	if d.Immediate { // [FCVI-5.2.3-2] [VIA-4.2-2]
		if !c.takeRecv(now, m) { // [VIA-4.6-18]
			return m.discard
		}
		d.RemoteWrite = true
		c.rx.haveRecv = false
		c.up.finishRecv(d) // [VIA-4.2-3] [VIA-4.2-4]
	}
	return true
}

// writeError reports an RDMA Write whose target failed the check. The error goes into the receive
// descriptor the Write would have consumed, or is asynchronous.
func (c *conn) writeError(now fc.Time, m *rxMsg, d vi.Delivery) bool {
	if d.Immediate && (m.taken || c.takeRecv(now, m)) {
		d.RemoteWrite, d.Length, d.Status = true, 0, vi.StatusRDMAProtection // [VIA-4.6-9] [VIA-5.2-10]
		c.rx.haveRecv = false
		c.up.finishRecv(d)
	} else if c.up != nil {
		c.rx.waiting = false                          // no message waits after this error
		c.up.async(vi.ErrorRDMAWProt, vi.OpRDMAWrite) // [VIA-4.6-8] [VIA-5.2-6]
	}
	if c.up == nil {
		return false
	}
	if !c.reliable() {
		c.p.stats.Discarded++
		return true
	}
	c.reject1(now, m, m.bad)
	return false
}

// failWrite reports an RDMA Write cut off in the middle. The error goes into the descriptor the
// Write would have consumed, if it has immediate data, and is asynchronous otherwise. [VIA-4.6-11]
// [VIA-5.2-7]
func (c *conn) failWrite(m *rxMsg) {
	if m.h.Flags&iu.FlagImm == 0 {
		c.up.async(vi.ErrorRDMAWAbort, vi.OpRDMAWrite)
		return
	}
	if m.h.MsgID != c.rx.mexp || c.rx.waiting {
		return
	}
	_, bad, ok := c.up.takeRecv()
	if !ok {
		return
	}
	c.up.finishRecv(vi.Delivery{Length: m.got.next(), RemoteWrite: true, Status: bad | vi.StatusPartialError})
}
