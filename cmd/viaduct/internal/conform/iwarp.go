package conform

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"time"

	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
)

// A stream is our end of an RDMAP Stream.
type stream struct {
	t    *T
	c    net.Conn
	enc  mpa.Encoder
	dec  mpa.Decoder
	buf  []byte // received bytes that are not decoded yet
	msn  uint32 // MSN of our next Send
	want uint32 // MSN of the peer's next Send
	got  int    // number of FPDUs received
}

// usual returns a Request every responder must support.
func usual() mpa.Frame {
	return mpa.Frame{Kind: mpa.Request, CRC: true, Rev: 2, Enhanced: true, Conn: mpa.Enhanced{IRD: 4, ORD: 4}}
}

// frame reads a start-up frame. An incomplete or unparsable frame violates the requirement row.
func (s *stream) frame(row string) mpa.Frame {
	b := make([]byte, mpa.FrameLen)
	n, e := s.t.read(s.c, b, s.t.g.Patience)
	s.t.check(e == whole, row, "%d bytes of a start-up frame, then %v", n, e)
	key := "MPA ID Req Frame"
	rowKey := "MPA-7.1.1-1"
	if s.t.c.Role == Passive {
		key, rowKey = "MPA ID Rep Frame", "MPA-7.1.1-3"
	}
	s.t.check(string(b[:16]) == key, rowKey, "the key is %q", b[:16])
	flags, rev, pd := b[16], b[17], int(binary.BigEndian.Uint16(b[18:]))
	s.t.check(flags&0x0f == 0, "MPA-7.1.1-13", "reserved bits are set in flags %#02x", flags)
	s.t.check(rev == 1 || rev == 2, "MPA-7.1.1-15", "revision %d", rev)
	s.t.check(flags&0x10 == 0 || rev >= 2, "MPA2-6-5", "S is set in revision %d", rev)
	s.t.check(pd <= mpa.MaxPrivate, "MPA-7.1.1-22", "PD_Length is %d", pd)
	p := make([]byte, pd)
	n, e = s.t.read(s.c, p, s.t.g.Patience)
	s.t.check(e == whole, "MPA-7.1.1-19", "PD_Length is %d and %d bytes follow, then %v", pd, n, e)
	s.t.check(flags&0x10 == 0 || pd >= mpa.EnhancedLen, "MPA2-6-9", "S is set and PD_Length is %d", pd)
	f, _, err := mpa.ParseFrame(append(b, p...))
	s.t.check(err == nil, row, "start-up frame: %v", err)
	return f
}

// start opens a stream as Initiator, waits for Pause, and returns the stream and the peer's Reply.
// A rejecting Reply fails the case.
func (t *T) start(q mpa.Frame) (*stream, mpa.Frame) {
	s := &stream{t: t, c: t.connect(), msn: 1, want: 1}
	t.write(s.c, q.Append(nil))
	r := s.frame("MPA-7.1.2-8")
	t.check(!r.Reject, t.c.Rows[0], "the Reply rejects the connection")
	s.agree(q, r)
	select {
	case <-time.After(t.g.Pause):
	case <-t.ctx.Done():
	}
	return s, r
}

func (s *stream) agree(ours, theirs mpa.Frame) {
	s.enc = mpa.Encoder{CRC: ours.CRC || theirs.CRC, Markers: theirs.Markers}
	s.dec = mpa.Decoder{CRC: ours.CRC || theirs.CRC, Markers: ours.Markers}
}

func (s *stream) send(parts ...[]byte) { s.t.write(s.c, s.enc.Append(nil, parts...)) }

// sendMessage sends b as a Send of a single segment.
func (s *stream) sendMessage(b []byte) {
	s.send(rdmap.Send.UntaggedHeader(ddp.MSN(s.msn), 0, true, 0).Append(nil), b)
	s.msn++
}

