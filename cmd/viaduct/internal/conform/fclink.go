package conform

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"time"

	"viaduct/internal/fc"
	"viaduct/internal/fc/fcip"
	"viaduct/internal/wire/iu"
)

// fcRxSize is the receive data field size an fcEnd announces. It is small, so that messages take
// several frames.
const fcRxSize = 1024

// An fcEnd is our end of an FCIP link. It acts as an N_Port.
type fcEnd struct {
	t    *T
	c    net.Conn
	name fc.WWN
	id   fc.Addr // 0 before the login
	mtu  int     // largest Data_Field that the peer accepts
	ox   uint16  // OX_ID of the latest exchange that we began
	seq  map[fc.Addr]uint8
	buf  []byte     // received bytes that are not decoded yet
	kept []fc.Frame // frames for the case, received while we waited for another frame
	sw   *fabric    // the fabric that we emulate; nil if we have dialled
}

// special returns the first frame of a link. to is the name of the peer's switch; 0 asks the peer
// for the name.
func (t *T) special(to fc.WWN) fcip.Special {
	var b [16]byte
	rand.Read(b[:])
	mac := binary.BigEndian.Uint64(b[:8])&0xfcffffffffff | 0x020000000000 // locally administered
	return fcip.Special{Source: fc.NodeName(mac), Entity: mac, Nonce: binary.BigEndian.Uint64(b[8:]),
		UsageFlags: fcip.UsageClass3, Destination: to, KATOV: fcip.DefaultKATOV}
}

// echo sends s and returns the peer's answer.
func (p *fcEnd) echo(s fcip.Special) fcip.Special {
	p.t.write(p.c, s.Append(nil))
	b := make([]byte, fcip.SpecialLen)
	n, e := p.t.read(p.c, b, p.t.g.Patience)
	p.t.check(e == whole, "FCFS-2.4-1", "%d bytes of a special frame, then %v", n, e)
	x, _, err := fcip.ParseSpecial(b)
	p.t.check(err == nil, "FCFS-2.4-1", "%v", err)
	return x
}

// switchName determines the name of the peer's switch by a special frame with a destination name of
// zero.
func (t *T) switchName() fc.WWN {
	p := &fcEnd{t: t, c: t.connect()}
	s := t.special(0)
	x := p.echo(s)
	t.check(x.Changed, "FCFS-2.4-2", "a destination of zero is echoed without Ch")
	t.check(x.Source == s.Source && x.Entity == s.Entity && x.Nonce == s.Nonce, "FCFS-2.4-2",
		"the changed echo names source %v, entity %#x, nonce %#x, sent were %v, %#x, %#x", x.Source, x.Entity, x.Nonce, s.Source, s.Entity, s.Nonce)
	t.check(x.Destination != 0, "FCFS-2.4-2", "the changed echo names no destination")
	t.gone(p.c, "FCFS-2.4-2", "after a changed echo")
	return x.Destination
}

// link opens an FCIP link. It first determines the name of the peer's switch, on a separate
// connection.
func (t *T) link() *fcEnd {
	s := t.special(t.switchName())
	p := &fcEnd{t: t, c: t.connect(), name: fc.PortName(s.Entity, 1), seq: map[fc.Addr]uint8{},
		mtu: fc.MinRxSize, ox: 0x8000}
	x := p.echo(s)
	t.check(x == s, "FCFS-2.4-2", "the echo is %+v, sent was %+v", x, s)
	return p
}

func (p *fcEnd) node() fc.WWN { return fc.NodeName(uint64(p.name) & 0xffffffffffff) }

// put sends a frame.
func (p *fcEnd) put(f *fc.Frame) { p.t.write(p.c, fcip.Append(nil, f)) }

// next reads the next frame for our N_Port, and answers the frames of the link itself. e is whole,
// or the reason why there is no frame.
func (p *fcEnd) next(within time.Duration) (f fc.Frame, e end) {
	t := p.t
	if len(p.kept) > 0 {
		f, p.kept = p.kept[0], p.kept[1:]
		return f, whole
	}
	deadline := time.Now().Add(within)
	chunk := make([]byte, 64<<10)
	for {
		for len(p.buf) >= 16 {
			n, err := fcip.FrameLen(p.buf)
			t.check(err == nil, "FCFS-2.3-1", "%v", err)
			if len(p.buf) < n {
				break
			}
			b := bytes.Clone(p.buf[:n])
			p.buf = p.buf[n:]
			_, err = fcip.Parse(b, &f)
			t.check(!errors.Is(err, fc.ErrCRC), "FCFS-2.1-4", "the CRC of a frame is %x", b[n-8:n-4])
			t.check(err == nil, "FCFS-2.3-1", "%v", err)
			if p.own(&f) {
				return f, whole
			}
		}
		p.c.SetReadDeadline(deadline)
		n, err := p.c.Read(chunk)
		p.buf = append(p.buf, chunk[:n]...)
		if n == 0 && err != nil {
			return f, endOf(err)
		}
	}
}

