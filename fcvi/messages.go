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
	begin func(r *receiver, h *iu.Header, payload int) bool

	// place places payload. It is nil for a type without payload. It returns false if the message
	// has failed, or waits for a receive descriptor.
	place func(r *receiver, now fc.Time, m *rxMsg, off uint32, b []byte) (bool, *failure)

	// end completes a message that has arrived completely, and returns false if the message must
	// wait, or if the connection ends.
	end func(r *receiver, now fc.Time, m *rxMsg, d vi.Delivery) (bool, *failure)

	// fail reports a message that will stay incomplete. It is nil if the end of the connection is a
	// sufficient report for the consumer.
	fail func(r *receiver, m *rxMsg)

	answers bool // end sends the answer itself, at every reliability level
}

// messageTypes has a row for each opcode; the port has checked the opcode. A CONNECT_RQST names no
// endpoint: port.connectRqst handles it. init fills the table, because the functions refer to
// messageTypes.
var messageTypes [256]messageType

func init() {
	messageTypes = [256]messageType{
		iu.SendRqst: {(*conn).request, vi.OpSendReceive, (*receiver).beginAny, (*receiver).placeSend,
			(*receiver).endSend, (*receiver).failSend, false},
		iu.WriteRqst: {(*conn).request, vi.OpRDMAWrite, (*receiver).beginAny, (*receiver).placeWrite,
			(*receiver).endWrite, (*receiver).failWrite, false},
		iu.ReadRqst: {(*conn).request, vi.OpRDMARead, (*receiver).beginRead, nil, (*receiver).serveRead, nil, true},

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

func (r *receiver) beginAny(*iu.Header, int) bool { return true }

// beginRead reports whether a Read is allowed. It is allowed only at the reliable levels, and only
// without payload. [FCVI-5.2.4-6]
func (r *receiver) beginRead(h *iu.Header, payload int) bool {
	return r.reliable() && payload == 0 && h.Flags&iu.FlagImm == 0
}

// placeSend places bytes of a Send into the receive descriptor of the Send, after taking a
// descriptor if the Send has none. placeSend returns false if the Send has failed or waits for a
// descriptor.
func (r *receiver) placeSend(now fc.Time, m *rxMsg, off uint32, b []byte) (bool, *failure) {
	if !m.taken {
		if ok, fail := r.takeRecv(now, m); !ok {
			return false, fail
		}
	}
	return r.scatter(now, m, off, b)
}

// scatter places bytes of a Send into the current receive descriptor. If the bytes do not fit or
// the memory fails, scatter completes the descriptor with the error and returns false.
func (r *receiver) scatter(now fc.Time, m *rxMsg, off uint32, b []byte) (bool, *failure) {
	if uint64(off)+uint64(len(b)) > r.capacity {
		return false, r.recvError(now, m, vi.StatusLengthError, iu.LengthError) // [VIA-4.1-2] [VIA-4.6-5]
	}
	if len(b) == 0 {
		return true, nil
	}
	if st := r.up.scatter(off, b); st != 0 { // [VIA-4.6-7]
		return false, r.recvError(now, m, st, iu.RecvProt)
	}
	r.p.stats.PlacedBytes += uint64(len(b))
	r.traffic.ReceivedBytes += uint64(len(b))
	return true, nil
}

func (r *receiver) endSend(now fc.Time, m *rxMsg, d vi.Delivery) (bool, *failure) {
	if !m.taken {
		ok, fail := r.takeRecv(now, m)
		if ok && m.held {
			ok, fail = r.scatter(now, m, 0, m.buf[:d.Length])
		}
		if !ok {
			return fail == nil && m.discard, fail
		}
	}
	r.haveRecv = false
	r.up.finishRecv(d) // [FCVI-5.2.2-4]
	return true, nil
}

func (r *receiver) failSend(m *rxMsg) {
	if r.haveRecv {
		r.haveRecv = false
		r.up.finishRecv(vi.Delivery{Length: m.got.next(), Status: vi.StatusPartialError}) // [VIA-4.6-12]
	}
}

// placeWrite places bytes of a Write. Rights and bounds are checked for the whole message before
// its first byte is placed. An error is reported when the message is complete. [FCVI-5.2.3-3]
// [FCVI-5.2.3-1] [FCVI-5.9.8-2] [FCVI-7.3-7]
func (r *receiver) placeWrite(_ fc.Time, m *rxMsg, off uint32, b []byte) (bool, *failure) {
	if !m.checked {
		m.checked = true
		if !r.up.check(m.h.RmtHandle, m.h.RmtVA, m.h.Total, true) {
			m.bad = iu.RDMAWriteProt
			if !r.attrs.Write {
				m.bad = iu.RDMAWriteOff
			}
		}
	}
	if m.bad != 0 || len(b) == 0 {
		return true, nil
	}
	if !r.up.place(m.h.RmtHandle, m.h.RmtVA, m.h.Total, off, b) { // [VIA-4.2-1]
		m.bad = iu.RDMAWriteProt
		return true, nil
	}
	r.p.stats.PlacedBytes += uint64(len(b))
	r.traffic.ReceivedBytes += uint64(len(b))
	return true, nil
}

// endWrite completes an RDMA Write. A Write with immediate data consumes a receive descriptor;
// without a descriptor the Write waits or fails.
func (r *receiver) endWrite(now fc.Time, m *rxMsg, d vi.Delivery) (bool, *failure) {
	if m.held {
		r.placeWrite(now, m, 0, m.buf[:d.Length])
		m.held = false
		r.hold -= len(m.buf)
		m.buf = m.buf[:0]
	}
	if m.bad != 0 {
		return r.writeError(now, m, d)
	}
	if d.Immediate { // [FCVI-5.2.3-2] [VIA-4.2-2]
		if ok, fail := r.takeRecv(now, m); !ok { // [VIA-4.6-18]
			return m.discard, fail
		}
		d.RemoteWrite = true
		r.haveRecv = false
		r.up.finishRecv(d) // [VIA-4.2-3] [VIA-4.2-4]
	}
	return true, nil
}

// writeError reports an RDMA Write whose target failed the check. The error goes into the receive
// descriptor the Write would have consumed, or is asynchronous.
func (r *receiver) writeError(now fc.Time, m *rxMsg, d vi.Delivery) (bool, *failure) {
	taken := d.Immediate && m.taken
	if d.Immediate && !taken {
		var fail *failure
		if taken, fail = r.takeRecv(now, m); fail != nil {
			return false, fail
		}
	}
	if taken {
		d.RemoteWrite, d.Length, d.Status = true, 0, vi.StatusRDMAProtection // [VIA-4.6-9] [VIA-5.2-10]
		r.haveRecv = false
		r.up.finishRecv(d)
	} else {
		r.waiting = false                             // no message waits after this error
		r.up.async(vi.ErrorRDMAWProt, vi.OpRDMAWrite) // [VIA-4.6-8] [VIA-5.2-6]
	}
	if !r.reliable() {
		r.p.stats.Discarded++
		return true, nil
	}
	return false, r.reject(now, m, m.bad)
}

// failWrite reports an RDMA Write cut off in the middle. The error goes into the descriptor the
// Write would have consumed, if it has immediate data, and is asynchronous otherwise. [VIA-4.6-11]
// [VIA-5.2-7]
func (r *receiver) failWrite(m *rxMsg) {
	if m.h.Flags&iu.FlagImm == 0 {
		r.up.async(vi.ErrorRDMAWAbort, vi.OpRDMAWrite)
		return
	}
	if m.h.MsgID != r.mexp || r.waiting {
		return
	}
	_, bad, ok := r.up.takeRecv()
	if !ok {
		return
	}
	r.up.finishRecv(vi.Delivery{Length: m.got.next(), RemoteWrite: true, Status: bad | vi.StatusPartialError})
}

// serveRead checks the memory range named by an RDMA Read, and queues the answer. If the check
// fails, serveRead returns false and the failure. A Read consumes no receive descriptor.
// [FCVI-5.2.4-2] [VIA-4.3-1]
func (r *receiver) serveRead(_ fc.Time, m *rxMsg, _ vi.Delivery) (bool, *failure) {
	h := &m.h
	allowed, probe := true, isProbe(h)
	if !probe {
		allowed = r.up.check(h.RmtHandle, h.RmtVA, h.Total, false)
	}
	switch {
	case h.Flags&iu.FlagRspRqd == 0 || r.answers.reads() >= max(1, int(r.attrs.MaxReads)):
		return false, r.violation(h.MsgID)
	case !allowed:
		r.up.async(vi.ErrorRDMARProt, vi.OpRDMARead) // [VIA-4.6-14] [VIA-5.2-8]
		reason := iu.RDMAReadProt
		if !r.attrs.Read {
			reason = iu.RDMAReadOff
		}
		return false, r.answers.refuse(m, reason)
	}
	r.p.stats.DeliveredMessages++
	if !probe {
		r.traffic.ReceivedMessages++
	}
	a := answer{op: iu.ReadResp, id: h.MsgID, oxid: m.oxid, rxid: m.rxid, va: h.RmtVA, mh: h.RmtHandle, n: h.Total, probe: probe}
	if r.unasked { // this answer also answers the streamed messages before it
		a.flags |= iu.FlagCum
		r.unasked = false
	}
	r.answers.add(a)
	return true, nil
}