// fpdu reads the next FPDU and returns the payload. e is whole, or the reason why there is no FPDU.
// An invalid FPDU fails the case.
func (s *stream) fpdu(within time.Duration) (ulpdu []byte, e end) {
	chunk := make([]byte, 64<<10)
	deadline := time.Now().Add(within)
	for {
		u, n, err := s.dec.Next(s.buf)
		if err != nil {
			row := "MPA-4.1-6"
			if s.dec.Markers && s.got == 0 && len(s.buf) >= 4 {
				s.t.check(binary.BigEndian.Uint32(s.buf) == 0, "MPA-4.3-8",
					"the first octets are %x, not a marker", s.buf[:4])
			}
			if s.dec.Markers && !isCRC(err) {
				row = "MPA-4.3-3"
			}
			s.t.fail(row, "FPDU: %v", err)
		}
		if n > 0 {
			pad := mpa.PadLen(len(u))
			if !s.dec.Markers && n == mpa.FPDULen(len(u)) {
				for _, p := range s.buf[mpa.LengthLen+len(u) : mpa.LengthLen+len(u)+pad] {
					s.t.check(p == 0, "MPA-4.1-3", "pad octets are %x",
						s.buf[mpa.LengthLen+len(u):mpa.LengthLen+len(u)+pad])
				}
			}
			u = bytes.Clone(u)
			s.got++
			s.buf = s.buf[n:]
			return u, whole
		}
		s.c.SetReadDeadline(deadline)
		n, err = s.c.Read(chunk)
		s.buf = append(s.buf, chunk[:n]...)
		if n == 0 && err != nil {
			return nil, endOf(err)
		}
	}
}

func isCRC(err error) bool { _, ok := err.(*mpa.CRCError); return ok }

// header checks the rules for every ULPDU of the peer.
func (s *stream) header(u []byte) rdmap.Opcode {
	t := s.t
	t.check(len(u) >= 2, "DDP-4.4-1", "a ULPDU of %d bytes", len(u))
	t.check(u[0]&3 == ddp.Version, "DDP-4.1-10", "DDP version %d", u[0]&3)
	t.check(u[0]&0x3c == 0, "DDP-4.1-8", "reserved bits in DDP control %#02x", u[0])
	t.check(u[1]>>6 == rdmap.Version, "RDMAP-4.1-7", "RDMAP version %d", u[1]>>6)
	t.check(u[1]&0x30 == 0, "RDMAP-4.1-8", "reserved bits in RDMAP control %#02x", u[1])
	_, op := rdmap.ParseControl(u[1])
	t.check(op.Assigned(), "RDMAP-4.1-5", "opcode %d", u[1]&15)
	t.check(op.Tagged() == ddp.IsTagged(u[0]), "RDMAP-4.1-4", "%v with T=%t", op, ddp.IsTagged(u[0]))
	t.check(len(u) >= ddp.HeaderLen(u[0]), "DDP-4.4-1", "%v in a ULPDU of %d bytes", op, len(u))
	if !op.Tagged() {
		h, _, _ := ddp.ParseUntagged(u)
		t.check(h.QN == op.Queue(), "RDMAP-4.1-6", "%v to queue %d", op, h.QN)
		if op == rdmap.Send || op == rdmap.SendSE || op == rdmap.TerminateOp {
			t.check(h.RsvdULP[1]|h.RsvdULP[2]|h.RsvdULP[3]|h.RsvdULP[4] == 0, "RDMAP-4.1-9",
				"%v with invalidate STag %x", op, h.RsvdULP[1:])
		}
	}
	return op
}

// nextFPDU is like fpdu, but skips empty RDMA Writes, because the peer may send empty Writes at any
// time.
func (s *stream) nextFPDU(within time.Duration) (ulpdu []byte, e end) {
	for end := time.Now().Add(within); ; {
		u, e := s.fpdu(time.Until(end))
		if e != whole || len(u) != ddp.TaggedLen || !ddp.IsTagged(u[0]) || s.header(u) != rdmap.Write {
			return u, e
		}
	}
}

// message reads the peer's next message of a Send type. ok is false if the peer sends none within
// Patience, or ends the stream.
func (s *stream) message() (b []byte, ok bool) {
	t := s.t
	for first := true; ; first = false {
		u, e := s.nextFPDU(t.g.Patience)
		if e != whole {
			t.check(first || e == quiet, "DDP-4.1-3", "stream %v in the middle of a message", e)
			t.check(first, "DDP-4.1-3", "a message without its last segment")
			return nil, false
		}
		op := s.header(u)
		if op == rdmap.TerminateOp {
			x, _, err := rdmap.ParseTerminate(u[ddp.UntaggedLen:])
			t.fail(t.c.Rows[0], "the peer ends the stream: %v %v", x.Text(), err)
		}
		t.check(op.IsSend() || op.IsImmediate(), "RDMAP-7.2-2", "%v unasked", op)
		h, n, _ := ddp.ParseUntagged(u)
		if uint32(h.MSN) != s.want {
			row := "DDP-4.3-6"
			if s.want == 1 {
				row = "DDP-4.3-7"
			}
			t.fail(row, "MSN is %d, expected %d", h.MSN, s.want)
		}
		row := "DDP-5.2-5"
		if first {
			row = "DDP-4.3-10"
		}
		t.check(int(h.MO) == len(b), row, "MO is %d at octet %d", h.MO, len(b))
		b = append(b, u[n:]...)
		if h.Last {
			s.want++
			return b, true
		}
		t.check(len(b) <= 64<<20, "DDP-4.1-3", "a message without end")
	}
}

