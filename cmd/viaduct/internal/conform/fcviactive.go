package conform

import (
	"bytes"
	"net/netip"
	"slices"
	"time"

	"viaduct/internal/fc"
	"viaduct/internal/fc/fcip"
	"viaduct/internal/wire/iu"
)

// An fcviCall is a CONNECT_RQST of the peer, to be answered by the case.
type fcviCall struct {
	*fcviEnd
	u *fcviUnit
	q iu.ConnectPayload
}

// fcviCalled accepts a link opened by the peer, and reads the CONNECT_RQST. set may alter the
// emulated fabric before the peer's login is answered; nil leaves the fabric.
func (t *T) fcviCalled(set func(s *fabric)) *fcviCall {
	s := t.linkedBy()
	if set != nil {
		set(s)
	}
	v := &fcviCall{fcviEnd: &fcviEnd{fcEnd: s.fcEnd, at: fabricPeer, open: map[fcviKey]*fcviUnit{}}}
	v.called(t.g.Patience, false)
	return v
}

// called reads a CONNECT_RQST. If retry is true, the request must be a repeated attempt.
func (v *fcviCall) called(within time.Duration, retry bool) {
	t := v.t
	u, e := v.unit(within)
	t.check(e == whole, "FCVI-5.3.2-1", "no CONNECT_RQST: %v", e)
	t.check(u.h.Op == iu.ConnectRqst, "FCVI-5.3.2-1", "%v in place of a CONNECT_RQST", u.h.Op)
	t.check(v.sw.found && !v.sw.left, "FCFS-2.7-8", "a CONNECT_RQST without a login")
	t.check(u.h.Flags&^iu.FlagRetry == iu.ClientServer.Flags(), "FCVI-5.9.4-7",
		"flags of a CONNECT_RQST are %#02x", uint8(u.h.Flags))
	t.check(u.h.Flags&iu.FlagRetry != 0 == retry, "FCVI-8.5-2", "attempt %d has flags %#02x",
		u.h.MsgID, uint8(u.h.Flags))
	t.check(u.first.OXID < fc.ServiceOXID, "FCVI-5.4-1", "OX_ID of a CONNECT_RQST is %#04x", u.first.OXID)
	t.check(u.first.RXID == fc.Unassigned, "FCVI-5.2.1-9", "RX_ID of a CONNECT_RQST is %#04x", u.first.RXID)
	t.check(u.n == 1 && iu.LongLen+len(u.data) <= fc.MinRxSize, "FCVI-6.8-4",
		"a CONNECT_RQST of %d frames with %d bytes", u.n, iu.LongLen+len(u.data))
	u.fctl(t, "FCVI-5.8-7", iu.Use{})
	t.check(len(u.data) >= iu.ConnectRqstLen, "FCVI-6.8-1", "a payload of %d bytes in a CONNECT_RQST", len(u.data))
	q, _, err := fcviCodec.ParseConnectRqst(u.data)
	t.check(err == nil, "FCVI-6.8-1", "CONNECT_RQST: %v", err)
	t.check(q.Handle != 0, "FCVI-4-4", "the peer's FCVI_HANDLE is 0")
	v.u, v.q = u, q
}

// response sends a CONNECT_RESP1 or RESP3 on the peer's exchange. cnt is the SEQ_CNT of the first
// frame.
func (v *fcviCall) response(op iu.Opcode, cnt uint16, reason iu.Reason, use iu.Use, payload []byte) {
	h := iu.Header{Op: op, Handle: v.q.Handle, Flags: v.u.h.Flags & (iu.FlagModeMask | iu.FlagRetry),
		MsgID: v.u.h.MsgID, Total: v.u.h.Total, Param: iu.Status{Reason: reason}.Param()}
	switch {
	case reason == iu.Pending:
		h.Flags |= iu.FlagPend
	case reason.Class() == iu.ConnectGood:
		h.Flags |= iu.FlagPos
	}
	v.emit(h, payload, fc.Header{OXID: v.u.first.OXID, RXID: v.rx(), SeqCnt: cnt}, use, nil)
}

