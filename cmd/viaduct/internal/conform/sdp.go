package conform

import (
	"bytes"
	"encoding/binary"

	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
	"viaduct/internal/wire/sdpwire"
)

// An sdpEnd is our end of an SDP connection. It is the Connecting Peer, unless the peer dials.
type sdpEnd struct {
	*stream
	ack    sdpwire.HelloAck
	seq    uint32 // MSeq of our next message
	in     uint32 // MSeq of the peer's next message
	any    bool   // the peer has sent a message
	echoed bool   // the peer is known to echo messages
	bufs   uint16 // our number of Private Buffers
}

func hello() sdpwire.Hello {
	return sdpwire.Hello{Bufs: 32, MajV: sdpwire.MajV, MinV: sdpwire.MinV, MaxAdverts: 4,
		DesRemRcvSz: 65536, LocalRcvSz: 65536, LocIRD: 4, LocORD: 4}
}

// greet sends a Hello in the private data of a Request, and reads the MPA Reply. The Reply may
// reject the connection. change may modify the bytes of the Hello; nil leaves the Hello unchanged.
func (t *T) greet(change func(b []byte) []byte) (*sdpEnd, mpa.Frame) {
	b := hello().Append(nil, sdpwire.Figure)
	if change != nil {
		b = change(b)
	}
	q := usual()
	q.Private = b
	q.Conn = mpa.Enhanced{PeerToPeer: true, RTR: mpa.RTRSend, IRD: 4, ORD: 4}
	s := &sdpEnd{stream: &stream{t: t, c: t.connect(), msn: 1, want: 1}, bufs: 32}
	t.write(s.c, q.Append(nil))
	r := s.frame("SDP-8.1.1-2")
	s.agree(q, r)
	return s, r
}

// sdpOpen opens an SDP connection; change is as in greet.
func (t *T) sdpOpen(change func(b []byte) []byte) *sdpEnd {
	s, r := t.greet(change)
	t.check(!r.Reject, "SDP-6.2-1", "the connection is refused: private data % x", r.Private)
	s.sendMessage(nil) // MPA requires that the Initiator sends first
	b, ok := s.message()
	t.check(ok, "SDP-6.2-1", "no HelloAck")
	t.check(len(b) == sdpwire.HelloAckLen, "SDP-6.2.2-1", "a HelloAck of %d bytes", len(b))
	a, _, err := sdpwire.ParseHelloAck(b, sdpwire.Figure)
	t.check(err == nil, "SDP-6.2.2-3", "HelloAck: %v", err)
	s.ack = a
	return s
}

// sendSDP sends an SDP message.
func (s *sdpEnd) sendSDP(m sdpwire.Message, payload []byte) {
	m.Bufs, m.MSeq = s.bufs, s.seq
	if s.any {
		m.MSeqAck = s.in - 1
	}
	s.seq++
	m.Len = uint32(m.MID.HeaderLen() + len(payload))
	s.sendMessage(append(m.Append(nil, sdpwire.Figure), payload...))
}

// readSDP reads the next SDP message; ok is false if the peer sends none within Patience, or ends
// the connection.
func (s *sdpEnd) readSDP() (m sdpwire.Message, payload []byte, ok bool) {
	t := s.t
	b, ok := s.message()
	if !ok {
		return m, nil, false
	}
	t.check(len(b) >= sdpwire.BSDHLen, "SDP-6.1-1", "a message of %d bytes", len(b))
	_, _, length := sdpwire.Peek(b, sdpwire.Figure)
	t.check(int(length) == len(b), "SDP-6.1.4-1", "Len is %d in a message of %d bytes", length, len(b))
	m, n, err := sdpwire.Parse(b, sdpwire.Figure)
	t.check(err == nil, "SDP-6.1.1-1", "%v: % x", err, b[:sdpwire.BSDHLen])
	row := "SDP-6.1.5-2"
	if !s.any {
		row = "SDP-6.1.5-1"
	}
	t.check(m.MSeq == s.in, row, "MSeq is %d, expected %d", m.MSeq, s.in)
	t.check(b[2]>>3 == 0, "SDP-6.1.2-2", "flags are %#02x", b[2])
	t.check(s.seq == 0 && m.MSeqAck == 0 || int32(m.MSeqAck-s.seq) < 0, "SDP-6.1.6-1",
		"MSeqAck is %d, the last message sent was %d", m.MSeqAck, s.seq-1)
	s.in++
	s.any = true
	return m, b[n:], true
}

