package conform

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"time"

	"viaduct/internal/fc"
	"viaduct/internal/wire/iu"
)

// fcviCodec defines the values of FC-VI's fields.
var fcviCodec iu.ProjectV1

// attempt is the attempt number of the first CONNECT_RQST.
const attempt = 1

// holds is the number of Patience times a peer may delay a connection set-up after a PENDING
// response.
const holds = 4

// fcTransfer is the longest message we offer.
const fcTransfer = 1 << 20

// An fcviEnd is our end of an FC-VI connection, complete or in set-up.
type fcviEnd struct {
	*fcEnd
	at     fc.Addr // the peer's port
	handle uint32  // our FCVI_HANDLE
	conn   uint32  // FCVI_CONNECTION_ID
	open   map[fcviKey]*fcviUnit
	echoed bool   // the peer is known to echo messages
	heard  []byte // data of the peer's latest message

	peer iu.AcceptPayload
	msg  iu.MsgID // ID of our next message
	want iu.MsgID // ID of the peer's next message
}

// An fcviKey identifies a partly received Information Unit.
type fcviKey struct {
	op iu.Opcode
	id iu.MsgID
	ox uint16
}

// An fcviUnit is an Information Unit of the peer, possibly with more frames to come.
type fcviUnit struct {
	h     iu.Header
	first fc.Header
	last  fc.FCtl
	data  []byte
	n     int // number of frames
}

// fcvi opens a link, and logs in to the fabric, to the directory and to the peer's port.
func (t *T) fcvi() *fcviEnd {
	p := t.link()
	p.fabric()
	v := &fcviEnd{fcEnd: p, at: p.port(), open: map[fcviKey]*fcviUnit{}}
	a, _ := p.login(v.at, fc.ELSPLOGI)
	p.mtu = min(fc.MaxData, int(a.RxSize))
	if n := int(a.Class[2].RxSize); n >= fc.MinRxSize {
		p.mtu = min(p.mtu, n)
	}
	return v
}

// payload returns the payload of a CONNECT_RQST.
func (v *fcviEnd) payload() *iu.ConnectPayload {
	var b [12]byte
	rand.Read(b[:])
	v.handle = binary.BigEndian.Uint32(b[:]) | 1
	v.conn = binary.BigEndian.Uint32(b[4:])
	v.msg = iu.MsgID(binary.BigEndian.Uint32(b[8:]))
	return &iu.ConnectPayload{Handle: v.handle, InitialMsgID: v.msg,
		Timeout: uint32(holds * v.t.g.Patience / time.Millisecond),
		Local:   iu.NameAddress(uint64(v.name), []byte("conform")), Remote: iu.IPAddress(v.t.host(), v.t.g.Disc),
		Attributes: iu.Attributes{Reliability: iu.ReliableReception, Write: true, Read: true,
			Holds: true, MaxTransfer: fcTransfer, MaxReads: 1, MaxUnacked: 16}}
}

// emit sends an Information Unit and returns the OX_ID. on has the ids and the first SEQ_CNT if the
// unit answers the peer's exchange, or continues an exchange.
func (v *fcviEnd) emit(h iu.Header, data []byte, on fc.Header, use iu.Use, change func(f *fc.Frame)) uint16 {
	f := fc.Frame{Header: fc.Header{RCtl: fc.RCtl(fcviCodec.RCtl(h.Op)), DID: v.at, SID: v.id,
		Type: fc.TypeFCVI, DFCtl: fcviCodec.DFCtl(h.Op),
		SeqID: v.sequence(v.at), SeqCnt: on.SeqCnt, OXID: on.OXID, RXID: on.RXID}}
	f.Opt = fcviCodec.AppendHeader(nil, &h)
	room := (min(v.mtu, fcRxSize) - len(f.Opt)) &^ 3
	for off := 0; ; off += len(f.Payload) {
		f.Payload = data[off:min(len(data), off+room)]
		use.Last = off+len(f.Payload) == len(data)
		f.SOF, f.EOF = fc.Class3.Delimiters(off == 0, use.Last)
		f.FCtl, f.Param = fc.FCtl(fcviCodec.FCtl(h.Op, use)), 0
		if h.Op.HasData() {
			f.Param = uint32(off)
		}
		g := f
		if change != nil {
			change(&g)
		}
		v.put(&g)
		f.SeqCnt++
		if use.Last {
			return f.OXID
		}
	}
}

// request sends a request on a new exchange, and returns the OX_ID. change may modify each frame;
// nil leaves the frames.
func (v *fcviEnd) request(h iu.Header, data []byte, change func(f *fc.Frame)) uint16 {
	v.ox = (v.ox + 1) & iu.LastOXID
	return v.emit(h, data, fc.Header{OXID: v.ox, RXID: fc.Unassigned}, iu.Use{Answered: true}, change)
}