// rx returns our RX_ID for the exchange of the set-up.
func (v *fcviCall) rx() uint16 { return 0x2345 }

// accept sends an accepting RESP1. change alters the decoded payload, and bytesOf the encoded
// payload; both may be nil.
func (v *fcviCall) accept(cnt uint16, change func(a *iu.AcceptPayload), bytesOf func(b []byte) []byte) {
	own := v.payload()
	local := v.q.Remote
	local.Discriminator = v.t.g.Disc
	a := iu.AcceptPayload{Handle: own.Handle, InitialMsgID: own.InitialMsgID, Local: local, Attributes: v.q.Attributes}
	a.Attributes.Write, a.Attributes.Read = true, true
	if change != nil {
		change(&a)
	}
	b := fcviCodec.AppendConnectResp1(nil, &a)
	if bytesOf != nil {
		b = bytesOf(b)
	}
	v.conn = v.u.h.Total
	v.peer = iu.AcceptPayload{Handle: v.q.Handle, InitialMsgID: v.q.InitialMsgID, Attributes: v.q.Attributes}
	v.want = v.q.InitialMsgID
	v.response(iu.ConnectResp1, cnt, iu.Accepted, iu.Use{}, b)
}

// resp2 reads the answer to RESP1.
func (v *fcviCall) resp2() *fcviUnit {
	t := v.t
	u, e := v.unit(t.g.Patience)
	if e != whole && e != quiet && v.sw.ratov != 0 { // after a loss, the peer's set-up may have timed out
		t.again("FCVI-5.3.2-1", "no CONNECT_RESP2: %v", e)
	}
	t.check(e == whole, "FCVI-5.3.2-1", "no CONNECT_RESP2: %v", e)
	if u.h.Op == iu.ConnectRqst {
		t.again(t.c.Rows[0], "the CONNECT_RQST comes again, although it was answered")
	}
	t.check(u.h.Op == iu.ConnectResp2, "FCVI-5.3.2-1", "%v in place of a CONNECT_RESP2", u.h.Op)
	t.check(u.first.OXID == v.u.first.OXID && u.first.FCtl&fc.FCtlExchResponder == 0, "FCVI-5.3.2-2",
		"RESP2 is on exchange %#04x, expected on %#04x", u.first.OXID, v.u.first.OXID)
	t.check(u.first.RXID == v.rx(), "FCVI-5.2.1-9", "RX_ID of RESP2 is %#04x, assigned was %#04x", u.first.RXID, v.rx())
	t.check(u.first.SeqCnt == v.u.first.SeqCnt+uint16(v.u.n), "FCVI-5.5-3",
		"SEQ_CNT of RESP2 is %d, that of CONNECT_RQST was %d", u.first.SeqCnt, v.u.first.SeqCnt)
	t.check(u.h.MsgID == v.u.h.MsgID, "FCVI-5.9.6-4",
		"the attempt number of RESP2 is %d, that of CONNECT_RQST was %d", u.h.MsgID, v.u.h.MsgID)
	t.check(u.h.Total == v.u.h.Total, "FCVI-5.3.2-3",
		"FCVI_CONNECTION_ID of RESP2 is %#x, that of CONNECT_RQST was %#x", u.h.Total, v.u.h.Total)
	t.check((u.h.Flags^v.u.h.Flags)&(iu.FlagModeMask|iu.FlagRetry) == 0, "FCVI-5.9.4-8",
		"flags of RESP2 are %#02x, those of CONNECT_RQST were %#02x", uint8(u.h.Flags), uint8(v.u.h.Flags))
	return u
}

// confirmed checks that the peer confirms with RESP2.
func (v *fcviCall) confirmed() {
	t := v.t
	u := v.resp2()
	t.check(u.h.Status().Reason == iu.Confirmed, "FCVI-6.10-1", "RESP2 says %v", u.h.Status().Reason)
	t.check(u.h.Flags&iu.FlagPos != 0, "FCVI-5.9.4-8", "a RESP2 that confirms without the flag POS")
	u.fctl(t, "FCVI-5.8-9", iu.Use{})
}

