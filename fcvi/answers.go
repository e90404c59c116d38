package fcvi

import (
	"viaduct/internal/fc"
	"viaduct/internal/wire/iu"
	"viaduct/vi"
)

// An answer is a response this side must send. Answers are sent in the order of requests.
type answer struct {
	op     iu.Opcode
	id     iu.MsgID
	flags  iu.Flags
	status uint32
	oxid   uint16
	rxid   uint16
	va     uint64 // address of a READ_RESP's data
	mh     uint32
	n      uint32
	off    uint32
	cnt    uint16
	seq    uint8
	begun  bool
	probe  bool // the response answers a probe, so the traffic counters leave it out
}

func (c *conn) answer(a answer) {
	c.tx.answers.push(a)
	c.p.activate(c)
}

// sendAnswer sends the next frames of the first response in line, at most room frames, and returns
// their number. At least one response must be queued. [FCVI-5.2.5-5]
func (c *conn) sendAnswer(now fc.Time, room int) int {
	t, p := &c.tx, c.p
	a := t.answers.at(0)
	first := !a.begun
	if first {
		a.begun = true
		a.seq = c.remote.NextSeqID()
	}
	h := &p.hdr
	*h = iu.Header{Handle: c.rHandle, Op: a.op, MsgID: a.id, Flags: a.flags, Param: a.status} // [FCVI-5.9.6-3] [FCVI-6.3-1] [FCVI-6.5-1]
	var payload []byte
	use := iu.Use{Last: true}
	frames, size := 1, c.payloadFor(a.op)
	if a.n > 0 { // a READ_RESP [FCVI-5.2.4-3]
		frames, use.Last = before(int(a.n-a.off), size, room)
		n := frames * size
		if use.Last {
			n = int(a.n - a.off)
		}
		var ok bool
		payload, ok = c.up.fetch(a.mh, a.va, a.n, a.off, n, p.scratch[:min(n, size)])
		if !ok {
			// The region was deregistered after the request was checked.
			bad := *a
			c.up.async(vi.ErrorRDMARProt, vi.OpRDMARead)
			if bad.off == 0 {
				c.answerError(now, &rxMsg{h: iu.Header{Op: iu.ReadRqst, MsgID: bad.id}, oxid: bad.oxid, rxid: bad.rxid},
					iu.RDMAReadProt)
			} else {
				c.fail2(now, iu.PortInternal, true)
			}
			return 1
		}
	}
	f := p.frame(fc.RCtl(p.cfg.codec.RCtl(a.op)), p.cfg.codec.DFCtl(a.op), fc.FCtl(p.cfg.codec.FCtl(a.op, use)))
	f.SeqID, f.SeqCnt, f.OXID, f.RXID = a.seq, a.cnt, a.oxid, a.rxid
	f.Opt, f.Payload = p.cfg.codec.AppendHeader(p.opt[:0], h), payload
	f.Param = a.off // relative offset, which is 0 without data
	if use.Last {   // step has checked that the other port can receive
		p.np.Send(now, c.remote, c.class, first, f)
	} else {
		frames = len(payload) / size
		payload = payload[:frames*size]
		p.np.SendRun(now, c.remote, c.class, first, f, size, payload)
	}
	a.cnt += uint16(frames)
	a.off += uint32(len(payload))
	p.stats.SentBytes += uint64(len(payload))
	c.traffic.SentBytes += uint64(len(payload))
	if use.Last {
		p.stats.SentIUs++
		if a.op == iu.ReadResp && a.flags&iu.FlagErr == 0 && !a.probe {
			c.traffic.ServedReads++
		}
		t.answers.drop(1)
	}
	return frames
}

// serveRead checks the memory range named by an RDMA Read, and queues the answer. If the check
// fails, serveRead ends the connection and returns false. A Read consumes no receive descriptor.
// [FCVI-5.2.4-2] [VIA-4.3-1]
func (c *conn) serveRead(now fc.Time, m *rxMsg, _ vi.Delivery) bool {
	h := &m.h
	reads := 0
	for i := range c.tx.answers.len() {
		if c.tx.answers.at(i).op == iu.ReadResp {
			reads++
		}
	}
	allowed, probe := true, isProbe(h)
	if !probe {
		allowed = c.up.check(h.RmtHandle, h.RmtVA, h.Total, false)
	}
	switch {
	case h.Flags&iu.FlagRspRqd == 0 || reads >= max(1, int(c.attrs.MaxReads)):
		c.violation(now, h.MsgID)
		return false
	case !allowed:
		c.up.async(vi.ErrorRDMARProt, vi.OpRDMARead) // [VIA-4.6-14] [VIA-5.2-8]
		reason := iu.RDMAReadProt
		if !c.attrs.Read {
			reason = iu.RDMAReadOff
		}
		c.answerError(now, m, reason)
		return false
	}
	c.p.stats.DeliveredMessages++
	if !probe {
		c.traffic.ReceivedMessages++
	}
	a := answer{op: iu.ReadResp, id: h.MsgID, oxid: m.oxid, rxid: m.rxid, va: h.RmtVA, mh: h.RmtHandle, n: h.Total, probe: probe}
	if c.rx.unasked { // this answer also answers the streamed messages before it
		a.flags |= iu.FlagCum
		c.rx.unasked = false
	}
	c.answer(a)
	return true
}

// answerError queues an ERR response and ends the connection at this side. The originator then
// disconnects; otherwise this side does after R_A_TOV. [FCVI-5.2.2-9] [FCVI-5.2.4-5]
func (c *conn) answerError(now fc.Time, m *rxMsg, reason iu.Reason) {
	c.rx.failed, c.rx.failedID = reason, m.h.MsgID
	c.tx.answers.push(answer{op: m.h.Op.Response(), id: m.h.MsgID, flags: iu.FlagErr,
		status: iu.Status{Reason: reason}.Param(), oxid: m.oxid, rxid: m.rxid})
	c.breakNow(now, true)
	c.setState(stError)
	c.timer.Set(now + c.p.np.RATOV())
	c.p.activate(c)
}