// echoes reads Data messages until all of b has returned.
func (s *sdpEnd) echoes(row string, b []byte) {
	var got []byte
	for len(got) < len(b) {
		m, p, ok := s.readSDP()
		if !ok {
			s.t.check(!s.echoed, row, "the peer echoes no longer")
			s.t.hidden("the peer does not echo")
		}
		switch m.MID {
		case sdpwire.Data:
			got = append(got, p...)
		case sdpwire.ModeChange: // the peer changes the mode of its own half
		case sdpwire.SrcAvail, sdpwire.SinkAvail:
			s.t.hidden("the peer advertises memory, which this case does not follow")
		default:
			s.t.fail("SDP-6.1.1-1", "%v unasked", m.MID)
		}
	}
	s.t.check(bytes.Equal(got, b), row, "%d bytes come back as %d others", len(b), len(got))
	s.echoed = true
}

// ended fails the case unless the peer aborts the connection within Patience. Messages other than
// Data are ignored.
func (s *sdpEnd) ended(row, why string) {
	for {
		u, e := s.fpdu(s.t.g.Patience)
		switch {
		case e == quiet:
			s.t.fail(row, "the connection goes on after %s", why)
		case e != whole:
			return
		}
		if s.header(u) == rdmap.TerminateOp {
			return
		}
		if h, n, err := ddp.ParseUntagged(u); err == nil && h.QN == 0 && len(u)-n > sdpwire.BSDHLen {
			if mid, _, _ := sdpwire.Peek(u[n:], sdpwire.Figure); mid == sdpwire.Data {
				s.t.fail(row, "the peer takes %s", why)
			}
		}
	}
}

func refusedHello(name, text, row string, change func(b []byte) []byte) Case {
	return Case{Name: "sdp/" + name, Proto: "sdp", Role: Passive, Rows: list(row), Text: text, run: func(t *T) {
		b := change(hello().Append(nil, sdpwire.Figure))
		q := usual()
		q.Private = b
		q.Conn = mpa.Enhanced{PeerToPeer: true, RTR: mpa.RTRSend, IRD: 4, ORD: 4}
		c := t.connect()
		t.write(c, q.Append(nil))
		f := make([]byte, mpa.FrameLen)
		n, e := t.read(c, f, t.g.Patience)
		t.check(e != quiet || n > 0, row, "no answer, and the connection stays open")
		if e == whole {
			t.check(f[16]&0x20 != 0, row, "it is accepted")
		}
		t.sdpOpen(nil).c.Close() // a correct client is served
	}}
}

// violates returns a case with a message that violates a rule.
func violates(name, text, row string, do func(s *sdpEnd)) Case {
	return Case{Name: "sdp/" + name, Proto: "sdp", Role: Passive, Rows: list(row), Text: text, run: func(t *T) {
		s := t.sdpOpen(nil)
		s.sendSDP(sdpwire.Message{MID: sdpwire.Data}, pattern(10))
		s.echoes("SDP-6.1.1-1", pattern(10))
		do(s)
		s.ended(row, "a message that is forbidden")
		t.sdpOpen(nil).c.Close()
	}}
}