// unit reads the next Information Unit, and checks the rules for all units. e is whole, or the
// reason why there is no unit.
func (v *fcviEnd) unit(within time.Duration) (*fcviUnit, end) {
	t := v.t
	for deadline := time.Now().Add(within); ; {
		f, e := v.next(time.Until(deadline))
		if e != whole {
			return nil, e
		}
		if f.Type != fc.TypeFCVI || !f.RCtl.IsDeviceData() {
			if f.RCtl == fc.RCtlELSReq && fc.CmdOf(f.Payload) == fc.ELSLOGO {
				t.again(t.c.Rows[0], "the port logs out")
			}
			continue
		}
		h, n, err := iu.ParseHeader(f.Opt)
		t.check(err == nil, "FCVI-5.1-2", "%v in a Device_Header of %d bytes", err, len(f.Opt))
		t.check(h.Op.Valid(), "FCVI-5.9.3-2", "opcode %#02x", uint8(h.Op))
		t.check(f.SID == v.at, "FCVI-5.8-2", "S_ID is %v, the port is %v", f.SID, v.at)
		t.check(n == len(f.Opt) && f.DFCtl == fcviCodec.DFCtl(h.Op), "FCVI-5.8-4",
			"DF_CTL of a %v is %#02x", h.Op, f.DFCtl)
		t.check(uint8(f.RCtl) == fcviCodec.RCtl(h.Op), "FCVI-5.1-4", "R_CTL of a %v is %#02x", h.Op, uint8(f.RCtl))
		t.check(f.CSCtl == 0, "FCVI-5.8-3", "CS_CTL is %#02x", f.CSCtl)
		t.check(f.Opt[6]|f.Opt[7] == 0, "FCVI-5.9.5-1", "bytes 6 and 7 of the Device_Header are %x", f.Opt[6:8])
		t.check(f.DataLen() <= fcRxSize, "FCVI-5.7-2", "a Data_Field of %d bytes, announced were %d",
			f.DataLen(), fcRxSize)
		switch {
		case h.Op == iu.ConnectRqst:
			t.check(h.Handle == 0, "FCVI-5.3.2-3", "FCVI_HANDLE of a CONNECT_RQST is %#x", h.Handle)
		case h.Op != iu.DisconnectRqst || h.Handle != 0: // the peer may not know the handle
			t.check(h.Handle == v.handle, "FCVI-5.9.2-1", "FCVI_HANDLE of a %v is %#x, ours is %#x",
				h.Op, h.Handle, v.handle)
		}
		if h.Op != iu.ConnectRqst && h.Op != iu.ConnectResp1 {
			t.check(len(f.Payload) == 0 || h.Op.HasData(), "FCVI-5.1-3", "a %v with %d bytes of payload",
				h.Op, len(f.Payload))
		}
		key := fcviKey{h.Op, h.MsgID, f.OXID}
		u := v.open[key]
		t.check(f.SOF.First() == (u == nil) && (f.EOF == fc.EOFt) == f.Last(), "FCVI-5.7-7",
			"%v and %v on frame %d of a %v, F_CTL %06x", f.SOF, f.EOF, f.SeqCnt, h.Op, uint32(f.FCtl))
		if u == nil {
			u = &fcviUnit{h: h, first: f.Header}
			v.open[key] = u
		}
		t.check(h == u.h, "FCVI-5.9.1-4", "the Device_Header changes within a message, from %v to %v", u.h, h)
		t.check(f.SeqID == u.first.SeqID, "FCVI-5.1-7", "SEQ_ID changes within a message, from %d to %d",
			u.first.SeqID, f.SeqID)
		t.check(f.SeqCnt == u.first.SeqCnt+uint16(u.n), "FCVI-5.8-5", "SEQ_CNT is %d after %d",
			f.SeqCnt, u.first.SeqCnt+uint16(u.n)-1)
		t.check((f.FCtl&fc.FCtlRelOffset != 0) == h.Op.HasData(), "FCVI-5.8-6", "F_CTL of a %v is %06x",
			h.Op, uint32(f.FCtl))
		t.check(int(f.Param) == len(u.data) || !h.Op.HasData() && f.Param == 0, "FCVI-5.8-6",
			"the relative offset is %d at byte %d", f.Param, len(u.data))
		u.data, u.last, u.n = append(u.data, f.Payload...), f.FCtl, u.n+1
		if f.Last() {
			delete(v.open, key)
			return u, whole
		}
	}
}

// fctl checks the F_CTL of a unit's last frame.
func (u *fcviUnit) fctl(t *T, row string, use iu.Use) {
	use.Last = true
	want := fc.FCtl(fcviCodec.FCtl(u.h.Op, use))
	t.check(u.last&^(fc.FCtlFill|fc.FCtlACKForm) == want, row, "F_CTL of a %v is %06x, expected %06x",
		u.h.Op, uint32(u.last), uint32(want))
}

// answered waits for the answer to an exchange of ours, and returns the answer.
func (v *fcviEnd) answered(row string, op iu.Opcode, ox uint16) *fcviUnit {
	return v.answeredWithin(v.t.g.Patience, row, op, ox)
}

func (v *fcviEnd) answeredWithin(within time.Duration, row string, op iu.Opcode, ox uint16) *fcviUnit {
	t := v.t
	u, e := v.reaction(within)
	t.check(e == whole, row, "no %v: %v", op, e)
	t.check(u.h.Op == op, row, "%v in place of a %v (%v)", u.h.Op, op, u.h.Status().Reason)
	t.check(u.first.OXID == ox && u.first.FCtl&fc.FCtlExchResponder != 0, "FCVI-5.2.1-3",
		"a %v on exchange %#04x, expected on %#04x", op, u.first.OXID, ox)
	t.check(u.first.RXID != fc.Unassigned, "FCVI-5.2.1-9", "RX_ID of a %v is not assigned", op)
	return u
}

