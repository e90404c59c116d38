package conform

import (
	"encoding/binary"

	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
	"viaduct/internal/wire/sdpwire"
)

// greetedBy accepts a connection opened by the peer, and returns the peer's Hello and Request.
func (t *T) greetedBy() (*sdpEnd, sdpwire.Hello, mpa.Frame) {
	st, q := t.dialledBy()
	s := &sdpEnd{stream: st, bufs: 32}
	b := q.Private
	if len(b) == 0 {
		t.hidden("the Hello is not in the private data of the Request")
	}
	t.check(len(b) == sdpwire.HelloLen, "SDP-6.2.1-1", "%d bytes in place of a Hello", len(b))
	h, _, err := sdpwire.ParseHello(b, sdpwire.Figure)
	t.check(err == nil, "SDP-6.2.1-3", "Hello: %v", err)
	t.check(b[2] == 0 && binary.BigEndian.Uint32(b[8:])|binary.BigEndian.Uint32(b[12:]) == 0,
		"SDP-6.2.1-3", "Flags, MSeq or MSeqAck of the Hello is not 0: % x", b[:sdpwire.BSDHLen])
	return s, h, q
}

// accept sends the Reply, reads MPA's ready message, and sends a HelloAck. change may modify the
// bytes of the HelloAck.
func (s *sdpEnd) accept(q mpa.Frame, change func(b []byte)) {
	t := s.t
	r := replyTo(q)
	if !q.Conn.PeerToPeer || q.Conn.RTR&(mpa.RTRSend|mpa.RTRWrite) == 0 {
		t.hidden("the peer does not offer to be ready by an empty Send or Write")
	}
	r.Conn.RTR &= mpa.RTRSend | mpa.RTRWrite
	t.write(s.c, r.Append(nil))
	s.agree(r, q)
	u, e := s.fpdu(t.g.Patience)
	t.check(e == whole, "MPA2-9.2-1", "no ready message: %v", e)
	want, at := rdmap.Send, ddp.UntaggedLen
	if r.Conn.RTR == mpa.RTRWrite {
		want, at = rdmap.Write, ddp.TaggedLen
	} else {
		s.want++
	}
	op := s.header(u)
	t.check(op == want && len(u) == at, "SDP-8.1.1-11", "a %v of %d bytes comes before the HelloAck",
		op, len(u)-ddp.HeaderLen(u[0]))
	if u, e = s.nextFPDU(t.g.Quiet); e == whole {
		t.fail("SDP-8.1.1-11", "a %v of %d bytes comes before the HelloAck: % x", s.header(u),
			len(u)-ddp.HeaderLen(u[0]), u[ddp.HeaderLen(u[0]):])
	}
	t.check(e == quiet, "SDP-8.1.1-11", "connection %v before the HelloAck", e)
	a := sdpwire.HelloAck{Bufs: s.bufs, MajV: sdpwire.MajV, MinV: sdpwire.MinV, MaxAdverts: 4, ActRcvSz: 65536, LocIRD: 4, LocORD: 4}.Append(nil, sdpwire.Figure)
	if change != nil {
		change(a)
	}
	s.send(rdmap.SendSE.UntaggedHeader(ddp.MSN(s.msn), 0, true, 0).Append(nil), a)
	s.msn++
}

// data reads the payload of the peer's next Data message. The case ends as not observable if the
// peer sends none.
func (s *sdpEnd) data() []byte {
	t := s.t
	for {
		m, p, ok := s.readSDP()
		if !ok {
			t.hidden("the peer sends nothing")
		}
		switch m.MID {
		case sdpwire.Data:
			return p
		case sdpwire.ModeChange:
		case sdpwire.SrcAvail, sdpwire.SinkAvail:
			t.hidden("the peer advertises memory, which this case does not follow")
		default:
			t.fail("SDP-6.1.1-1", "%v unasked", m.MID)
		}
	}
}

// over fails the case unless the peer closes the connection. Earlier messages are ignored.
func (s *sdpEnd) over(row, why string) {
	for {
		u, e := s.fpdu(s.t.g.Patience)
		s.t.check(e != quiet, row, "the connection goes on after %s", why)
		if e != whole || s.header(u) == rdmap.TerminateOp {
			return
		}
	}
}

// refusedAck returns a case with a HelloAck after which the peer must end the attempt.
func refusedAck(name, text, row string, change func(b []byte)) Case {
	return Case{Name: "sdp/" + name, Proto: "sdp", Role: Active, Rows: list(row, "SDP-8.1.1-25"), Text: text, run: func(t *T) {
		s, _, q := t.greetedBy()
		s.accept(q, change)
		for {
			u, e := s.nextFPDU(t.g.Patience)
			t.check(e != quiet, row, "the connection stays open")
			if e != whole || s.header(u) == rdmap.TerminateOp {
				break
			}
			t.fail(row, "the peer goes on")
		}
		t.greetedBy() // the peer is still alive
	}}
}

// takenAck returns a case with a HelloAck the peer must accept.
func takenAck(name, text, row string, change func(b []byte)) Case {
	return Case{Name: "sdp/" + name, Proto: "sdp", Role: Active, Rows: list(row), Text: text, run: func(t *T) {
		s, _, q := t.greetedBy()
		s.accept(q, change)
		u, e := s.nextFPDU(t.g.Patience)
		if e == quiet {
			t.hidden("the peer sends nothing")
		}
		t.check(e == whole, row, "the peer ends the connection: %v", e)
		t.check(s.header(u) != rdmap.TerminateOp, row, "the peer ends the connection")
	}}
}