// echoed sends a message and fails the case unless the peer sends the message back. The case is not
// observable if the peer sends no message at all.
func (s *stream) echoed(row string, b []byte) {
	s.sendMessage(b)
	s.echo(row, b)
}

func (s *stream) echo(row string, b []byte) {
	got, ok := s.message()
	if !ok {
		if s.t.c.Role == Passive {
			s.t.check(s.stillThere(), row, "the peer ends the stream after a good message")
		}
		s.t.hidden("the peer does not echo")
	}
	s.t.check(bytes.Equal(got, b), row, "%d octets come back as %d others", len(b), len(got))
}

// opened sends a message, to permit the peer to send, and reads the echo. A peer without an echo is
// not at fault.
func (s *stream) opened() {
	s.sendMessage(pattern(8))
	s.message()
}

func (s *stream) stillThere() bool {
	_, e := s.fpdu(s.t.g.Quiet)
	return e == quiet
}

// An expected describes the permitted Terminate messages.
type expected struct {
	layer rdmap.Layer
	typ   uint8
	codes []uint8
	bare  bool // the segment could not be parsed, so the Terminate need not return its headers
}

func (x expected) String() string { return fmt.Sprintf("%d/%d/%x", x.layer, x.typ, x.codes) }

// terminated fails the case unless the peer answers the FPDU bad with an expected Terminate, ends
// the stream and sends nothing more.
func (s *stream) terminated(row string, x expected, bad []byte) {
	t := s.t
	u, e := s.fpdu(t.g.Patience)
	switch {
	case e == quiet:
		t.fail(row, "the peer takes it: no Terminate, and the stream is open")
	case e != whole:
		t.fail("RDMAP-6.2.1-1", "stream %v without a Terminate", e)
	}
	op := s.header(u)
	if op != rdmap.TerminateOp {
		t.check(op.IsSend(), row, "%v in place of a Terminate", op)
		h, _, _ := ddp.ParseUntagged(u)
		t.fail(row, "the peer takes it, and answers with %v MSN %d", op, h.MSN)
	}
	h, n, _ := ddp.ParseUntagged(u)
	t.check(h.QN == rdmap.QueueTerminate, "RDMAP-5.4-2", "Terminate to queue %d", h.QN)
	t.check(h.MSN == 1, "RDMAP-5.4-3", "Terminate with MSN %d", h.MSN)
	t.check(h.MO == 0 && h.Last, "DDP-4.3-10", "Terminate with MO %d, last %t", h.MO, h.Last)
	tm, _, err := rdmap.ParseTerminate(u[n:])
	t.check(err == nil, "RDMAP-4.8-1", "Terminate of %d octets: %v", len(u)-n, err)
	t.check(u[n+2]&0x1f == 0 && u[n+3] == 0, "RDMAP-4.8-5",
		"reserved bits of the Terminate control field: %x", u[n:n+4])
	is := func(v rdmap.Terminate) bool {
		return v.Layer == x.layer && v.Type == x.typ && bytes.IndexByte(x.codes, v.Code) >= 0
	}
	if !is(tm) {
		sw := tm
		if sw.Layer, sw.Type = rdmap.Layer(tm.Type), uint8(tm.Layer); is(sw) {
			t.fail("RDMAP-4.8-2", "layer and error type are in the wrong half of their octet: %x", u[n:n+4])
		}
		if tm.Layer != x.layer {
			// An upper layer may report the error of another layer for the same octets.
			t.fail(row, "Terminate %d/%d/%02x (%s), expected %v", tm.Layer, tm.Type, tm.Code, tm.Text(), x)
		}
		known := "RDMAP-4.8-3"
		if _, ok := rdmap.Describe(tm.Layer, tm.Type, tm.Code); ok {
			known = row
		}
		t.fail(known, "Terminate %d/%d/%02x (%s), expected %v", tm.Layer, tm.Type, tm.Code, tm.Text(), x)
	}
	if bad != nil && x.layer != rdmap.LayerLLP {
		t.check(tm.Length || x.bare, "RDMAP-7.1-3", "no DDP Segment Length")
		t.check(!tm.Length || int(tm.SegLen) == len(bad), "RDMAP-4.8-6",
			"DDP Segment Length is %d, the segment had %d", tm.SegLen, len(bad))
		if n := ddp.HeaderLen(bad[0]); tm.DDP != nil {
			t.check(bytes.Equal(tm.DDP, bad[:n]), "RDMAP-4.8-8", "the DDP header is %x, sent was %x", tm.DDP, bad[:n])
		}
		_, op := rdmap.ParseControl(bad[1])
		t.check(tm.RDMAP == nil || op == rdmap.ReadRequestOp, "RDMAP-4.8-11", "an RDMAP header for %v", op)
		if tm.RDMAP != nil {
			t.check(bytes.Equal(tm.RDMAP, bad[ddp.UntaggedLen:]), "RDMAP-4.8-10",
				"the RDMAP header is %x, sent was %x", tm.RDMAP, bad[ddp.UntaggedLen:])
		}
	}
	u, e = s.fpdu(t.g.Patience)
	t.check(e != whole, "RDMAP-5.4-8", "%d octets after the Terminate", len(u))
	t.check(e != quiet, "RDMAP-7-3", "the connection stays open after the Terminate")
}