// resp1 sends a CONNECT_RQST and returns the final RESP1. change may modify header and payload.
func (v *fcviEnd) resp1(q *iu.ConnectPayload, change func(h *iu.Header, b []byte) []byte) *fcviUnit {
	t := v.t
	h := iu.Header{Op: iu.ConnectRqst, Flags: iu.ClientServer.Flags(), MsgID: attempt, Total: v.conn}
	b := fcviCodec.AppendConnectRqst(nil, q)
	if change != nil {
		b = change(&h, b)
	}
	ox := v.request(h, b, nil)
	for within := t.g.Patience; ; within += holds * t.g.Patience {
		u := v.answeredWithin(within, "FCVI-5.3.2-1", iu.ConnectResp1, ox)
		t.check(u.h.Total == v.conn, "FCVI-5.3.2-3", "FCVI_CONNECTION_ID of RESP1 is %#x, sent was %#x",
			u.h.Total, v.conn)
		t.check(u.h.MsgID == h.MsgID, "FCVI-5.9.6-4", "the attempt number of RESP1 is %d, sent was %d",
			u.h.MsgID, h.MsgID)
		t.check(u.h.Flags.Mode() == h.Flags.Mode(), "FCVI-5.9.4-8", "the mode of RESP1 is %v, sent was %v",
			u.h.Flags.Mode(), h.Flags.Mode())
		reason := u.h.Status().Reason
		switch {
		case reason == iu.Pending:
			t.check(u.h.Flags&iu.FlagPend != 0, "FCVI-5.9.4-8", "PENDING without the flag PEND")
			u.fctl(t, "FCVI-5.8-9", iu.Use{Pending: true})
			continue
		case reason.Class() == iu.ConnectGood:
			t.check(u.h.Flags&iu.FlagPos != 0, "FCVI-5.9.4-8", "%v without the flag POS", reason)
			u.fctl(t, "FCVI-5.8-9", iu.Use{})
		default:
			t.check(u.h.Flags&iu.FlagPos == 0, "FCVI-5.9.4-8", "%v with the flag POS", reason)
			t.check(len(u.data) == 0, "FCVI-5.3.2-7", "a rejection with %d bytes of payload", len(u.data))
			u.fctl(t, "FCVI-5.3.2-7", iu.Use{End: true})
		}
		return u
	}
}

// accepted checks an accepting RESP1.
func (v *fcviEnd) accepted(u *fcviUnit) {
	t := v.t
	r := u.h.Status().Reason
	t.check(r == iu.Accepted || r == iu.AlreadyConnected, "FCVI-5.3.2-1", "the connection is refused: %v", r)
	t.check(len(u.data) >= iu.ConnectResp1Len, "FCVI-6.9-1", "a payload of %d bytes in RESP1", len(u.data))
	a, _, err := fcviCodec.ParseConnectResp1(u.data)
	t.check(err == nil, "FCVI-6.9-1", "RESP1: %v", err)
	t.check(a.Handle != 0, "FCVI-4-4", "the peer's FCVI_HANDLE is 0")
	t.check(string(a.Local.Discriminator) == string(t.g.Disc), "FCVI-6.9-1",
		"the discriminator in RESP1 is %q, called was %q", a.Local.Discriminator, t.g.Disc)
	t.check(a.Attributes.Reliability == iu.ReliableReception, "FCVI-7.3-4", "the peer answers with %v",
		a.Attributes.Reliability)
	t.check(a.Attributes.MaxUnacked > 0, "FCVI-7.3-3", "MaxUnacked is 0")
	t.check(a.Attributes.MaxTransfer > 0, "FCVI-7.3-5", "MaxTransferSize is 0")
	v.peer, v.want = a, a.InitialMsgID
}

// confirm answers RESP1 by RESP2 and waits for RESP3.
func (v *fcviEnd) confirm(u *fcviUnit) {
	t := v.t
	h := iu.Header{Op: iu.ConnectResp2, Handle: v.peer.Handle,
		Flags: u.h.Flags&(iu.FlagModeMask|iu.FlagRetry) | iu.FlagPos, MsgID: u.h.MsgID,
		Total: v.conn, Param: iu.Status{Reason: iu.Confirmed}.Param()}
	ox := v.emit(h, nil, fc.Header{OXID: u.first.OXID, RXID: u.first.RXID, SeqCnt: 1}, iu.Use{}, nil)
	r := v.answered("FCVI-5.3.2-1", iu.ConnectResp3, ox)
	t.check(r.h.Status().Reason == iu.Confirmed, "FCVI-6.11-1", "RESP3 says %v", r.h.Status().Reason)
	t.check(r.h.MsgID == u.h.MsgID, "FCVI-5.9.6-4", "the attempt number of RESP3 is %d, expected %d",
		r.h.MsgID, u.h.MsgID)
	t.check(r.h.Total == v.conn, "FCVI-5.3.2-3", "FCVI_CONNECTION_ID of RESP3 is %#x, sent was %#x", r.h.Total, v.conn)
	t.check(r.first.SeqCnt == u.first.SeqCnt+uint16(u.n), "FCVI-5.5-3",
		"SEQ_CNT of RESP3 is %d, that of RESP1 was %d", r.first.SeqCnt, u.first.SeqCnt)
	r.fctl(t, "FCVI-5.3.2-2", iu.Use{})
}

// fcviOpen opens a connection.
func (t *T) fcviOpen() *fcviEnd {
	v := t.fcvi()
	u := v.resp1(v.payload(), nil)
	v.accepted(u)
	v.confirm(u)
	return v
}

// send sends a message at Reliable Reception without waiting for the response, and returns the
// OX_ID.
func (v *fcviEnd) send(h iu.Header, data []byte, change func(f *fc.Frame)) uint16 {
	h.Handle, h.MsgID = v.peer.Handle, v.msg
	h.Flags |= iu.FlagRR | iu.FlagRspRqd
	v.msg++
	return v.request(h, data, change)
}

