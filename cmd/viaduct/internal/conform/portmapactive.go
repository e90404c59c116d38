package conform

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"time"

	"viaduct/internal/wire/portmapwire"
)

// askedBy receives the request of a client, and returns the request raw and decoded.
func (t *T) askedBy() (c net.Conn, raw []byte, q portmapwire.Message) {
	c = t.connect()
	raw = t.fromClient(c, true)
	t.check(raw != nil, "SDP-7.4-2", "no request")
	t.check(len(raw) == portmapwire.MessageLen, "SDP-7.3-1", "a request of %d bytes", len(raw))
	t.check(raw[0]>>6 == 0, "SDP-7.4-4", "version %d", raw[0]>>6)
	t.check(raw[0]>>4&3 == byte(portmapwire.Request), "SDP-7.4-6", "message type %d comes first", raw[0]>>4&3)
	t.check(raw[0]&15 == 4 || raw[0]&15 == 6, "SDP-7.4-5", "IPV is %d", raw[0]&15)
	if raw[0]&15 == 4 {
		t.check(bytes.Equal(raw[20:32], make([]byte, 12)) && bytes.Equal(raw[36:48], make([]byte, 12)),
			"SDP-7.3.1.3-2", "the tail of an IPv4 address is not zero")
	}
	t.check(raw[1] == 0, "SDP-7.4-7", "PmTime is %d", raw[1])
	t.check(raw[2]|raw[3] == 0, "SDP-7.3.1.5-1", "reserved bits %x", raw[2:4])
	t.check(binary.BigEndian.Uint16(raw[6:]) != 0, "SDP-7.4-10", "CpPort is 0")
	q, err := portmapwire.Parse(raw)
	t.check(err == nil, "SDP-7.3-1", "%v", err)
	return c, raw, q
}

// fromClient reads a datagram, or returns nil if none arrives. If wait is false, because the client
// must not send, fromClient only waits for Quiet.
func (t *T) fromClient(c net.Conn, wait bool) []byte {
	within := t.g.Patience
	if !wait {
		within = t.g.Quiet
	}
	b := make([]byte, 2048)
	n, ok := t.datagram(c, b, within)
	if !ok {
		return nil
	}
	return b[:n]
}

// answerTo returns an answer of type typ to q. An Accept names a port without a listener.
func answerTo(q portmapwire.Message, typ portmapwire.Type) portmapwire.Message {
	m := q
	m.Type = typ
	if typ == portmapwire.Accept {
		m.Ap = netip.AddrPortFrom(q.Ap.Addr(), q.Ap.Port()^1)
	}
	return m
}

// acknowledged sends answer, m or a modified form of m, and reads until the acknowledgement
// arrives. It answers a repeated request again, because the request may have been in flight, or the
// answer may have been lost. raw is the request as received.
func (t *T) acknowledged(c net.Conn, m portmapwire.Message, answer, raw []byte) {
	t.write(c, answer)
	for {
		b := t.fromClient(c, true)
		if b == nil { // the answer may be lost, and the client have given up
			t.again("SDP-7.4-25", "no PMAck")
		}
		if bytes.Equal(b, raw) {
			t.write(c, answer)
			continue
		}
		t.check(len(b) == portmapwire.MessageLen, "SDP-7.3-1", "a PMAck of %d bytes", len(b))
		t.check(b[0]>>4 == byte(portmapwire.Ack), "SDP-7.4-27",
			"version %d and message type %d in place of a PMAck", b[0]>>6, b[0]>>4&3)
		t.check(b[1] == 0, "SDP-7.4-29", "PmTime of a PMAck is %d", b[1])
		t.check(b[2]|b[3] == 0, "SDP-7.3.1.5-1", "reserved bits %x", b[2:4])
		want := m.Append(nil)
		t.check(b[0]&15 == want[0]&15, "SDP-7.4-28", "IPV of a PMAck is %d", b[0]&15)
		t.check(bytes.Equal(b[4:], want[4:]), "SDP-7.4-30", "the PMAck has %x, the PMAccept had %x", b[4:], want[4:])
		return
	}
}

// requestsOnly calls see with each message from the client within Quiet. The client may repeat the
// request.
func (t *T) requestsOnly(c net.Conn, see func(b []byte)) {
	b := make([]byte, 2048)
	for end := time.Now().Add(t.g.Quiet); time.Now().Before(end); {
		if n, ok := t.datagram(c, b, time.Until(end)); ok {
			see(b[:n])
		}
	}
}

// unanswered fails the case if the client answers with a PMAck. why describes the message the
// client must not answer.
func (t *T) unanswered(c net.Conn, row, why string) {
	t.requestsOnly(c, func(b []byte) {
		t.check(len(b) == portmapwire.MessageLen && b[0]>>4&3 == byte(portmapwire.Request), row,
			"a PMAck answers %s", why)
	})
}