// established completes the set-up with RESP3.
func (v *fcviCall) established() { v.response(iu.ConnectResp3, 1, iu.Confirmed, iu.Use{}, nil) }

// fcviAnswered completes the set-up of a connection opened by the peer, at Reliable Reception. With
// another level, the case ends as not observable.
func (t *T) fcviAnswered() *fcviCall {
	v := t.fcviCalled(nil)
	if v.q.Attributes.Reliability != iu.ReliableReception {
		t.hidden("the peer asks for %v; these cases are for Reliable Reception", v.q.Attributes.Reliability)
	}
	v.accept(0, nil, nil)
	v.confirmed()
	v.established()
	return v
}

// readMessage reads the peer's next message. The case ends as not observable if the peer sends
// nothing, or begins with an RDMA operation.
func (v *fcviEnd) readMessage() {
	t := v.t
	u, e := v.unit(t.g.Patience)
	if e == quiet {
		t.hidden("the peer sends nothing")
	}
	t.check(e == whole, t.c.Rows[0], "the peer ends the link: %v", e)
	switch u.h.Op {
	case iu.SendRqst:
		v.take(u)
	case iu.WriteRqst, iu.ReadRqst:
		t.hidden("the peer begins with a %v, which this case does not follow", u.h.Op)
	case iu.DisconnectRqst:
		t.fail(t.c.Rows[0], "the peer disconnects: %v", u.h.Status().Reason)
	default:
		t.fail("FCVI-5.1-9", "%v unasked", u.h.Op)
	}
}

// deliver sends the peer's latest message back to the peer, and waits for the response.
func (v *fcviEnd) deliver(row string, change func(f *fc.Frame)) {
	t := v.t
	ox := v.send(iu.Header{Op: iu.SendRqst}, v.heard, change)
	for {
		u, e := v.unit(t.g.Patience)
		t.check(e == whole, row, "no response to a Send at Reliable Reception: %v", e)
		switch u.h.Op {
		case iu.SendRqst:
			v.take(u)
		case iu.SendResp:
			t.check(u.first.OXID == ox, "FCVI-5.2.1-3", "the response is on exchange %#04x, expected on %#04x",
				u.first.OXID, ox)
			v.responded(row, u)
			return
		case iu.DisconnectRqst:
			t.fail(row, "the peer disconnects: %v", u.h.Status().Reason)
		default:
			t.fail("FCVI-5.1-9", "%v unasked", u.h.Op)
		}
	}
}

// refusedResp1 returns a case with an accepting RESP1 the peer must refuse.
func refusedResp1(name, text, row string, reasons []iu.Reason, change func(a *iu.AcceptPayload)) Case {
	return Case{Name: "fcvi/" + name, Proto: "fcvi", Role: Active, Rows: list(row, "FCVI-5.3.2-8"), Text: text, run: func(t *T) {
		v := t.fcviCalled(nil)
		v.accept(0, change, nil)
		u := v.resp2()
		is := u.h.Status().Reason
		t.check(is != iu.Confirmed, row, "it is confirmed")
		t.check(slices.Contains(reasons, is), "FCVI-5.3.2-8", "the answer is %v, expected %v", is, reasons)
		t.check(u.h.Flags&iu.FlagPos == 0, "FCVI-5.9.4-8", "%v with the flag POS", is)
		u.fctl(t, "FCVI-5.8-9", iu.Use{End: true})
	}}
}

// unconfirmed returns a case with an unparsable RESP1. The peer must not confirm the RESP1.
func unconfirmed(name, text, row string, bytesOf func(b []byte) []byte) Case {
	return Case{Name: "fcvi/" + name, Proto: "fcvi", Role: Active, Rows: list(row), Text: text, run: func(t *T) {
		v := t.fcviCalled(nil)
		v.accept(0, nil, bytesOf)
		if u, e := v.unit(t.g.Quiet); e == whole {
			t.check(u.h.Op != iu.ConnectResp2 || u.h.Status().Reason != iu.Confirmed, row, "it is confirmed")
		}
	}}
}