// responded checks the response to one of our Sends.
func (v *fcviEnd) responded(row string, u *fcviUnit) {
	t := v.t
	t.check(u.h.MsgID == v.msg-1, "FCVI-5.9.6-3", "the response is to message %d, the Send was %d", u.h.MsgID, v.msg-1)
	t.check(u.h.Flags&iu.FlagErr == 0, row, "a good message is answered with error %v", u.h.Status().Reason)
	t.check(u.h.Param == 0, "FCVI-5.9.7-1", "FCVI_PARAMETER of a response without ERR is %#x", u.h.Param)
	t.check(u.h.Flags&^(iu.FlagErr|iu.FlagCum) == 0, "FCVI-5.9.4-1", "flags of a response are %#02x", uint8(u.h.Flags))
	u.fctl(t, "FCVI-5.8-8", iu.Use{})
}

// echo sends a message and returns the echo. The response to the message may come after the echo.
func (v *fcviEnd) echo(row string, h iu.Header, data []byte, change func(f *fc.Frame)) *fcviUnit {
	t := v.t
	h.Op = iu.SendRqst
	ox := v.send(h, data, change)
	var back *fcviUnit
	responded := false
	for back == nil || !responded {
		u, e := v.unit(t.g.Patience)
		if e != whole && responded && back == nil && e == quiet {
			t.check(!v.echoed, row, "the peer echoes no longer")
			t.hidden("the peer does not echo")
		}
		t.check(e == whole, "FCVI-5.1-9", "no response to a Send at Reliable Reception: %v", e)
		switch u.h.Op {
		case iu.SendResp:
			t.check(u.first.OXID == ox, "FCVI-5.2.1-3", "the response is on exchange %#04x, expected on %#04x",
				u.first.OXID, ox)
			v.responded(row, u)
			responded = true
		case iu.SendRqst:
			t.check(back == nil, row, "two messages come back")
			v.take(u)
			back = u
		case iu.DisconnectRqst:
			t.fail(row, "the peer disconnects: %v", u.h.Status().Reason)
		default:
			t.fail("FCVI-5.1-9", "%v unasked", u.h.Op)
		}
	}
	t.check(bytes.Equal(back.data, data), row, "%d bytes come back as %d others", len(data), len(back.data))
	v.echoed = true
	return back
}

// take checks a Send of the peer and sends the response.
func (v *fcviEnd) take(u *fcviUnit) {
	t := v.t
	t.check(u.h.MsgID == v.want, "FCVI-5.9.6-1", "FCVI_MSG_ID is %d, expected %d", u.h.MsgID, v.want)
	t.check(u.h.Flags&iu.FlagRR != 0, "FCVI-5.9.4-5", "a Send at Reliable Reception has flags %#02x", uint8(u.h.Flags))
	t.check(u.h.Flags&iu.FlagImm != 0 || u.h.Param == 0, "FCVI-5.9.7-1",
		"FCVI_PARAMETER without immediate data is %#x", u.h.Param)
	if u.h.Flags&iu.FlagRspRqd != 0 {
		u.fctl(t, "FCVI-5.8-7", iu.Use{Answered: true})
		v.emit(iu.Header{Op: iu.SendResp, Handle: v.peer.Handle, MsgID: u.h.MsgID}, nil,
			fc.Header{OXID: u.first.OXID, RXID: v.ox + 1}, iu.Use{}, nil)
	}
	v.want++
	v.heard = u.data
}

// reaction returns the next Information Unit. It answers and skips the messages a dialling peer
// sends unasked.
func (v *fcviEnd) reaction(within time.Duration) (*fcviUnit, end) {
	for {
		u, e := v.unit(within)
		if e != whole || v.sw == nil || u.h.Op != iu.SendRqst {
			return u, e
		}
		v.take(u)
	}
}

// ready opens a connection in the role required by the case. A dialling peer may then wait for an
// echo.
func (t *T) ready() *fcviEnd {
	if t.c.Role == Passive {
		return t.fcviOpen()
	}
	v := t.fcviAnswered()
	v.readMessage()
	return v.fcviEnd
}

// goesOn fails the case unless the connection still works: the peer echoes a message or, after
// dialling, accepts the echo of the peer's own message.
func (v *fcviEnd) goesOn(row string) {
	if v.sw == nil {
		v.echo(row, iu.Header{}, pattern(12), nil)
	} else {
		v.deliver(row, nil)
	}
}

// broken fails the case unless the peer ends the connection by a DISCONNECT_RQST with one of the
// given reasons.
func (v *fcviEnd) broken(row, why string, reasons ...iu.Reason) {
	t := v.t
	u, e := v.reaction(t.g.Patience)
	t.check(e == whole, row, "%s the peer sends nothing: %v", why, e)
	t.check(u.h.Op == iu.DisconnectRqst, row, "%s the peer sends a %v", why, u.h.Op)
	t.check(u.h.Flags&iu.FlagErr != 0, "FCVI-8.4-16", "DISCONNECT_RQST without ERR %s", why)
	is := u.h.Status().Reason
	t.check(bytes.IndexByte(reasonBytes(reasons), byte(is)) >= 0, row, "%s the reason is %v, expected %v",
		why, is, reasons)
	u.fctl(t, "FCVI-5.8-7", iu.Use{})
	v.disconnected(u)
}

func reasonBytes(rs []iu.Reason) (b []byte) {
	for _, r := range rs {
		b = append(b, byte(r))
	}
	return b
}