// violated returns a case with a message to the peer that violates a rule.
func violated(name, text, row string, do func(s *sdpEnd, b []byte)) Case {
	return Case{Name: "sdp/" + name, Proto: "sdp", Role: Active, Rows: list(row), Text: text, run: func(t *T) {
		s, _, q := t.greetedBy()
		s.accept(q, nil)
		s.sendSDP(sdpwire.Message{MID: sdpwire.Data}, s.data())
		do(s, s.data())
		s.over(row, "a message that is forbidden")
		t.greetedBy() // the peer is still alive
	}}
}

var sdpActive = []Case{
	{Name: "sdp/active-hello", Proto: "sdp", Role: Active, Rows: list("SDP-6.2.1-1", "SDP-6.2.1-3", "SDP-6.2.1.1-1", "SDP-6.2.1.2-1", "SDP-6.2.1.3-2", "SDP-6.2.1.6-1", "SDP-6.2.1.7-1", "SDP-6.2.1.8-1"), Text: "the Hello is well formed and its fields are in range",
		run: func(t *T) {
			s, h, q := t.greetedBy()
			t.check(h.MajV == 1, "SDP-6.2.1.1-1", "MajV is %d", h.MajV)
			t.check(h.MinV == 1, "SDP-6.2.1.2-1", "MinV is %d", h.MinV)
			t.check(h.MaxAdverts > 0, "SDP-6.2.1.3-2", "MaxAdverts is 0")
			t.check(h.LocIRD > 0, "SDP-6.2.1.6-1", "LocIRD is 0")
			t.check(h.LocORD > 0, "SDP-6.2.1.7-1", "LocORD is 0")
			t.check(q.Private[18] == 0, "SDP-6.2.1.8-1", "reserved bits of the Hello are %#02x", q.Private[18])
			t.check(h.DesRemRcvSz <= sdpwire.MaxSize, "SDP-6.2.1.4-1", "DesRemRcvSz is %d", h.DesRemRcvSz)
			t.check(h.LocalRcvSz >= sdpwire.MinBufferSize && h.LocalRcvSz <= sdpwire.MaxSize,
				"SDP-6.2.1.5-1", "LocalRcvSz is %d", h.LocalRcvSz)
			t.check(h.Bufs >= sdpwire.MinBuffers, "SDP-10-2", "%d Private Buffers", h.Bufs)
			t.silent(s.c, "SDP-8.1.1-11", "before the Reply")
		}},
	{Name: "sdp/active-messages", Proto: "sdp", Role: Active, Rows: list("SDP-6.1.5-1", "SDP-6.1.5-2", "SDP-6.1.4-1", "SDP-6.1.2-2", "SDP-6.1.6-1", "SDP-8.1.1-11"), Text: "nothing comes before the HelloAck, and then well-formed messages with consecutive numbers from zero",
		run: func(t *T) {
			s, _, q := t.greetedBy()
			s.accept(q, nil)
			for range 2 {
				s.sendSDP(sdpwire.Message{MID: sdpwire.Data}, s.data())
			}
			s.data()
		}},
	takenAck("ack-minor-version", "another minor version of the HelloAck is taken", "SDP-6.2.2.2-2",
		func(b []byte) { b[19] = 2<<4 | b[19]&15 }),
	takenAck("ack-reserved", "reserved bits of the HelloAck are not examined", "SDP-6.2.2.7-2",
		func(b []byte) { b[18] = 0xff }),
	takenAck("ack-mseq", "MSeq and MSeqAck of the HelloAck are not examined", "SDP-6.2.2-4",
		func(b []byte) { b[11], b[15] = 9, 7 }),
	refusedAck("ack-major-version", "another major version of the HelloAck ends the attempt",
		"SDP-6.2.2.1-2", func(b []byte) { b[19] = b[19]&0xf0 | 2 }),
	refusedAck("ack-no-adverts", "MaxAdverts of zero in the HelloAck ends the attempt",
		"SDP-6.2.2.3-2", func(b []byte) { b[16], b[17] = 0, 0 }),
	refusedAck("ack-no-reads", "LocIRD and LocORD of zero in the HelloAck end the attempt",
		"SDP-8.1.1-25", func(b []byte) { copy(b[24:], []byte{0, 0, 0, 0}) }),
	violated("active-mseq", "a gap in MSeq ends the connection", "SDP-6.1.5-2", func(s *sdpEnd, b []byte) {
		s.seq += 3
		s.sendSDP(sdpwire.Message{MID: sdpwire.Data}, b)
	}),
	violated("active-reserved-mid", "a reserved MID ends the connection", "SDP-6.1.1-3", func(s *sdpEnd, _ []byte) {
		s.sendSDP(sdpwire.Message{MID: sdpwire.MID(0x20)}, nil)
	}),
	violated("active-len", "a Len that is not that of the message ends the connection", "SDP-6.1.4-1", func(s *sdpEnd, p []byte) {
		m := sdpwire.Message{MID: sdpwire.Data, Bufs: s.bufs, MSeq: s.seq, MSeqAck: s.in - 1, Len: 5000}
		s.sendMessage(append(m.Append(nil, sdpwire.Figure), p...))
	}),
}