// wrongEcho returns a case with a wrong echo of the special frame, after which the peer must not
// open a link.
func wrongEcho(name, text string, change func(s *fcip.Special)) Case {
	return Case{Name: "fcvi/" + name, Proto: "fcvi", Role: Active, Rows: list("FCFS-2.4-3"), Text: text, run: func(t *T) {
		c := t.connect()
		s := t.specialOf(c)
		change(&s)
		t.write(c, s.Append(nil))
		t.gone(c, "FCFS-2.4-3", "to this echo")
		for _, c := range t.conns {
			c.Close()
		}
		t.linkedBy() // the peer is still alive
	}}
}

// retryTime is the R_A_TOV for cases with another attempt of the peer, because a peer waits for
// twice the R_A_TOV.
const retryTime = 500 * time.Millisecond

// pendingTime is R_A_TOV where the peer waits for the final RESP1. The peer tries again after twice
// the R_A_TOV, and the FCVI_ULP_TIMEOUT is three times as long.
const pendingTime = time.Second

var fcviActive = slices.Concat([]Case{
	{Name: "fcvi/active-link", Proto: "fcvi", Role: Active, Rows: list("FCFS-2.4-1", "FCFS-2.4-3", "FCFS-2.4-7"), Text: "a special frame opens the link; when the peer has the name of the switch, it connects again, with another nonce",
		run: func(t *T) { t.linkedBy() }},
	wrongEcho("active-other-nonce", "an echo that differs does not open a link", func(s *fcip.Special) { s.Nonce++ }),
	wrongEcho("active-no-name", "an echo without the name of the switch does not open a link",
		func(s *fcip.Special) { s.Destination = 0 }),
	{Name: "fcvi/active-login", Proto: "fcvi", Role: Active, Rows: list("FCFS-2.7-3", "FCFS-2.7-1", "FCFS-2.7-2", "FCFS-2.7-5", "FCFS-2.6-1", "FCFS-2.1-4", "FCFS-2.2-2", "FCFS-2.10-2", "FCVI-5.4-1", "FCVI-5.8-2"), Text: "the peer logs in to the fabric first, and to our port before it calls",
		run: func(t *T) { t.fcviCalled(nil) }},
	{Name: "fcvi/active-directory", Proto: "fcvi", Role: Active, Rows: list("FCVI-7.6-2", "FCVI-7.6-1", "FCVI-7.6-3", "FCFS-2.11-1", "FCFS-2.11-3"), Text: "the peer registers with the directory and asks it for the address",
		run: func(t *T) {
			v := t.fcviCalled(nil)
			t.check(v.sw.known(), "FCVI-7.6-2",
				"of names, FC-4 types and FC-4 features only these are registered: %v", v.sw.registered)
			if v.q.Remote.IP().IsValid() {
				t.check(v.sw.asked != [16]byte{}, "FCVI-7.6-3", "the peer calls %v without a GID_IPP", v.q.Remote)
			}
		}},
	{Name: "fcvi/active-types", Proto: "fcvi", Role: Active, Rows: list("FCVI-7.6-4"), Text: "a port without FC-VI is not logged in to",
		run: func(t *T) { t.fcviCalled(func(s *fabric) { s.other = true }) }},
	{Name: "fcvi/active-misnamed", Proto: "fcvi", Role: Active, Rows: list("FCVI-7.4-3"), Text: "a port that logs in under another name than the directory has is not called",
		run: func(t *T) {
			s := t.linkedBy()
			s.misnamed = true
			for {
				f, e := s.next(t.g.Patience)
				t.check(e == whole, "FCVI-7.4-3", "no LOGO from the peer: %v", e)
				t.check(f.Type != fc.TypeFCVI, "FCVI-7.4-3", "the peer calls a port that has another name")
				if s.left {
					return
				}
			}
		}},
	{Name: "fcvi/active-request", Proto: "fcvi", Role: Active, Rows: list("FCVI-6.8-1", "FCVI-5.3.2-3", "FCVI-5.9.4-7", "FCVI-5.9.6-4", "FCVI-5.8-7", "FCVI-6.8-4", "FCVI-4-4", "FCVI-5.4-1", "FCVI-7.3-3", "FCVI-7.3-5", "FCVI-5.7-4"), Text: "the CONNECT_RQST is well formed and names the address",
		run: func(t *T) {
			v := t.fcviCalled(nil)
			t.check(v.u.h.MsgID == attempt, "FCVI-5.9.6-4", "the first attempt has the number %d", v.u.h.MsgID)
			t.check(string(v.q.Remote.Discriminator) == string(t.g.Disc), "FCVI-6.8-1",
				"the discriminator called is %q, that of the address is %q", v.q.Remote.Discriminator, t.g.Disc)
			if a := v.q.Remote.IP(); a.IsValid() && v.sw.asked != [16]byte{} {
				t.check(a.Unmap() == iu.NetAddress{HostLen: 16, Host: v.sw.asked}.IP(),
					"FCVI-6.8-1", "the peer calls %v, and has asked for %v", a, netip.AddrFrom16(v.sw.asked))
			}
			a := v.q.Attributes
			t.check(a.Reliability.Valid(), "FCVI-7.3-2", "the reliability is %v", a.Reliability)
			t.check(a.MaxUnacked > 0 || a.Reliability != iu.ReliableReception, "FCVI-7.3-3", "MaxUnacked is 0")
			t.check(a.MaxTransfer > 0, "FCVI-7.3-5", "MaxTransferSize is 0")
			t.check(int64(a.MaxTransfer) <= fc.MaxSeqCount*int64(fcRxSize-iu.LongLen), "FCVI-5.7-4",
				"MaxTransferSize is %d", a.MaxTransfer)
		}},
	{Name: "fcvi/active-unforeseeable", Proto: "fcvi", Role: Active, Rows: list("FCVI-6.8-2", "FCVI-5.9.10-2"), Text: "the first message id and the connection id of two set-ups differ",
		run: func(t *T) {
			a := t.fcviCalled(nil)
			for _, c := range t.conns {
				c.Close()
			}
			b := t.fcviCalled(nil)
			t.check(a.q.InitialMsgID != b.q.InitialMsgID, "FCVI-6.8-2", "the first message id is %#x twice",
				uint32(a.q.InitialMsgID))
			t.check(a.u.h.Total>>16 != b.u.h.Total>>16, "FCVI-5.9.10-2", "the connection ids are %#x and %#x",
				a.u.h.Total, b.u.h.Total)
		}},
	{Name: "fcvi/active-handshake", Proto: "fcvi", Role: Active, Rows: list("FCVI-5.3.2-1", "FCVI-5.3.2-2", "FCVI-5.3.2-3", "FCVI-5.3.2-9", "FCVI-6.10-1", "FCVI-5.8-9", "FCVI-5.9.4-8", "FCVI-5.9.6-4", "FCVI-5.5-3", "FCVI-5.2.1-9"), Text: "an accepting RESP1 is confirmed on the same exchange, and no message comes before RESP3",
		run: func(t *T) {
			v := t.fcviCalled(nil)
			v.accept(0, nil, nil)
			v.confirmed()
			u, e := v.unit(t.g.Quiet)
			if e == whole && u.h.Op == iu.ConnectRqst {
				t.again(t.c.Rows[0], "the CONNECT_RQST comes again")
			}
			t.check(e != whole, "FCVI-5.3.2-9", "a %v comes before RESP3", opOf(u))
			t.check(e == quiet, "FCVI-5.3.2-9", "the link ends before RESP3: %v", e)
			v.established()
			v.readMessage()
		}},
	{Name: "fcvi/active-implicit", Proto: "fcvi", Role: Active, Rows: list("FCVI-5.3.2-4", "FCVI-5.3.2-9"), Text: "a message of the side called counts as RESP3",
		run: func(t *T) {
			v := t.fcviCalled(nil)
			if v.q.Attributes.Reliability != iu.ReliableReception {
				t.hidden("the peer asks for %v", v.q.Attributes.Reliability)
			}
			v.accept(0, nil, nil)
			v.confirmed()
			v.heard = pattern(10)
			v.deliver("FCVI-5.3.2-4", nil)
		}},
	{Name: "fcvi/active-longer-resp1", Proto: "fcvi", Role: Active, Rows: list("FCVI-6.9-2"), Text: "a longer payload of RESP1 is read in its known prefix",
		run: func(t *T) {
			v := t.fcviCalled(nil)
			v.accept(0, func(a *iu.AcceptPayload) { a.Security = pattern(20) }, nil)
			v.confirmed()
		}},
	{Name: "fcvi/active-pending", Proto: "fcvi", Role: Active, Rows: list("FCVI-8.3-4"), Text: "after RESP1(PENDING) the CONNECT_RQST does not come again",
		run: func(t *T) {
			v := t.fcviCalled(func(s *fabric) { s.ratov = pendingTime })
			v.response(iu.ConnectResp1, 0, iu.Pending, iu.Use{Pending: true}, nil)
			if u, e := v.unit(5 * pendingTime / 2); e == whole && u.h.Op == iu.ConnectRqst {
				t.again(t.c.Rows[0], "the CONNECT_RQST comes again after PENDING")
			} else if e == whole {
				t.fail("FCVI-8.3-4", "the peer does not wait, but sends a %v", opOf(u))
			} else if e != quiet { // on a slow link the peer's set-up may have timed out
				t.again("FCVI-8.3-4", "the peer does not wait: %v", e)
			}
			v.accept(1, nil, nil)
			v.confirmed()
		}},
	{Name: "fcvi/active-rejected", Proto: "fcvi", Role: Active, Rows: list("FCVI-8.5-4", "FCVI-5.3.2-7"), Text: "RESP1(NO_MATCH) ends the set-up",
		run: func(t *T) {
			v := t.fcviCalled(func(s *fabric) { s.ratov = retryTime })
			v.response(iu.ConnectResp1, 0, iu.NoMatch, iu.Use{End: true}, nil)
			for _, within := range []time.Duration{2 * retryTime, t.g.Quiet} {
				u, e := v.unit(within)
				if e == whole && u.h.Op == iu.ConnectRqst && u.h.Total == v.u.h.Total {
					t.again(t.c.Rows[0], "the CONNECT_RQST comes again after NO_MATCH")
				}
				t.check(e != whole || u.h.Op != iu.ConnectResp2, "FCVI-5.3.2-7", "a %v answers a rejection", opOf(u))
			}
		}},
	{Name: "fcvi/active-retry", Proto: "fcvi", Role: Active, Rows: list("FCVI-8.5-2", "FCVI-8.5-1", "FCVI-C-2", "FCVI-5.9.6-4"), Text: "a CONNECT_RQST without an answer comes again, as another attempt at the same connection",
		run: func(t *T) {
			v := t.fcviCalled(func(s *fabric) { s.ratov = retryTime })
			first := *v
			v.called(2*retryTime+t.g.Patience, true)
			t.check(v.u.first.OXID != first.u.first.OXID, "FCVI-8.5-2",
				"the next attempt is on the same exchange %#04x", v.u.first.OXID)
			t.check(v.u.h.Total == first.u.h.Total, "FCVI-8.5-2", "the connection id changes from %#x to %#x",
				first.u.h.Total, v.u.h.Total)
			t.check(v.u.h.MsgID == first.u.h.MsgID+1, "FCVI-5.9.6-4", "the attempt after %d has the number %d",
				first.u.h.MsgID, v.u.h.MsgID)
			t.check(v.q.Handle == first.q.Handle && v.q.InitialMsgID == first.q.InitialMsgID,
				"FCVI-8.5-2", "handle and first message id change")
			t.check(v.sw.aborted[first.u.first.OXID], "FCVI-8.5-2", "the exchange of the attempt before is not aborted")
			v.accept(0, nil, nil)
			v.confirmed()
		}},
	refusedResp1("active-reliability", "a RESP1 of another reliability level is refused", "FCVI-7.3-4", []iu.Reason{iu.InvalidReliability}, func(a *iu.AcceptPayload) {
		a.Attributes.Reliability = iu.ReliableDelivery
	}),
	refusedResp1("active-no-window", "a RESP1 with MaxUnacked of zero is refused", "FCVI-7.3-3",
		[]iu.Reason{iu.InvalidReliability, iu.NoResources}, func(a *iu.AcceptPayload) { a.Attributes.MaxUnacked = 0 }),
	refusedResp1("active-no-transfer", "a RESP1 with MaxTransferSize of zero is refused",
		"FCVI-7.3-5", []iu.Reason{iu.InvalidMTS}, func(a *iu.AcceptPayload) { a.Attributes.MaxTransfer = 0 }),
	unconfirmed("active-version", "a RESP1 of a version that is not known is not confirmed",
		"FCVI-6.9-3", func(b []byte) []byte { b[0] = 9; return b }),
	unconfirmed("active-short-resp1", "a RESP1 whose payload is too short is not confirmed",
		"FCVI-6.9-2", func(b []byte) []byte { return b[:100] }),
	{Name: "fcvi/active-messages", Proto: "fcvi", Role: Active, Rows: list("FCVI-5.9.6-1", "FCVI-5.1-4", "FCVI-5.1-9", "FCVI-5.8-5", "FCVI-5.8-6", "FCVI-5.8-7", "FCVI-5.8-8", "FCVI-5.9.4-5", "FCVI-5.9.7-1", "FCVI-6.3-1"), Text: "the peer's messages have consecutive ids from the one announced, and ours are answered",
		run: func(t *T) {
			v := t.fcviAnswered()
			for range 3 {
				v.readMessage()
				v.deliver("FCVI-5.2.2-4", nil)
			}
		}},
	{Name: "fcvi/active-disconnect", Proto: "fcvi", Role: Active, Rows: list("FCVI-5.3.5-2", "FCVI-6.13-1", "FCVI-5.8-8"), Text: "a DISCONNECT_RQST is answered",
		run: func(t *T) {
			t.ready().disconnect("FCVI-5.3.5-2")
		}},
	{Name: "fcvi/active-ignored", Proto: "fcvi", Role: Active, Rows: list("FCVI-5.9.4-1", "FCVI-5.9.5-1", "FCVI-5.1-5", "FCVI-5.8-3", "FCVI-5.2.1-8"), Text: "reserved flags and bytes, CS_CTL, and another R_CTL of Device_Data are not checked",
		run: func(t *T) {
			v := t.fcviAnswered()
			v.readMessage()
			v.deliver("FCVI-5.9.5-1", func(f *fc.Frame) {
				f.Opt = bytes.Clone(f.Opt)
				f.Opt[5], f.Opt[6], f.Opt[7] = f.Opt[5]|0x40, 1, 2
				f.RCtl, f.CSCtl, f.FCtl = fc.RCtlSolData, 5, f.FCtl&^fc.FCtlFirstSeq
			})
		}},
}, activeToo("bad-crc", "bad-write", "bad-read", "unknown-handle", "unknown-exchange",
	"unknown-service", "gap", "hole", "opcode", "level", "header-size", "too-long-write"))

// activeToo returns the cases of fcviPassive with the given names, for a dialling peer.
func activeToo(names ...string) (cs []Case) {
	for _, c := range fcviPassive {
		if name := c.Name[len("fcvi/"):]; slices.Contains(names, name) {
			c.Name, c.Role = "fcvi/active-"+name, Active
			cs = append(cs, c)
		}
	}
	return cs
}