var sdpPassive = []Case{
	{Name: "sdp/hello", Proto: "sdp", Role: Passive, Rows: list("SDP-6.2-1", "SDP-6.2.2-1", "SDP-6.2.2-3", "SDP-6.2.2.1-1", "SDP-6.2.2.3-1", "SDP-6.2.2.5-1", "SDP-6.2.2.6-1", "SDP-6.2.2.7-1"), Text: "a Hello is answered by a HelloAck whose fields are in range",
		run: func(t *T) {
			s := t.sdpOpen(nil)
			a := s.ack
			t.check(a.MajV == 1, "SDP-6.2.2.1-1", "MajV is %d", a.MajV)
			t.check(a.MinV == 1, "SDP-6.2.2.2-1", "MinV is %d", a.MinV)
			t.check(a.MaxAdverts > 0, "SDP-6.2.2.3-1", "MaxAdverts is 0")
			t.check(a.LocIRD > 0, "SDP-6.2.2.5-1", "LocIRD is 0")
			t.check(a.LocORD > 0, "SDP-6.2.2.6-1", "LocORD is 0")
			t.check(a.ActRcvSz >= sdpwire.MinBufferSize && a.ActRcvSz <= sdpwire.MaxSize,
				"SDP-6.2.2.4-1", "ActRcvSz is %d", a.ActRcvSz)
			t.check(a.Bufs >= sdpwire.MinBuffers, "SDP-10-2", "%d Private Buffers", a.Bufs)
		}},
	{Name: "sdp/minor-version", Proto: "sdp", Role: Passive, Rows: list("SDP-6.2.1.2-2"), Text: "another minor version is accepted",
		run: func(t *T) { t.sdpOpen(func(b []byte) []byte { b[19] = 2<<4 | 1; return b }) }},
	{Name: "sdp/hello-reserved", Proto: "sdp", Role: Passive, Rows: list("SDP-6.2.1.8-2"), Text: "reserved bits of a Hello are not examined",
		run: func(t *T) { t.sdpOpen(func(b []byte) []byte { b[18] = 0xff; return b }) }},
	refusedHello("major-version", "another major version is refused", "SDP-6.2.1.1-2",
		func(b []byte) []byte { b[19] = 1<<4 | 2; return b }),
	refusedHello("no-adverts", "MaxAdverts of zero is refused", "SDP-6.2.1.3-3",
		func(b []byte) []byte { b[16], b[17] = 0, 0; return b }),
	{Name: "sdp/echo", Proto: "sdp", Role: Passive, Rows: list("SDP-6.1.5-1", "SDP-6.1.5-2", "SDP-6.1.4-1", "SDP-6.1.2-2", "SDP-6.1.6-1", "SDP-6.1-1"), Text: "bytes come back in messages with consecutive numbers from zero",
		run: func(t *T) {
			s := t.sdpOpen(nil)
			for _, n := range []int{1, 100, 5000} {
				s.sendSDP(sdpwire.Message{MID: sdpwire.Data}, pattern(n))
				s.echoes("SDP-6.1.1-1", pattern(n))
			}
		}},
	{Name: "sdp/flags-ignored", Proto: "sdp", Role: Passive, Rows: list("SDP-6.1.2-3"), Text: "flag bits 3 to 7 are not examined",
		run: func(t *T) {
			s := t.sdpOpen(nil)
			m := sdpwire.Message{MID: sdpwire.Data, Bufs: s.bufs, Len: sdpwire.BSDHLen + 20}
			s.seq++
			b := append(m.Append(nil, sdpwire.Figure), pattern(20)...)
			b[2] |= 0xf8
			s.sendMessage(b)
			s.echoes("SDP-6.1.2-3", pattern(20))
		}},
	{Name: "sdp/disconn", Proto: "sdp", Role: Passive, Rows: list("SDP-6.2.3-1", "SDP-6.2-2"), Text: "DisConn is answered by a bare DisConn once the peer has no more to send",
		run: func(t *T) {
			s := t.sdpOpen(nil)
			s.sendSDP(sdpwire.Message{MID: sdpwire.DisConn}, nil)
			for {
				m, p, ok := s.readSDP()
				if !ok {
					t.hidden("the peer does not close its half")
				}
				if m.MID == sdpwire.DisConn {
					t.check(len(p) == 0 && m.Len == sdpwire.BSDHLen, "SDP-6.2.3-1", "a DisConn of %d bytes", m.Len)
					return
				}
			}
		}},
	violates("mseq", "a gap in MSeq ends the connection", "SDP-6.1.5-2", func(s *sdpEnd) {
		s.seq += 3
		s.sendSDP(sdpwire.Message{MID: sdpwire.Data}, pattern(10))
	}),
	violates("reserved-mid", "a reserved MID ends the connection", "SDP-6.1.1-3", func(s *sdpEnd) {
		s.sendSDP(sdpwire.Message{MID: sdpwire.MID(0x20)}, nil)
	}),
	violates("len", "a Len that is not that of the message ends the connection", "SDP-6.1.4-1", func(s *sdpEnd) {
		m := sdpwire.Message{MID: sdpwire.Data, Bufs: s.bufs, MSeq: s.seq, MSeqAck: s.in - 1, Len: 500}
		b := append(m.Append(nil, sdpwire.Figure), pattern(10)...)
		binary.BigEndian.PutUint32(b[4:], 500)
		s.sendMessage(b)
	}),
	violates("long-disconn", "a DisConn with payload ends the connection", "SDP-6.2.3-1", func(s *sdpEnd) {
		m := sdpwire.Message{MID: sdpwire.DisConn, Bufs: s.bufs, MSeq: s.seq, MSeqAck: s.in - 1,
			Len: sdpwire.BSDHLen + 4}
		s.sendMessage(append(m.Append(nil, sdpwire.Figure), 1, 2, 3, 4))
	}),
}