// refuse sends a ULPDU, and checks that the peer answers with an expected Terminate.
func (s *stream) refuse(row string, x expected, parts ...[]byte) {
	bad := bytes.Join(parts, nil)
	s.send(bad)
	s.terminated(row, x, bad)
}

func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
}

func untagged(op rdmap.Opcode, qn uint32, msn uint32, mo uint32, last bool) []byte {
	h := op.UntaggedHeader(ddp.MSN(msn), mo, last, 0)
	h.QN = qn
	return h.Append(nil)
}

// bad returns a case with a ULPDU that violates a rule.
func bad(name, text string, x expected, row string, ulpdu func() []byte) Case {
	return Case{Name: "iwarp/" + name, Proto: "iwarp", Role: Passive,
		Rows: list(row, "RDMAP-4.8-1", "RDMAP-4.8-2", "RDMAP-4.8-6", "RDMAP-4.8-8", "RDMAP-5.4-8", "RDMAP-7-3"),
		Text: text,
		run: func(t *T) {
			s, _ := t.start(usual())
			s.refuse(row, x, ulpdu())
		}}
}

// refusedFrame returns a case with an invalid start-up frame. The peer must close the connection.
func refusedFrame(name, text, row string, change func(b []byte) []byte) Case {
	return Case{Name: "iwarp/" + name, Proto: "iwarp", Role: Passive,
		Rows: list(row, "MPA-7.1.2-4", "MPA-8-6"), Text: text,
		run: func(t *T) {
			c := t.connect()
			t.write(c, change(usual().Append(nil)))
			t.gone(c, row, "to a malformed Request")
			s, _ := t.start(usual()) // a correct client is still served
			s.c.Close()
		}}
}

