package conform

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"time"

	"viaduct/internal/wire/portmapwire"
)

// ask sends a datagram, and returns the answer, or nil if none arrives. Repeated answers to earlier
// datagrams are skipped. within is false if the peer must not answer.
func (t *T) ask(c net.Conn, b []byte, within bool) []byte {
	tries, wait := 4, t.g.Patience/4
	if !within {
		tries, wait = 1, t.g.Quiet
	}
	got := make([]byte, 2048)
	for range tries { // either datagram may be lost
		t.write(c, b)
		for end := time.Now().Add(wait); time.Now().Before(end); {
			n, ok := t.datagram(c, got, time.Until(end))
			if ok && !slices.ContainsFunc(t.answers, func(old []byte) bool { return bytes.Equal(old, got[:n]) }) {
				t.answers = append(t.answers, bytes.Clone(got[:n])) // the peer may repeat the answer
				return got[:n]
			}
		}
	}
	return nil
}

// request returns a PMReq for the service.
func (t *T) request(c net.Conn, handle uint64) portmapwire.Message {
	ap, err := netip.ParseAddrPort(t.g.Service)
	if err != nil {
		t.fail(t.c.Rows[0], "service %q: %v", t.g.Service, err)
	}
	local := c.LocalAddr().(*net.UDPAddr).AddrPort()
	cp := netip.AddrPortFrom(local.Addr().Unmap(), 40000)
	if !ap.Addr().Is4() || !cp.Addr().Is4() {
		ap = netip.AddrPortFrom(netip.AddrFrom16(ap.Addr().As16()), ap.Port())
		cp = netip.AddrPortFrom(netip.AddrFrom16(cp.Addr().As16()), cp.Port())
	}
	return portmapwire.Message{Type: portmapwire.Request, AssocHandle: handle, Cp: cp, Ap: ap}
}

// answer checks the answer b to q, and returns the decoded answer.
func (t *T) answer(b []byte, q portmapwire.Message) portmapwire.Message {
	t.check(len(b) > 0, t.c.Rows[0], "no answer")
	t.check(len(b) == portmapwire.MessageLen, "SDP-7.3-1", "an answer of %d bytes", len(b))
	t.check(b[0]>>6 == 0, "SDP-7.3.1.1-1", "version %d", b[0]>>6)
	mt := b[0] >> 4 & 3
	t.check(mt == byte(portmapwire.Accept) || mt == byte(portmapwire.Deny), "SDP-7.3.1.2-1",
		"message type %d answers a request", mt)
	t.check(b[2]|b[3] == 0, "SDP-7.3.1.5-1", "reserved bits %x", b[2:4])
	t.check(b[0]&15 == q.Append(nil)[0]&15, "SDP-7.3.1.3-1", "IPV is %d", b[0]&15)
	if b[0]&15 == 4 {
		t.check(bytes.Equal(b[20:32], make([]byte, 12)) && bytes.Equal(b[36:48], make([]byte, 12)),
			"SDP-7.3.1.3-2", "the tail of an IPv4 address is not zero")
	}
	t.check(binary.BigEndian.Uint64(b[8:]) == q.AssocHandle, "SDP-7.3.1.8-2",
		"AssocHandle is %#x, sent was %#x", b[8:16], q.AssocHandle)
	m, err := portmapwire.Parse(b)
	t.check(err == nil, "SDP-7.3-1", "%v", err)
	t.check(m.Cp.Port() == q.Cp.Port(), "SDP-7.3.1.7-1", "CpPort is %d, sent was %d", m.Cp.Port(), q.Cp.Port())
	t.check(m.Cp.Addr() == q.Cp.Addr(), "SDP-7.3.1.9-1", "CpIPAddr is %v, sent was %v", m.Cp.Addr(), q.Cp.Addr())
	return m
}

func ignoredDatagram(name, text, row string, change func(b []byte) []byte) Case {
	return Case{Name: "portmap/" + name, Proto: "portmap", Role: Passive, Rows: list(row), Text: text, run: func(t *T) {
		c := t.connect()
		q := t.request(c, 0x1122334455667788)
		if b := t.ask(c, change(q.Append(nil)), false); len(b) > 0 && b[0]>>4&3 == byte(portmapwire.Accept) {
			t.fail(row, "it is accepted")
		}
		t.answer(t.ask(c, q.Append(nil), true), q) // a correct client is served
	}}
}

var portmapPassive = []Case{
	{Name: "portmap/answer", Proto: "portmap", Role: Passive, Rows: list("SDP-7.3-1", "SDP-7.3.1.1-1", "SDP-7.3.1.2-1", "SDP-7.3.1.3-2", "SDP-7.3.1.5-1", "SDP-7.3.1.7-1", "SDP-7.3.1.8-2", "SDP-7.3.1.9-1"), Text: "a request is answered in its form, with handle and addresses of the client unchanged",
		run: func(t *T) {
			c := t.connect()
			for _, h := range []uint64{1, 0xfedcba9876543210} {
				q := t.request(c, h)
				m := t.answer(t.ask(c, q.Append(nil), true), q)
				if m.Type == portmapwire.Accept {
					m.Type = portmapwire.Ack
					t.write(c, m.Append(nil))
				}
			}
		}},
	{Name: "portmap/deny", Proto: "portmap", Role: Passive, Rows: list("SDP-7.3.1.2-1", "SDP-7.3.1.10-1"), Text: "a service that is not mapped is denied, and named in the answer",
		run: func(t *T) {
			c := t.connect()
			q := t.request(c, 77)
			q.Ap = netip.AddrPortFrom(q.Ap.Addr(), 9) // the discard service
			m := t.answer(t.ask(c, q.Append(nil), true), q)
			if m.Type == portmapwire.Accept {
				t.hidden("the service is mapped")
			}
			t.check(m.Ap.Addr() == q.Ap.Addr(), "SDP-7.3.1.10-1", "ApIPAddr is %v, asked was %v",
				m.Ap.Addr(), q.Ap.Addr())
		}},
	{Name: "portmap/reserved", Proto: "portmap", Role: Passive, Rows: list("SDP-7.3.1.5-2", "SDP-7.3.1.3-3"), Text: "reserved bits and the tail of an IPv4 address are not checked",
		run: func(t *T) {
			c := t.connect()
			q := t.request(c, 99)
			b := q.Append(nil)
			b[2], b[3] = 0xff, 0xff
			if b[0]&15 == 4 {
				b[25], b[47] = 1, 2
			}
			t.answer(t.ask(c, b, true), q)
		}},
	ignoredDatagram("version", "a version that is not known is not accepted", "SDP-7.3.1.1-1",
		func(b []byte) []byte { b[0] |= 0x40; return b }),
	ignoredDatagram("ipv", "a reserved IPV is not accepted", "SDP-7.3.1.3-1",
		func(b []byte) []byte { b[0] = b[0]&0xf0 | 5; return b }),
	ignoredDatagram("short", "a datagram of another length is dropped", "SDP-7.3-1",
		func(b []byte) []byte { return b[:40] }),
}