// disconnected answers a DISCONNECT_RQST of the peer.
func (v *fcviEnd) disconnected(u *fcviUnit) {
	v.emit(iu.Header{Op: iu.DisconnectResp, Handle: u.h.RmtHandle, RmtHandle: v.handle,
		MsgID: u.h.MsgID, Total: u.h.Total, Param: iu.Status{Reason: iu.ULPDisconnect}.Param()},
		nil, fc.Header{OXID: u.first.OXID, RXID: v.ox + 1}, iu.Use{}, nil)
}

// disconnect sends a DISCONNECT_RQST and reads the answer.
func (v *fcviEnd) disconnect(row string) {
	t := v.t
	ox := v.request(iu.Header{Op: iu.DisconnectRqst, Handle: v.peer.Handle, RmtHandle: v.handle, Total: v.conn, Param: iu.Status{Reason: iu.ULPDisconnect}.Param()}, nil, nil)
	u := v.answered(row, iu.DisconnectResp, ox)
	t.check(u.h.Total == v.conn && u.h.MsgID == 0, "FCVI-6.13-1",
		"DISCONNECT_RESP has connection id %#x and message %d, sent were %#x and 0", u.h.Total, u.h.MsgID, v.conn)
	t.check(u.h.RmtHandle == v.peer.Handle, "FCVI-6.13-1",
		"DISCONNECT_RESP names the handle %#x, the peer's is %#x", u.h.RmtHandle, v.peer.Handle)
	u.fctl(t, "FCVI-5.8-8", iu.Use{})
}

// failed checks the error response to a message of ours. The response must have the reason want.
func (v *fcviEnd) failed(row string, op iu.Opcode, ox uint16, want iu.Reason) {
	t := v.t
	u := v.answered(row, op, ox)
	t.check(u.h.MsgID == v.msg-1, "FCVI-5.9.6-3", "the response is to message %d, the request was %d",
		u.h.MsgID, v.msg-1)
	t.check(u.h.Flags&iu.FlagErr != 0, row, "a %v without ERR", op)
	t.check(u.h.Status().Reason == want, "FCVI-5.9.7-7", "the reason is %v, expected %v", u.h.Status().Reason, want)
	t.check(len(u.data) == 0, row, "%d bytes of payload in an error response", len(u.data))
}

// stillServed closes all connections of the case, and fails the case unless the peer serves a
// correct client.
func (t *T) stillServed() {
	for _, c := range t.conns {
		c.Close()
	}
	t.ready().goesOn("FCVI-5.2.2-4")
}

// refusedSetup returns a case with a CONNECT_RQST to be answered with one of the given reasons.
// change alters the decoded payload, bytesOf the encoded payload; either may be nil.
func refusedSetup(name, text, row string, reasons []iu.Reason, change func(q *iu.ConnectPayload), bytesOf func(h *iu.Header, b []byte) []byte) Case {
	return Case{Name: "fcvi/" + name, Proto: "fcvi", Role: Passive, Rows: list(row, "FCVI-5.3.2-7"), Text: text, run: func(t *T) {
		v := t.fcvi()
		q := v.payload()
		if change != nil {
			change(q)
		}
		u := v.resp1(q, bytesOf)
		is := u.h.Status().Reason
		t.check(is.Class() != iu.ConnectGood, row, "it is accepted")
		t.check(bytes.IndexByte(reasonBytes(reasons), byte(is)) >= 0, row, "the answer is %v, expected %v", is, reasons)
		u = v.resp1(v.payload(), nil) // a correct client is still served
		v.accepted(u)
	}}
}

// breaks returns a case in which do sends an Information Unit that violates a rule. The peer must
// then disconnect for one of the given reasons.
func breaks(name, text, row string, reasons []iu.Reason, do func(v *fcviEnd)) Case {
	return Case{Name: "fcvi/" + name, Proto: "fcvi", Role: Passive, Rows: list(row, "FCVI-8.4-16"), Text: text, run: func(t *T) {
		v := t.ready()
		do(v)
		v.broken(row, "after "+name, reasons...)
		t.stillServed()
	}}
}