var iwarpPassive = []Case{
	{Name: "iwarp/reply", Proto: "iwarp", Role: Passive, Rows: list("MPA-7.1.2-8", "MPA-7.1.1-3", "MPA-7.1.1-13", "MPA-7.1.1-19", "MPA2-6-9", "MPA2-9.1-5"), Text: "a Request of revision 2 is answered by a Reply of its form",
		run: func(t *T) {
			_, r := t.start(usual())
			t.check(r.CRC, "MPA-4.4-3", "the Reply has C=0")
			if r.Rev == 2 && r.Enhanced {
				t.check(r.Conn.ORD <= 4 || r.Conn.ORD == mpa.DepthULP, "MPA2-9.1-5",
					"ORD is %d, IRD of the Request was 4", r.Conn.ORD)
				t.check(r.Conn.IRD > 0, "MPA2-9.1-2", "IRD is 0, ORD of the Request was 4")
				t.check(!r.Conn.PeerToPeer || r.Conn.RTR != 0, "MPA2-9-2", "the Reply asks for an RTR of no kind")
			}
		}},
	{Name: "iwarp/revision-1", Proto: "iwarp", Role: Passive, Rows: list("MPA2-6-7", "MPA-7.1.1-15", "MPA2-6-5"), Text: "a Request of revision 1 is accepted, by a Reply of revision 1",
		run: func(t *T) {
			s, r := t.start(mpa.Frame{Kind: mpa.Request, CRC: true, Rev: 1})
			t.check(r.Rev == 1, "MPA-7.1.1-15", "the Reply has revision %d", r.Rev)
			s.echoed("MPA2-6-7", pattern(100))
		}},
	{Name: "iwarp/reserved", Proto: "iwarp", Role: Passive, Rows: list("MPA2-6-3", "MPA-7.1.1-13"), Text: "reserved bits of a Request are neither checked nor sent back",
		run: func(t *T) {
			b := usual().Append(nil)
			b[16] |= 0x0f
			c := t.connect()
			t.write(c, b)
			s := &stream{t: t, c: c}
			s.frame("MPA2-6-3")
		}},
	refusedFrame("bad-key", "a wrong key closes the connection", "MPA-7.1.1-2",
		func(b []byte) []byte { b[15] ^= 1; return b }),
	refusedFrame("two-responders", "a Reply in place of a Request closes the connection",
		"MPA-7.1.1-2", func(b []byte) []byte { copy(b, "MPA ID Rep Frame"); return b }),
	refusedFrame("bad-revision", "a revision that is not known closes the connection",
		"MPA-7.1.1-17", func(b []byte) []byte { b[17] = 0; return b }),
	refusedFrame("long-private", "PD_Length above 512 closes the connection", "MPA-7.1.1-20",
		func(b []byte) []byte { b[18], b[19] = 2, 1; return b }),
	{Name: "iwarp/no-early-data", Proto: "iwarp", Role: Passive, Rows: list("MPA-7.1.2-15", "MPA-7.1.2-3"), Text: "the Responder sends nothing before the Request, and no FPDU before the first of the Initiator",
		run: func(t *T) {
			c := t.connect()
			t.silent(c, "MPA-7.1.2-3", "before the Request")
			s, _ := t.start(usual())
			t.silent(s.c, "MPA-7.1.2-15", "before the first FPDU of the Initiator")
		}},
	{Name: "iwarp/echo", Proto: "iwarp", Role: Passive, Rows: list("MPA-4.1-6", "MPA-4.1-1", "MPA-4.1-3", "DDP-4.1-8", "DDP-4.1-10", "DDP-4.3-6", "DDP-4.3-7", "RDMAP-4.1-7", "RDMAP-4.1-8", "RDMAP-4.1-9"), Text: "messages come back whole, with numbers from 1 in order, in well-formed FPDUs",
		run: func(t *T) {
			s, _ := t.start(usual())
			for _, n := range []int{1, 2, 3, 4, 1000} {
				s.echoed("DDP-5.2-4", pattern(n))
			}
		}},
	{Name: "iwarp/segments", Proto: "iwarp", Role: Passive, Rows: list("DDP-5.2-4", "DDP-4.1-2", "DDP-4.3-1"), Text: "a message of several segments is placed by its offsets and delivered with the last",
		run: func(t *T) {
			s, _ := t.start(usual())
			b := pattern(3000)
			for off := 0; off < len(b); off += 1000 {
				s.send(untagged(rdmap.Send, 0, s.msn, uint32(off), off == 2000), b[off:off+1000])
			}
			s.msn++
			s.echo("DDP-5.2-4", b)
		}},
	{Name: "iwarp/large", Proto: "iwarp", Role: Passive, Rows: list("DDP-5.2-3", "DDP-5.2-5", "DDP-4.1-3", "DDP-4.1-4", "DDP-5.2-1"), Text: "a message that needs several segments comes back whole",
		run: func(t *T) {
			s, _ := t.start(usual())
			b := pattern(200_000)
			for off := 0; off < len(b); off += 20_000 {
				s.send(untagged(rdmap.Send, 0, s.msn, uint32(off), off+20_000 == len(b)), b[off:off+20_000])
			}
			s.msn++
			s.echo("DDP-5.2-3", b)
		}},
	{Name: "iwarp/one-byte-at-a-time", Proto: "iwarp", Role: Passive, Rows: list("MPA-4.3-12"), Text: "boundaries of TCP segments mean nothing",
		run: func(t *T) {
			s, _ := t.start(usual())
			b := pattern(60)
			for _, x := range s.enc.Append(nil, untagged(rdmap.Send, 0, s.msn, 0, true), b) {
				t.write(s.c, []byte{x})
			}
			s.msn++
			s.echo("MPA-4.3-12", b)
		}},
	{Name: "iwarp/pad-ignored", Proto: "iwarp", Role: Passive, Rows: list("MPA-4.1-4"), Text: "pad octets that are not zero are accepted under a right CRC",
		run: func(t *T) {
			s, _ := t.start(usual())
			u := append(untagged(rdmap.Send, 0, s.msn, 0, true), pattern(3)...) // 21 octets with one octet of pad
			f := binary.BigEndian.AppendUint16(nil, uint16(len(u)))
			f = append(append(f, u...), bytes.Repeat([]byte{0xa5}, mpa.PadLen(len(u)))...)
			t.write(s.c, s.enc.AppendTrailer(f, len(u), 0)[:len(f)])
			crc := mpa.CRC(0, f)
			t.write(s.c, []byte{byte(crc), byte(crc >> 8), byte(crc >> 16), byte(crc >> 24)})
			s.msn++
			s.echo("MPA-4.1-4", pattern(3))
		}},
	{Name: "iwarp/markers", Proto: "iwarp", Role: Passive, Rows: list("MPA-7.1.1-6", "MPA-4.3-2", "MPA-4.3-3", "MPA-4.3-8"), Text: "a Request with M=1 obliges the peer to send markers, at the right places",
		run: func(t *T) {
			q := usual()
			q.Markers = true
			s, _ := t.start(q)
			s.echoed("MPA-4.3-13", pattern(3000))
			s.echoed("MPA-4.3-13", pattern(5))
		}},
	{Name: "iwarp/bad-crc", Proto: "iwarp", Role: Passive, Rows: list("MPA-4.4-15", "MPA-4.4-14", "MPA-8-9", "MPA-8-10"), Text: "an FPDU with a wrong CRC is not delivered, and a Terminate says so",
		run: func(t *T) {
			s, _ := t.start(usual())
			s.opened()
			f := s.enc.Append(nil, untagged(rdmap.Send, 0, s.msn, 0, true), pattern(100))
			f[40] ^= 1
			t.write(s.c, f)
			s.terminated("MPA-4.4-15", expected{rdmap.LayerLLP, 0, []uint8{byte(mpa.CodeCRC)}, false}, nil)
		}},
	bad("ddp-version", "an unknown version of DDP ends the stream", expected{rdmap.LayerDDP, 2, []uint8{6}, true}, "DDP-4.1-11", func() []byte {
		u := append(untagged(rdmap.Send, 0, 1, 0, true), 1)
		u[0] = u[0]&^3 | 2
		return u
	}),
	bad("ddp-queue", "a queue that does not exist ends the stream", expected{rdmap.LayerDDP, 2, []uint8{1}, false}, "DDP-7.1-1", func() []byte {
		return append(untagged(rdmap.Send, 17, 1, 0, true), 1)
	}),
	bad("ddp-msn", "an MSN out of range ends the stream", expected{rdmap.LayerDDP, 2, []uint8{2, 3}, false}, "DDP-7.1-8", func() []byte {
		return append(untagged(rdmap.Send, 0, 0, 0, true), 1)
	}),
	bad("ddp-mo", "an MO that does not fit ends the stream", expected{rdmap.LayerDDP, 2, []uint8{4, 5}, false}, "DDP-7.1-6", func() []byte {
		return append(untagged(rdmap.Send, 0, 1, 0xfffffff0, true), 1)
	}),
	bad("ddp-stag", "a Write to an STag that does not exist ends the stream", expected{rdmap.LayerDDP, 1, []uint8{0, 2}, false}, "DDP-7.1-9", func() []byte {
		return append(rdmap.Write.TaggedHeader(0xdeadbeef, 0, true).Append(nil), pattern(10)...)
	}),
	bad("ddp-tagged-version", "an unknown version in a Tagged segment ends the stream", expected{rdmap.LayerDDP, 1, []uint8{4}, true}, "DDP-4.1-11", func() []byte {
		u := append(rdmap.Write.TaggedHeader(1, 0, true).Append(nil), 1)
		u[0] &^= 3
		return u
	}),
	bad("rdmap-version", "an unknown version of RDMAP ends the stream", expected{rdmap.LayerRDMAP, 2, []uint8{5}, false}, "RDMAP-7.2-3", func() []byte {
		u := append(untagged(rdmap.Send, 0, 1, 0, true), 1)
		u[1] = u[1]&^0xc0 | 0x80
		return u
	}),
	bad("rdmap-opcode", "a reserved opcode ends the stream", expected{rdmap.LayerRDMAP, 2, []uint8{6}, false}, "RDMAP-7.2-2", func() []byte {
		return append(untagged(rdmap.Opcode(15), 0, 1, 0, true), 1)
	}),
	bad("rdmap-read-stag", "a Read Request for an STag that does not exist ends the stream", expected{rdmap.LayerRDMAP, 1, []uint8{0, 3}, false}, "RDMAP-7.2-7", func() []byte {
		return rdmap.ReadRequest{SinkSTag: 7, SinkTO: 9, Size: 100, SourceSTag: 0xdeadbeef, SourceTO: 5}.Append(untagged(rdmap.ReadRequestOp, 1, 1, 0, true))
	}),
	{Name: "iwarp/zero-write", Proto: "iwarp", Role: Passive, Rows: list("DDP-5.2-10", "RDMAP-5.1-8"), Text: "STag and TO of a Write without payload are not checked",
		run: func(t *T) {
			s, _ := t.start(usual())
			s.send(rdmap.Write.TaggedHeader(0xffffffff, 1<<64-1, true).Append(nil))
			s.echoed("DDP-5.2-10", pattern(9))
		}},
	{Name: "iwarp/zero-read", Proto: "iwarp", Role: Passive, Rows: list("RDMAP-4.4-2", "DDP-5.2-8"), Text: "a Read of no octets is answered by one, with the sink's STag and TO unchanged",
		run: func(t *T) {
			s, _ := t.start(usual())
			s.send(untagged(rdmap.ReadRequestOp, 1, 1, 0, true),
				rdmap.ReadRequest{SinkSTag: 0x12345678, SinkTO: 0xabcdef0123, Size: 0, SourceSTag: 0, SourceTO: 0}.Append(nil))
			u, e := s.fpdu(t.g.Patience)
			t.check(e == whole, "DDP-5.2-8", "no answer: %v", e)
			op := s.header(u)
			t.check(op == rdmap.ReadResponse, "RDMAP-4.1-5", "%v in place of a Read Response", op)
			h, n, _ := ddp.ParseTagged(u)
			t.check(h.STag == 0x12345678 && h.TO == 0xabcdef0123, "RDMAP-4.4-2", "STag %#x, TO %#x", h.STag, h.TO)
			t.check(h.Last && n == len(u), "DDP-5.2-8", "last %t, %d octets of payload", h.Last, len(u)-n)
		}},
	{Name: "iwarp/garbage", Proto: "iwarp", Role: Passive, Rows: list("RDMAP-7-1", "MPA-8-8"), Text: "octets that are no FPDU end their stream, and no other",
		run: func(t *T) {
			s, _ := t.start(usual())
			t.write(s.c, bytes.Repeat([]byte{0xff, 0x00, 0x5a}, 30_000))
			for {
				u, e := s.fpdu(t.g.Patience)
				if e != whole {
					t.check(e != quiet, "RDMAP-7-1", "the stream stays open")
					break
				}
				op := s.header(u)
				t.check(op == rdmap.TerminateOp, "MPA-8-8", "%v in answer to garbage", op)
			}
			good, _ := t.start(usual())
			good.echoed("RDMAP-7-1", pattern(10))
		}},
}