// own reports whether a frame is for our N_Port to handle. It refuses requests an N_Port need not
// support.
func (p *fcEnd) own(f *fc.Frame) bool {
	t := p.t
	switch {
	case f.SOF == fc.SOFf:
		if f.RCtl == fc.RCtlELSReq && fc.CmdOf(f.Payload) == fc.ELSLKA {
			p.reply(f, fc.RCtlELSReply, fc.AppendCmd(nil, fc.ELSAcc))
		}
		return false
	case p.sw != nil && p.sw.take(f):
		return false
	case f.EOF.Invalid(), p.id != 0 && f.DID != p.id:
		return false
	case f.RCtl == fc.RCtlELSReq && fc.CmdOf(f.Payload) == fc.ELSLOGO:
		return true
	case f.RCtl == fc.RCtlELSReq && fc.CmdOf(f.Payload) == fc.ELSADISC:
		p.reply(f, fc.RCtlELSReply, fc.ADISC{Cmd: fc.ELSAcc, PortName: p.name, NodeName: p.node(), ID: p.id}.Append(nil))
		return false
	case f.RCtl == fc.RCtlELSReq && f.Last():
		p.reply(f, fc.RCtlELSReply, fc.LSRjt{Reason: fc.RjtNotSupported}.Append(nil))
		return false
	}
	t.check(f.SOF.Class() == fc.Class3, "FCVI-5.2.1-11", "a frame of class %v", f.SOF)
	return true
}

// reply answers the request q with a single frame. The frame closes the exchange.
func (p *fcEnd) reply(q *fc.Frame, r fc.RCtl, payload []byte) {
	sof, eof := q.Class().Delimiters(true, true)
	p.put(&fc.Frame{SOF: sof, EOF: eof, Payload: payload,
		Header: fc.Header{RCtl: r, DID: q.SID, SID: q.DID, Type: q.Type,
			FCtl: fc.FCtlExchResponder | fc.FCtlLastSeq | fc.FCtlEndSeq, SeqID: p.sequence(q.SID),
			OXID: q.OXID, RXID: fc.Unassigned}})
}

func (p *fcEnd) sequence(to fc.Addr) uint8 {
	p.seq[to]++
	return p.seq[to]
}

// service sends a request in a single frame, and returns the answer. Without an answer within
// Patience, the peer violates the requirement row.
func (p *fcEnd) service(row string, to fc.Addr, r fc.RCtl, typ fc.Type, payload []byte) fc.Frame {
	p.ox++
	p.put(&fc.Frame{SOF: fc.SOFi3, EOF: fc.EOFt, Payload: payload,
		Header: fc.Header{RCtl: r, DID: to, SID: p.id, Type: typ,
			FCtl: fc.FCtlFirstSeq | fc.FCtlEndSeq | fc.FCtlSeqInit, SeqID: p.sequence(to), OXID: p.ox,
			RXID: fc.Unassigned}})
	return p.answer(row, to, p.ox)
}

// answer waits for the answer to one of our exchanges. Without an answer within Patience, the peer
// violates the requirement row. Other frames are kept for next.
func (p *fcEnd) answer(row string, from fc.Addr, ox uint16) fc.Frame {
	t := p.t
	var other []fc.Frame
	for end := time.Now().Add(t.g.Patience); ; {
		f, e := p.next(time.Until(end))
		t.check(e == whole, row, "no answer from %v: %v", from, e)
		if f.SID != from || f.OXID != ox || !f.FromResponder() {
			other = append(other, f)
			continue
		}
		p.kept = append(other, p.kept...)
		t.check(f.SOF == fc.SOFi3 && f.EOF == fc.EOFt, "FCFS-2.2-2",
			"a sequence of one frame is delimited by %v and %v", f.SOF, f.EOF)
		t.check(f.Last() && f.FCtl&fc.FCtlLastSeq != 0, "FCFS-2.10-2", "F_CTL of an answer is %06x", uint32(f.FCtl))
		return f
	}
}

// els sends an extended link service request, and returns the reply.
func (p *fcEnd) els(row string, to fc.Addr, payload []byte) fc.Frame {
	f := p.service(row, to, fc.RCtlELSReq, fc.TypeELS, payload)
	p.t.check(f.RCtl == fc.RCtlELSReply && f.Type == fc.TypeELS, "FCFS-2.1-2",
		"R_CTL is %v and TYPE %v in the answer to a link service", f.RCtl, f.Type)
	return f
}