var fcviPassive = []Case{
	{Name: "fcvi/link", Proto: "fcvi", Role: Passive, Rows: list("FCFS-2.4-2", "FCFS-2.4-1"), Text: "a special frame for no switch is answered by the name of the switch, and one for it unchanged",
		run: func(t *T) { t.link() }},
	{Name: "fcvi/nonce", Proto: "fcvi", Role: Passive, Rows: list("FCFS-2.4-4"), Text: "the nonce of the last link does not open another",
		run: func(t *T) {
			s := t.special(t.switchName())
			p := &fcEnd{t: t, c: t.connect()}
			p.echo(s)
			p.c.Close()
			again := &fcEnd{t: t, c: t.connect()}
			t.write(again.c, s.Append(nil))
			t.gone(again.c, "FCFS-2.4-4", "to the nonce of the last link")
		}},
	{Name: "fcvi/second-special", Proto: "fcvi", Role: Passive, Rows: list("FCFS-2.4-4", "FCFS-2.4-6"), Text: "a second special frame closes the link",
		run: func(t *T) {
			s := t.special(t.switchName())
			p := &fcEnd{t: t, c: t.connect()}
			p.echo(s)
			s.Nonce++
			t.write(p.c, s.Append(nil))
			t.gone(p.c, "FCFS-2.4-4", "to a second special frame")
		}},
	{Name: "fcvi/garbage", Proto: "fcvi", Role: Passive, Rows: list("FCFS-2.3-4"), Text: "bytes that are no frame are not answered by frames, and other links are served",
		run: func(t *T) {
			p := t.link()
			t.write(p.c, bytes.Repeat([]byte{0xff, 0, 0x5a}, 10_000))
			if _, e := p.next(t.g.Quiet); e == whole {
				t.fail("FCFS-2.3-4", "a frame answers garbage")
			}
			t.fcvi()
		}},
	{Name: "fcvi/login", Proto: "fcvi", Role: Passive, Rows: list("FCFS-2.7-1", "FCFS-2.7-2", "FCFS-2.7-3", "FCFS-2.11-1", "FCFS-2.11-2", "FCFS-2.1-4", "FCFS-2.2-2"), Text: "logins to fabric, directory and port are accepted, and the directory knows the port",
		run: func(t *T) { t.fcvi() }},
	{Name: "fcvi/unknown-service", Proto: "fcvi", Role: Passive, Rows: list("FCFS-2.7-6", "FCFS-2.7-7"), Text: "link services that the port does not know are answered by LS_RJT",
		run: func(t *T) {
			v := t.ready()
			for _, x := range []struct {
				row string
				cmd fc.ELSCmd
			}{{"FCFS-2.7-7", 0x20}, {"FCFS-2.7-6", 0x7f}} { // PRLI, and an unassigned command
				f := v.els(x.row, v.at, append(fc.AppendCmd(nil, x.cmd), make([]byte, 16)...))
				t.check(fc.CmdOf(f.Payload) == fc.ELSRjt && len(f.Payload) == fc.LSRjtLen, x.row,
					"%v of %d bytes answers %v", fc.CmdOf(f.Payload), len(f.Payload), x.cmd)
			}
		}},
	{Name: "fcvi/no-login", Proto: "fcvi", Role: Passive, Rows: list("FCVI-6.1-2", "FCFS-2.7-8"), Text: "a port that is not logged in is not served",
		run: func(t *T) {
			p := t.link()
			p.fabric()
			v := &fcviEnd{fcEnd: p, at: p.port(), open: map[fcviKey]*fcviUnit{}}
			v.request(iu.Header{Op: iu.ConnectRqst, Flags: iu.ClientServer.Flags(), MsgID: attempt, Total: 1},
				fcviCodec.AppendConnectRqst(nil, v.payload()), nil)
			f, e := v.next(t.g.Patience)
			// A peer that still knows the address from an earlier conversation sends no LOGO.
			switch {
			case e != whole:
				t.again("FCVI-6.1-2", "no LOGO: %v", e)
			case f.RCtl != fc.RCtlELSReq || fc.CmdOf(f.Payload) != fc.ELSLOGO:
				t.again("FCVI-6.1-2", "%v of %v in place of a LOGO", f.RCtl, f.Type)
			}
		}},
	{Name: "fcvi/accept", Proto: "fcvi", Role: Passive, Rows: list("FCVI-5.3.2-1", "FCVI-5.3.2-2", "FCVI-5.3.2-3", "FCVI-6.9-1", "FCVI-6.11-1", "FCVI-5.8-9", "FCVI-5.9.4-8", "FCVI-5.9.6-4"), Text: "a CONNECT_RQST is accepted in a handshake of four, on one exchange",
		run: func(t *T) { t.fcviOpen() }},
	{Name: "fcvi/longer-payload", Proto: "fcvi", Role: Passive, Rows: list("FCVI-6.9-2"), Text: "a longer payload of a CONNECT_RQST is read in its known prefix",
		run: func(t *T) {
			v := t.fcvi()
			q := v.payload()
			q.Security = pattern(20)
			v.accepted(v.resp1(q, nil))
		}},
	refusedSetup("no-match", "a discriminator without a listener is answered by NO_MATCH",
		"FCVI-5.3.2-5", []iu.Reason{iu.NoMatch}, func(q *iu.ConnectPayload) { q.Remote.Discriminator = []byte("no such name!") }, nil),
	refusedSetup("reliability", "another reliability level is refused", "FCVI-7.3-4",
		[]iu.Reason{iu.InvalidReliability, iu.ULPReject},
		func(q *iu.ConnectPayload) { q.Attributes.Reliability = iu.ReliableDelivery }, nil),
	refusedSetup("no-window", "MaxUnacked of zero is refused", "FCVI-7.3-3",
		[]iu.Reason{iu.InvalidReliability, iu.BadFormat, iu.NoResources, iu.ULPReject},
		func(q *iu.ConnectPayload) { q.Attributes.MaxUnacked = 0 }, nil),
	refusedSetup("version", "a version that is not known is refused", "FCVI-6.9-3",
		[]iu.Reason{iu.BadFormat}, nil, func(_ *iu.Header, b []byte) []byte { b[0] = 9; return b }),
	refusedSetup("short-payload", "a payload that is too short is refused", "FCVI-6.9-2",
		[]iu.Reason{iu.BadFormat}, nil, func(_ *iu.Header, b []byte) []byte { return b[:100] }),
	refusedSetup("mode", "a reserved mode is refused", "FCVI-5.9.4-7", []iu.Reason{iu.BadMode, iu.BadFormat},
		nil, func(h *iu.Header, b []byte) []byte { h.Flags = 3; return b }),
	{Name: "fcvi/retry", Proto: "fcvi", Role: Passive, Rows: list("FCVI-C-3", "FCVI-5.9.6-4", "FCVI-5.9.4-8"), Text: "a CONNECT_RQST that comes again is answered by RESP1 again, on its own exchange",
		run: func(t *T) {
			v := t.fcvi()
			q := v.payload()
			v.accepted(v.resp1(q, nil))
			u := v.resp1(q, func(h *iu.Header, b []byte) []byte { h.MsgID, h.Flags = attempt+1, h.Flags|iu.FlagRetry; return b })
			t.check(u.h.Flags&iu.FlagRetry != 0, "FCVI-5.9.4-8", "RESP1 to a retry has flags %#02x", uint8(u.h.Flags))
			was := v.peer
			v.accepted(u)
			t.check(v.peer.Handle == was.Handle && v.peer.InitialMsgID == was.InitialMsgID,
				"FCVI-C-3", "the answer to the retry is of another connection")
			v.confirm(u)
			v.echo("FCVI-5.2.2-4", iu.Header{}, pattern(10), nil)
		}},
	{Name: "fcvi/echo", Proto: "fcvi", Role: Passive, Rows: list("FCVI-5.2.2-4", "FCVI-5.9.6-1", "FCVI-5.1-9", "FCVI-5.8-5", "FCVI-5.8-6", "FCVI-5.8-7", "FCVI-5.8-8", "FCVI-5.9.1-4", "FCVI-6.3-1", "FCVI-5.7-2", "FCVI-5.7-7", "FCVI-5.8-10"), Text: "messages come back whole, with consecutive ids, each with a response",
		run: func(t *T) {
			v := t.fcviOpen()
			for _, n := range []int{1, 2, 3, 4, 5, 1000, 5000} {
				v.echo("FCVI-5.2.2-4", iu.Header{}, pattern(n), nil)
			}
		}},
	{Name: "fcvi/immediate", Proto: "fcvi", Role: Passive, Rows: list("FCVI-5.9.4-2", "FCVI-5.9.7-1"), Text: "immediate data arrives, and only where it was given",
		run: func(t *T) {
			v := t.fcviOpen()
			u := v.echo("FCVI-5.2.2-4", iu.Header{Flags: iu.FlagImm, Param: 0xabcd1234}, pattern(10), nil)
			t.check(u.h.Flags&iu.FlagImm != 0 && u.h.Param == 0xabcd1234, "FCVI-5.9.7-1",
				"the echo has flags %#02x, FCVI_PARAMETER %#x", uint8(u.h.Flags), u.h.Param)
			u = v.echo("FCVI-5.2.2-4", iu.Header{}, pattern(10), nil)
			t.check(u.h.Flags&iu.FlagImm == 0, "FCVI-5.9.4-2", "the echo of a message without immediate data has some")
			t.check(u.h.Param == 0, "FCVI-5.9.7-1", "FCVI_PARAMETER without immediate data is %#x", u.h.Param)
		}},
	{Name: "fcvi/ignored", Proto: "fcvi", Role: Passive, Rows: list("FCVI-5.9.4-1", "FCVI-5.9.5-1", "FCVI-5.1-5", "FCVI-5.8-3", "FCVI-5.2.1-8"), Text: "reserved flags and bytes, CS_CTL, and another R_CTL of Device_Data are not checked",
		run: func(t *T) {
			v := t.fcviOpen()
			v.echo("FCVI-5.9.4-1", iu.Header{Flags: 0x40}, pattern(10), nil)
			v.echo("FCVI-5.9.5-1", iu.Header{}, pattern(10),
				func(f *fc.Frame) { f.Opt = bytes.Clone(f.Opt); f.Opt[6], f.Opt[7] = 1, 2 })
			v.echo("FCVI-5.1-5", iu.Header{}, pattern(10), func(f *fc.Frame) { f.RCtl = fc.RCtlSolData })
			v.echo("FCVI-5.8-3", iu.Header{}, pattern(10), func(f *fc.Frame) { f.CSCtl = 5 })
			v.echo("FCVI-5.2.1-8", iu.Header{}, pattern(10), func(f *fc.Frame) { f.FCtl &^= fc.FCtlFirstSeq })
		}},
	{Name: "fcvi/bad-crc", Proto: "fcvi", Role: Passive, Rows: list("FCFS-2.1-6", "FCVI-8.4-7"), Text: "a frame with a wrong CRC is not delivered",
		run: func(t *T) {
			v := t.ready()
			bad := v.damaged(pattern(10))
			t.write(v.c, bad)
			u, e := v.reaction(t.g.Quiet)
			t.check(e != whole, "FCFS-2.1-6", "a %v answers a frame with a wrong CRC", opOf(u))
			v.goesOn("FCFS-2.1-6") // the good frame is accepted
		}},
	{Name: "fcvi/bad-write", Proto: "fcvi", Role: Passive, Rows: list("FCVI-5.9.8-2", "FCVI-5.2.2-6", "FCVI-6.5-1"), Text: "a Write to a memory handle that does not exist is answered by an error",
		run: func(t *T) {
			v := t.ready()
			ox := v.send(iu.Header{Op: iu.WriteRqst, RmtVA: 4096, RmtHandle: 0xdeadbeef, Total: 8}, pattern(8), nil)
			v.failed("FCVI-5.2.2-6", iu.WriteResp, ox, iu.RDMAWriteProt)
		}},
	{Name: "fcvi/bad-read", Proto: "fcvi", Role: Passive, Rows: list("FCVI-5.2.4-2", "FCVI-5.2.4-5"), Text: "a Read from a memory handle that does not exist is answered by an error and no data",
		run: func(t *T) {
			v := t.ready()
			if !v.peer.Attributes.Read {
				t.hidden("the peer takes no Reads")
			}
			ox := v.send(iu.Header{Op: iu.ReadRqst, RmtVA: 4096, RmtHandle: 0xdeadbeef, Total: 8}, nil, nil)
			v.failed("FCVI-5.2.4-5", iu.ReadResp, ox, iu.RDMAReadProt)
		}},
	{Name: "fcvi/disconnect", Proto: "fcvi", Role: Passive, Rows: list("FCVI-5.3.5-2", "FCVI-6.13-1", "FCVI-5.3.5-5", "FCVI-5.8-8"), Text: "a DISCONNECT_RQST is answered, and once more if it comes again",
		run: func(t *T) {
			v := t.fcviOpen()
			v.disconnect("FCVI-5.3.5-2")
			v.disconnect("FCVI-5.3.5-5")
		}},
	{Name: "fcvi/unknown-handle", Proto: "fcvi", Role: Passive, Rows: list("FCVI-8.2-3", "FCVI-6.12-2"), Text: "a message for a handle that does not exist is answered by a DISCONNECT_RQST that quotes it",
		run: func(t *T) {
			v := t.ready()
			h := v.peer.Handle ^ 0x40000000
			v.request(iu.Header{Op: iu.SendRqst, Handle: h, Flags: iu.FlagRR | iu.FlagRspRqd}, pattern(4), nil)
			u, e := v.reaction(t.g.Patience)
			t.check(e == whole, "FCVI-8.2-3", "no answer: %v", e)
			t.check(u.h.Op == iu.DisconnectRqst && u.h.Flags&iu.FlagErr != 0 &&
				u.h.Status().Reason == iu.NotConnected, "FCVI-8.2-3", "the answer is %v", u.h)
			t.check(u.h.Handle == 0 && u.h.RmtHandle == h, "FCVI-6.12-2",
				"FCVI_HANDLE is %#x, quoted is %#x, sent was %#x", u.h.Handle, u.h.RmtHandle, h)
			v.disconnected(u)
			v.goesOn("FCVI-4-1") // the other connection is not affected
		}},
	{Name: "fcvi/unknown-exchange", Proto: "fcvi", Role: Passive, Rows: list("FCFS-2.8-4", "FCFS-2.8-2"), Text: "ABTS for an exchange that does not exist is answered by BA_RJT",
		run: func(t *T) {
			v := t.ready()
			v.put(&fc.Frame{SOF: fc.SOFi3, EOF: fc.EOFt,
				Header: fc.Header{RCtl: fc.RCtlABTS, DID: v.at, SID: v.id, Type: fc.TypeBLS,
					FCtl: fc.FCtlEndSeq | fc.FCtlSeqInit, SeqID: v.sequence(v.at), OXID: 0x7777, RXID: 0x6666}})
			f := v.answer("FCFS-2.8-4", v.at, 0x7777)
			t.check(f.RCtl == fc.RCtlBARjt, "FCFS-2.8-4", "%v answers it", f.RCtl)
			t.check(len(f.Payload) == 4, "FCFS-2.8-2", "a BA_RJT of %d bytes", len(f.Payload))
		}},
	breaks("gap", "a gap in the message ids breaks the connection", "FCVI-8.4-6", []iu.Reason{iu.MsgLost}, func(v *fcviEnd) {
		v.msg += 5
		v.send(iu.Header{Op: iu.SendRqst}, pattern(5), nil)
	}),
	breaks("hole", "a frame that is missing in a message breaks the connection", "FCVI-8.4-4", []iu.Reason{iu.FrameLost}, func(v *fcviEnd) {
		v.send(iu.Header{Op: iu.SendRqst}, pattern(2000), func(f *fc.Frame) { f.Param *= 2 })
	}),
	breaks("opcode", "an unknown opcode breaks the connection", "FCVI-5.9.3-4", []iu.Reason{iu.Protocol}, func(v *fcviEnd) {
		v.send(iu.Header{Op: iu.SendRqst}, pattern(5),
			func(f *fc.Frame) { f.Opt = bytes.Clone(f.Opt); f.Opt[4] = 0x44 })
	}),
	breaks("level", "a message without the flag of the connection's level breaks it", "FCVI-5.9.4-5", []iu.Reason{iu.Protocol}, func(v *fcviEnd) {
		v.send(iu.Header{Op: iu.SendRqst}, pattern(5),
			func(f *fc.Frame) { f.Opt = bytes.Clone(f.Opt); f.Opt[5] &^= byte(iu.FlagRR) })
	}),
	breaks("header-size", "a Device_Header of another size than its opcode's breaks the connection", "FCVI-6.1-3", []iu.Reason{iu.Protocol}, func(v *fcviEnd) {
		v.send(iu.Header{Op: iu.SendRqst}, pattern(5), func(f *fc.Frame) {
			f.Opt, f.DFCtl = append(bytes.Clone(f.Opt), make([]byte, 16)...), fc.DFCtlDev32
		})
	}),
	breaks("too-long-write", "a Write of more bytes than its FCVI_TOT_LEN breaks the connection", "FCVI-6.4-1", []iu.Reason{iu.Protocol}, func(v *fcviEnd) {
		v.send(iu.Header{Op: iu.WriteRqst, RmtVA: 4096, RmtHandle: 0xdeadbeef, Total: 4}, pattern(8), nil)
	}),
}

func opOf(u *fcviUnit) iu.Opcode {
	if u == nil {
		return 0
	}
	return u.h.Op
}