// dialledBy accepts a connection opened by the peer, and reads the Request.
func (t *T) dialledBy() (*stream, mpa.Frame) {
	s := &stream{t: t, c: t.connect(), msn: 1, want: 1}
	f := s.frame("MPA-7.1.2-1")
	t.check(!f.Reject, "MPA-7.1.1-11", "R is set in a Request")
	return s, f
}

// replyTo returns an accepting Reply to the Request q.
func replyTo(q mpa.Frame) mpa.Frame {
	r := mpa.Frame{Kind: mpa.Reply, CRC: true, Rev: q.Rev}
	if q.Enhanced {
		r.Enhanced = true
		r.Conn = mpa.Enhanced{PeerToPeer: q.Conn.PeerToPeer, RTR: q.Conn.RTR & -q.Conn.RTR,
			IRD: min(q.Conn.ORD, 16), ORD: min(q.Conn.IRD, 16)}
	}
	return r
}

func refusedReply(name, text, row string, change func(b []byte) []byte) Case {
	return Case{Name: "iwarp/" + name, Proto: "iwarp", Role: Active, Rows: list(row, "MPA-7.1.2-12"), Text: text,
		run: func(t *T) {
			s, q := t.dialledBy()
			t.write(s.c, change(replyTo(q).Append(nil)))
			t.gone(s.c, row, "to a malformed Reply")
		}}
}