// login sends FLOGI or PLOGI, and returns the parameters and frame of the LS_ACC.
func (p *fcEnd) login(to fc.Addr, cmd fc.ELSCmd) (fc.Login, fc.Frame) {
	t := p.t
	l := fc.Login{Cmd: cmd, VersionHigh: 0x20, VersionLow: 0x20, BBCredit: 16, RxSize: fcRxSize,
		PortName: p.name, NodeName: p.node()}
	class := fc.ClassParams{Options: fc.ClassValid, RxSize: fcRxSize, Concurrent: 255, OpenSeqs: 1}
	if cmd == fc.ELSFLOGI {
		class.Options |= fc.ClassInOrder
	} else {
		l.Features, l.Word3, l.EDTOV = fc.FeatCIRO|fc.FeatRandomRO|fc.FeatCISeqCnt, 255<<16|0xff, 2000
	}
	l.Class[2] = class
	f := p.els("FCFS-2.7-1", to, l.Append(nil))
	t.check(fc.CmdOf(f.Payload) == fc.ELSAcc, "FCFS-2.7-1", "%v to %v is answered by %v", cmd, to, fc.CmdOf(f.Payload))
	t.check(len(f.Payload) == fc.LoginLen, "FCFS-2.7-1", "an LS_ACC of %d bytes to %v", len(f.Payload), cmd)
	a, _, err := fc.ParseLogin(f.Payload)
	t.check(err == nil, "FCFS-2.7-2", "%v", err)
	t.check(a.PortName>>60 != 0, "FCFS-2.6-1", "the Port_Name is %v", a.PortName)
	t.check(a.Class[2].Options&fc.ClassValid != 0, "FCFS-2.7-1", "class 3 is not valid in the LS_ACC to %v", cmd)
	return a, f
}

// fabric logs in to the fabric at the other end of the link.
func (p *fcEnd) fabric() {
	t := p.t
	a, f := p.login(fc.AddrFPort, fc.ELSFLOGI)
	t.check(a.Features&fc.FeatFPort != 0, "FCFS-2.7-3", "the LS_ACC to FLOGI is not that of an F_Port")
	t.check(f.DID != 0 && !f.DID.WellKnown(), "FCFS-2.7-3", "the LS_ACC to FLOGI assigns %v", f.DID)
	p.id = f.DID
}

// names sends a request to the directory server, and returns the body of the answer. The caller
// must be logged in to the directory server.
func (p *fcEnd) names(cmd fc.CTCmd, body []byte) []byte {
	t := p.t
	f := p.service("FCFS-2.11-1", fc.AddrDirectory, fc.RCtlUnsolControl, fc.TypeCT, fc.AppendNS(nil, cmd, body))
	h, n, err := fc.ParseCT(f.Payload)
	t.check(err == nil && h.Revision == fc.CTRevision && h.GSType == fc.GSTypeDirSvc, "FCFS-2.11-1",
		"Common Transport header % x", f.Payload[:min(len(f.Payload), fc.CTLen)])
	t.check(h.Cmd == fc.CTAccept, "FCFS-2.11-2", "%v is answered by %v, reason %#02x, explanation %#02x",
		cmd, h.Cmd, h.Reason, h.Explanation)
	return f.Payload[n:]
}

// port logs in to the directory, looks up the peer's port by IP address, and returns the address.
func (p *fcEnd) port() (at fc.Addr) {
	t := p.t
	p.login(fc.AddrDirectory, fc.ELSPLOGI)
	// A peer may notice late the end of the former port with our address. It then asks the
	// directory for the present port with the address.
	p.names(fc.NSRPNID, fc.NSBody{}.ID(p.id).Name(p.name))
	ip := t.host()
	var b [16]byte
	if ip.Is4() {
		v4 := ip.As4()
		copy(b[12:], v4[:])
	} else {
		b = ip.As16()
	}
	err := fc.ParseIDList(p.names(fc.NSGIDIPP, b[:]), func(a fc.Addr) { at = a })
	t.check(err == nil && at != 0, "FCFS-2.11-2", "the directory knows no port of %v", ip)
	return at
}

// host returns the IP address of the peer.
func (t *T) host() netip.Addr {
	a, ok := t.conns[len(t.conns)-1].RemoteAddr().(*net.TCPAddr)
	if !ok {
		t.hidden("the peer has no IP address")
	}
	return a.AddrPort().Addr().Unmap().WithZone("")
}

// damaged returns the next Send as an encapsulated frame with a wrong CRC.
func (v *fcviEnd) damaged(data []byte) []byte {
	h := iu.Header{Op: iu.SendRqst, Handle: v.peer.Handle, MsgID: v.msg, Flags: iu.FlagRR | iu.FlagRspRqd}
	sof, eof := fc.Class3.Delimiters(true, true)
	f := fc.Frame{SOF: sof, EOF: eof, Payload: data, Opt: fcviCodec.AppendHeader(nil, &h),
		Header: fc.Header{RCtl: fc.RCtl(fcviCodec.RCtl(h.Op)), DID: v.at, SID: v.id,
			Type: fc.TypeFCVI, DFCtl: fcviCodec.DFCtl(h.Op),
			FCtl:  fc.FCtl(fcviCodec.FCtl(h.Op, iu.Use{Last: true, Answered: true})),
			SeqID: v.sequence(v.at), OXID: v.ox + 1, RXID: fc.Unassigned}}
	b := fcip.Append(nil, &f)
	b[len(b)-5] ^= 1 // the last byte of the CRC
	return b
}