// discarded returns a case with a datagram a client must not accept as an answer.
func discarded(name, text, row string, change func(b []byte) []byte) Case {
	return Case{Name: "portmap/" + name, Proto: "portmap", Role: Active, Rows: list(row), Text: text, run: func(t *T) {
		c, raw, q := t.askedBy()
		m := answerTo(q, portmapwire.Accept)
		t.write(c, change(m.Append(nil)))
		t.unanswered(c, row, "it")
		t.acknowledged(c, m, m.Append(nil), raw) // the valid answer
	}}
}

var portmapActive = []Case{
	{Name: "portmap/active-request", Proto: "portmap", Role: Active, Rows: list("SDP-7.4-2", "SDP-7.3-1", "SDP-7.4-4", "SDP-7.4-5", "SDP-7.4-6", "SDP-7.4-7", "SDP-7.4-10", "SDP-7.3.1.5-1", "SDP-7.3.1.3-2"), Text: "the request is well formed",
		run: func(t *T) { t.askedBy() }},
	{Name: "portmap/active-handles", Proto: "portmap", Role: Active, Rows: list("SDP-7.5.1-1", "SDP-7.4-11"), Text: "two transactions have different names",
		run: func(t *T) {
			_, _, a := t.askedBy()
			_, _, b := t.askedBy()
			t.check(a.AssocHandle != b.AssocHandle || a.Cp != b.Cp, "SDP-7.5.1-1",
				"AssocHandle %#x with %v twice", a.AssocHandle, a.Cp)
		}},
	{Name: "portmap/active-again", Proto: "portmap", Role: Active, Rows: list("SDP-7.5.1-3", "SDP-7.5.1-2", "SDP-7.5.1-4"), Text: "a request without an answer is sent again as it was",
		run: func(t *T) {
			c, raw, q := t.askedBy()
			b := t.fromClient(c, true)
			t.check(b != nil, "SDP-7.5.1-3", "the request is not sent again")
			t.check(bytes.Equal(b, raw), "SDP-7.5.1-4", "the request is sent again as %x, the first was %x", b, raw)
			m := answerTo(q, portmapwire.Accept)
			t.acknowledged(c, m, m.Append(nil), raw)
		}},
	{Name: "portmap/active-acknowledges", Proto: "portmap", Role: Active, Rows: list("SDP-7.4-25", "SDP-7.4-27", "SDP-7.4-28", "SDP-7.4-29", "SDP-7.4-30", "SDP-7.5-4"), Text: "a PMAccept is acknowledged by what it said, once",
		run: func(t *T) {
			c, raw, q := t.askedBy()
			m := answerTo(q, portmapwire.Accept)
			t.acknowledged(c, m, m.Append(nil), raw)
			t.write(c, m.Append(nil))
			t.unanswered(c, "SDP-7.5-4", "the same PMAccept again")
		}},
	{Name: "portmap/active-denied", Proto: "portmap", Role: Active, Rows: list("SDP-7.4-40", "SDP-7.4-39"), Text: "a PMDeny is not acknowledged and ends the transaction",
		run: func(t *T) {
			c, raw, q := t.askedBy()
			t.write(c, answerTo(q, portmapwire.Deny).Append(nil))
			t.requestsOnly(c, func(b []byte) { t.check(bytes.Equal(b, raw), "SDP-7.4-40", "%x answers a PMDeny", b) })
			if t.fromClient(c, true) != nil { // the PMDeny may have been lost
				t.again("SDP-7.4-39", "the client goes on after a PMDeny")
			}
		}},
	{Name: "portmap/active-ignored", Proto: "portmap", Role: Active, Rows: list("SDP-7.3.1.5-2", "SDP-7.3.1.3-3"), Text: "reserved bits of an answer are not checked, nor the tail of an IPv4 address",
		run: func(t *T) {
			c, raw, q := t.askedBy()
			m := answerTo(q, portmapwire.Accept)
			b := m.Append(nil)
			b[2], b[3] = 0xff, 0xff
			if b[0]&15 == 4 {
				b[25], b[47] = 1, 2
			}
			t.acknowledged(c, m, b, raw)
		}},
	discarded("active-handle", "an answer with another AssocHandle is discarded", "SDP-7.5.1-10",
		func(b []byte) []byte { b[15] ^= 1; return b }),
	discarded("active-version", "an answer of a version that is not known is discarded",
		"SDP-7.3.1.1-1", func(b []byte) []byte { b[0] |= 0x40; return b }),
	discarded("active-short", "an answer of another length is discarded", "SDP-7.3-1",
		func(b []byte) []byte { return b[:40] }),
}