var iwarpActive = []Case{
	{Name: "iwarp/request", Proto: "iwarp", Role: Active, Rows: list("MPA-7.1.2-1", "MPA-7.1.1-1", "MPA-7.1.1-13", "MPA2-6-5", "MPA-7.1.2-11"), Text: "the Request is well formed, and nothing follows it before the Reply",
		run: func(t *T) {
			s, q := t.dialledBy()
			t.check(q.CRC, "MPA-4.4-3", "the Request has C=0")
			t.silent(s.c, "MPA-7.1.2-11", "before the Reply")
		}},
	refusedReply("reply-bad-key", "a wrong key of the Reply closes the connection", "MPA-7.1.1-4",
		func(b []byte) []byte { b[3] ^= 1; return b }),
	refusedReply("two-initiators", "a Request in place of the Reply closes the connection",
		"MPA-7.1.2-20", func(b []byte) []byte { copy(b, "MPA ID Req Frame"); return b }),
	refusedReply("reply-bad-revision", "a revision of the Reply that is not known closes the connection",
		"MPA-7.1.1-17", func(b []byte) []byte { b[17] = 9; return b }),
	refusedReply("reply-long-private", "PD_Length above 512 in the Reply closes the connection",
		"MPA-7.1.1-20", func(b []byte) []byte { b[18], b[19] = 2, 1; return b }),
	{Name: "iwarp/long-private-reply", Proto: "iwarp", Role: Active, Dangerous: true, Rows: list("MPA-7.1.1-22", "MPA-7.1.2-23"), Text: "private data of 508 octets in a Reply is taken",
		run: func(t *T) {
			s, q := t.dialledBy()
			r := replyTo(q)
			r.Private = pattern(508)
			t.write(s.c, r.Append(nil))
			s.agree(r, q)
			if _, e := s.fpdu(t.g.Patience); e == closed || e == reset {
				t.fail("MPA-7.1.1-22", "the peer gives the connection up: %v", e)
			}
			again, _ := t.dialledBy() // the peer is still alive
			again.c.Close()
		}},
	{Name: "iwarp/first-fpdu", Proto: "iwarp", Role: Active, Rows: list("MPA-7.1.2-14", "MPA-4.1-6", "DDP-4.3-7", "RDMAP-4.1-7"), Text: "after the Reply the Initiator sends well-formed FPDUs",
		run: func(t *T) {
			s, q := t.dialledBy()
			r := replyTo(q)
			t.write(s.c, r.Append(nil))
			s.agree(r, q)
			u, e := s.fpdu(t.g.Patience)
			if e != whole {
				t.check(e == quiet, "MPA-7.1.2-14", "connection %v after the Reply", e)
				t.hidden("the peer sends nothing")
			}
			s.header(u)
			if !ddp.IsTagged(u[0]) {
				h, _, _ := ddp.ParseUntagged(u)
				t.check(h.MSN == 1, "DDP-4.3-7", "the first MSN is %d", h.MSN)
			}
		}},
	{Name: "iwarp/active-markers", Proto: "iwarp", Role: Active, Rows: list("MPA-4.3-8", "MPA-7.1.1-6", "MPA-7.1.2-19"), Text: "a Reply with M=1 obliges the Initiator to send markers",
		run: func(t *T) {
			s, q := t.dialledBy()
			r := replyTo(q)
			r.Markers = true
			t.write(s.c, r.Append(nil))
			s.agree(r, q)
			var b [4]byte
			n, e := t.read(s.c, b[:], t.g.Patience)
			if n == 0 && e == quiet {
				t.hidden("the peer sends nothing")
			}
			t.check(n == len(b), "MPA-7.1.1-6", "connection %v after %d octets", e, n)
			t.check(b == [4]byte{}, "MPA-4.3-8", "the first octets are %x, not a marker", b)
		}},
	{Name: "iwarp/active-bad-crc", Proto: "iwarp", Role: Active, Rows: list("MPA-4.4-15", "RDMAP-4.8-2"), Text: "an FPDU with a wrong CRC ends the stream by a Terminate",
		run: func(t *T) {
			s, q := t.dialledBy()
			r := replyTo(q)
			t.write(s.c, r.Append(nil))
			s.agree(r, q)
			if u, e := s.fpdu(t.g.Patience); e == whole {
				s.header(u)
			} else {
				t.hidden("the peer sends nothing, so nothing may be sent to it")
			}
			// The message is short, because a peer may refuse messages longer than the posted
			// receives.
			f := s.enc.Append(nil, untagged(rdmap.Send, 0, 1, 0, true), pattern(10))
			f[24] ^= 4
			t.write(s.c, f)
			for { // skip earlier messages of the peer
				u, e := s.fpdu(t.g.Patience)
				t.check(e == whole, "MPA-8-10", "stream %v without a Terminate", e)
				if s.header(u) == rdmap.TerminateOp {
					tm, _, err := rdmap.ParseTerminate(u[ddp.UntaggedLen:])
					if _, ok := tm.Swapped(); ok {
						t.fail("RDMAP-4.8-2", "layer and error type are in the wrong half of their octet")
					}
					t.check(err == nil && tm.Layer == rdmap.LayerLLP && tm.Type == 0 &&
						tm.Code == byte(mpa.CodeCRC), "MPA-4.4-15", "Terminate %s %v", tm.Text(), err)
					return
				}
			}
		}},
}
