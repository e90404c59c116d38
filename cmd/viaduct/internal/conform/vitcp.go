package conform

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"

	"viaduct/internal/wire/vitcpwire"
)

var dialect vitcpwire.Dialect

// A viEnd is our end of a VI/TCP connection.
type viEnd struct {
	t      *T
	c      net.Conn
	number vitcpwire.Number // number of our last message
	theirs vitcpwire.Number // number of the peer's last message
	sure   bool             // theirs is set: the peer has sent a message
	posted vitcpwire.Count
	echoes bool // the peer is known to echo messages
	ack    vitcpwire.Number
	peer   vitcpwire.Header // the peer's last segment
}

const viFlags = vitcpwire.Reliable | vitcpwire.RDMAWrite | vitcpwire.RDMARead | vitcpwire.FlowControl

// call returns a Connect Request. change may modify the headers; nil leaves the headers unchanged.
func (t *T) call(change func(h *vitcpwire.Header, ce *vitcpwire.CE)) []byte {
	calling, _ := vitcpwire.MakeDiscriminator([]byte("conform"))
	called, err := vitcpwire.MakeDiscriminator(t.g.Disc)
	t.check(err == nil, t.c.Rows[0], "discriminator: %v", err)
	h := vitcpwire.Header{Type: vitcpwire.ConnectRequest, Flags: vitcpwire.EndOfMessage,
		Length: vitcpwire.HeaderLen + vitcpwire.CELen, Posted: 100}
	ce := vitcpwire.CE{Attributes: viFlags, MTU: 65536, Calling: calling, ReadWindow: 1, Called: called}
	if change != nil {
		change(&h, &ce)
	}
	return ce.Append(dialect.AppendHeader(nil, h))
}

// segment reads a segment. e is whole, or the reason why there is no segment. If wait is false,
// because the peer must not send, segment only waits for Quiet.
func (v *viEnd) segment(wait bool) (h vitcpwire.Header, body []byte, e end) {
	t := v.t
	within := t.g.Patience
	if !wait {
		within = t.g.Quiet
	}
	b := make([]byte, vitcpwire.HeaderLen)
	n, e := t.read(v.c, b, within)
	if e != whole {
		t.check(n == 0, "VIT-3.1-7", "%d bytes of a header, then %v", n, e)
		return h, nil, e
	}
	t.check(b[0] == vitcpwire.Version, "VIT-3.1-2", "version %d", b[0])
	h, _, err := dialect.ParseHeader(b)
	t.check(!errors.Is(err, vitcpwire.ErrLength), "VIT-3.1-7", "Segment Length is %d", h.Length)
	t.check(err == nil, "VIT-3.1-3", "%v: % x", err, b)
	body = make([]byte, int(h.Length)-vitcpwire.HeaderLen)
	n, e = t.read(v.c, body, t.g.Patience)
	t.check(e == whole, "VIT-3.1-7", "Segment Length is %d, and %d bytes follow the header, then %v", h.Length, n, e)
	t.check(h.Type != vitcpwire.NOP || len(body) == 0, "VIT-3.1-NOP-1", "a NOP with %d bytes", len(body))
	t.check(!h.Posted.Less(v.peer.Posted), "VIT-3.1-16", "Rx Descriptors Posted goes back from %d to %d",
		v.peer.Posted, h.Posted)
	v.peer = h
	return h, body, whole
}

// open connects, and returns the CE header of the peer's Accept. change may modify the Connect
// Request, as in call.
func (t *T) open(change func(h *vitcpwire.Header, ce *vitcpwire.CE)) (*viEnd, vitcpwire.CE) {
	v := &viEnd{t: t, c: t.connect(), posted: 100}
	t.write(v.c, t.call(change))
	h, body, e := v.segment(true)
	t.check(e == whole, "VIT-2.2.2.2.2-5", "no answer to a Connect Request: %v", e)
	t.check(h.Type == vitcpwire.ConnectAccept, "VIT-2.2.2.2.2-5", "%v (%s) answers a Connect Request",
		h.Type, h.Error.RejectReason())
	t.check(int(h.Length) >= vitcpwire.HeaderLen+vitcpwire.CELen, "VIT-3.2-1", "a Connect Accept of %d bytes", h.Length)
	ce, _, err := vitcpwire.ParseCE(body)
	t.check(err == nil, "VIT-3.2-3", "%v", err)
	return v, ce
}

// send sends a message of a single segment.
func (v *viEnd) send(h vitcpwire.Header, b []byte) {
	v.number = v.number.Add(1)
	h.Number, h.Ack, h.Posted = v.number, v.ack, v.posted
	h.Flags |= vitcpwire.EndOfMessage
	h.Length = uint16(vitcpwire.HeaderLen + len(b))
	v.t.write(v.c, append(dialect.AppendHeader(nil, h), b...))
}

// message reads the peer's next Send, and acknowledges the Send with our next segment. ok is false
// if the peer sends none within Patience, or ends the connection.
func (v *viEnd) message() (b []byte, last vitcpwire.Header, ok bool) {
	t := v.t
	for {
		h, body, e := v.segment(true)
		if e != whole {
			return nil, h, false
		}
		if h.Type == vitcpwire.NOP {
			continue
		}
		t.check(h.Type == vitcpwire.Send, "VIT-3.1-3", "%v unasked", h.Type)
		if v.sure && len(b) == 0 {
			t.check(h.Number == v.theirs.Add(1), "VIT-3.1-10", "message number %d after %d",
				uint32(h.Number), uint32(v.theirs))
		}
		t.check(int(h.Offset) == len(b), "VIT-3.1-8", "Data Offset is %d, %d bytes came before", h.Offset, len(b))
		v.theirs, v.sure = h.Number, true
		b = append(b, body...)
		if h.Flags&vitcpwire.EndOfMessage != 0 {
			v.ack = h.Number
			return b, h, true
		}
	}
}

func (v *viEnd) echoed(row string, h vitcpwire.Header, b []byte) vitcpwire.Header {
	v.send(h, b)
	got, last, ok := v.message()
	if !ok {
		v.t.check(!v.echoes, row, "the peer echoes no longer")
		v.t.hidden("the peer does not echo")
	}
	v.t.check(bytes.Equal(got, b), row, "%d bytes come back as %d others", len(b), len(got))
	v.echoes = true
	return last
}

// broken fails the case unless the peer closes the connection. see checks the earlier messages; if
// see is nil, a Send fails the case.
func (v *viEnd) broken(row, why string, see func(h vitcpwire.Header)) {
	for {
		h, _, e := v.segment(true)
		switch {
		case e == quiet:
			v.t.fail(row, "the connection stays open %s", why)
		case e != whole:
			return
		case h.Type == vitcpwire.Send && see == nil:
			v.t.fail(row, "the peer takes it, %s", why)
		case see != nil:
			see(h)
		}
	}
}

// badWrite sends a Write to unregistered memory.
func (v *viEnd) badWrite() {
	t := v.t
	v.number = v.number.Add(1)
	h := vitcpwire.Header{Type: vitcpwire.Write, Flags: vitcpwire.EndOfMessage,
		Length: vitcpwire.HeaderLen + vitcpwire.RDMALen + 8, Number: v.number, Ack: v.ack, Posted: v.posted}
	b := vitcpwire.RDMA{Address: 4096, Handle: 0xdeadbeef, Length: 8}.Append(dialect.AppendHeader(nil, h))
	t.write(v.c, append(b, pattern(8)...))
	told := false
	v.broken("VIT-2.2.2.2.2-6", "after a Write to no memory", func(h vitcpwire.Header) {
		if h.Error == 0 {
			return
		}
		told = true
		t.check(h.Error.VI() == vitcpwire.ProtectionError, "VIT-3.1-ERR-3", "the error is %v", h.Error)
		t.check(h.Ack == v.number, "VIT-3.1-ACK-6", "the error names message %d, the Write was %d",
			uint32(h.Ack), uint32(v.number))
	})
	t.check(told, "VIT-3.1-ERR-1", "the connection breaks without a report")
}

// closed closes our half of the TCP connection, and waits for the peer to close the other half.
func (v *viEnd) closed() {
	if c, ok := v.c.(interface{ CloseWrite() error }); !ok || errors.Is(c.CloseWrite(), errors.ErrUnsupported) {
		v.t.hidden("this connection can't be half-closed")
	}
	v.broken("VIT-2.2.2.2.2-3", "after the end of ours", func(vitcpwire.Header) {})
}

// refusedCall returns a case with a Connect Request the peer must not accept.
func refusedCall(name, text, row string, want func(t vitcpwire.Type) bool, change func(b []byte) []byte) Case {
	return Case{Name: "vitcp/" + name, Proto: "vitcp", Role: Passive, Rows: list(row), Text: text, run: func(t *T) {
		v := &viEnd{t: t, c: t.connect()}
		t.write(v.c, change(t.call(nil)))
		h, _, e := v.segment(true)
		if e == whole {
			t.check(want(h.Type), row, "%v answers it", h.Type)
		} else {
			t.check(e != quiet, row, "no answer, and the connection stays open")
		}
		again, _ := t.open(nil) // a correct client is served
		again.c.Close()
	}}
}

func never(vitcpwire.Type) bool { return false }

var vitcpPassive = []Case{
	{Name: "vitcp/accept", Proto: "vitcp", Role: Passive, Rows: list("VIT-3.2-1", "VIT-3.2-3", "VIT-3.2-5", "VIT-3.1-2", "VIT-3.1-3"), Text: "a Connect Request is accepted, with the lesser of both MTUs and the discriminators of both",
		run: func(t *T) {
			_, ce := t.open(nil)
			t.check(ce.MTU > 0 && ce.MTU <= 65536, "VIT-3.2-5", "the agreed MTU is %d, proposed was 65536", ce.MTU)
			_, ce = t.open(func(_ *vitcpwire.Header, c *vitcpwire.CE) { c.MTU = 777 })
			t.check(ce.MTU > 0 && ce.MTU <= 777, "VIT-3.2-5", "the agreed MTU is %d, proposed was 777", ce.MTU)
			t.check(string(ce.Calling.Append(nil)) == string(t.g.Disc) ||
				string(ce.Called.Append(nil)) == string(t.g.Disc), "VIT-3.2-3",
				"discriminators %v and %v, called was %q", ce.Calling, ce.Called, t.g.Disc)
			t.check(ce.Attributes&^vitcpwire.KnownAttributes == 0, "VIT-3.2-2",
				"unknown attribute bits in %#x", uint16(ce.Attributes))
		}},
	refusedCall("no-match", "a discriminator without a listener is answered by No Match", "VIT-2.2.2.2.1-2", func(t vitcpwire.Type) bool { return t == vitcpwire.ConnectNoMatch }, func(b []byte) []byte {
		copy(b[vitcpwire.HeaderLen+28:], "no such name!")
		binary.BigEndian.PutUint16(b[vitcpwire.HeaderLen+26:], 13)
		return b
	}),
	refusedCall("reliability", "another reliability level is not accepted", "VIT-2.2.1-4", func(t vitcpwire.Type) bool { return t == vitcpwire.ConnectReject || t == vitcpwire.ConnectNoMatch }, func(b []byte) []byte {
		b[vitcpwire.HeaderLen+1] ^= byte(vitcpwire.Reliable)
		return b
	}),
	refusedCall("version", "an unknown version is not answered", "VIT-3.1-2", never,
		func(b []byte) []byte { b[0] = 9; return b }),
	refusedCall("type", "an unknown type is not answered", "VIT-3.1-3", never,
		func(b []byte) []byte { b[1] = 20 << 3; return b }),
	refusedCall("length", "a Segment Length shorter than its headers is not answered", "VIT-3.1-7",
		never, func(b []byte) []byte { b[2], b[3] = 0, 12; return b }),
	{Name: "vitcp/echo", Proto: "vitcp", Role: Passive, Rows: list("VIT-3.1-10", "VIT-3.1-8", "VIT-3.1-7", "VIT-3.1-16"), Text: "messages come back whole, with consecutive numbers",
		run: func(t *T) {
			v, _ := t.open(nil)
			for _, n := range []int{1, 100, 4000} {
				v.echoed("VIT-3.1-15", vitcpwire.Header{Type: vitcpwire.Send}, pattern(n))
			}
		}},
	{Name: "vitcp/immediate", Proto: "vitcp", Role: Passive, Rows: list("VIT-3.1-9", "VIT-3.1-4"), Text: "immediate data arrives, and only where it was given",
		run: func(t *T) {
			v, _ := t.open(nil)
			h := v.echoed("VIT-3.1-15", vitcpwire.Header{Type: vitcpwire.Send, Flags: vitcpwire.ImmediateValid, Immediate: 0xabcd1234}, pattern(10))
			t.check(h.Flags&vitcpwire.ImmediateValid != 0 && h.Immediate == 0xabcd1234, "VIT-3.1-9",
				"the echo has flags %v, immediate data %#x", h.Flags, h.Immediate)
			h = v.echoed("VIT-3.1-15", vitcpwire.Header{Type: vitcpwire.Send, Immediate: 5}, pattern(10))
			t.check(h.Flags&vitcpwire.ImmediateValid == 0, "VIT-3.1-4",
				"the echo of a message without immediate data has some")
		}},
	{Name: "vitcp/segments", Proto: "vitcp", Role: Passive, Rows: list("VIT-2.2.2.2.3-3", "VIT-3.1-8"), Text: "a message of several segments arrives whole",
		run: func(t *T) {
			v, _ := t.open(nil)
			b := pattern(3000)
			v.number = v.number.Add(1)
			for off := 0; off < len(b); off += 1000 {
				h := vitcpwire.Header{Type: vitcpwire.Send, Length: vitcpwire.HeaderLen + 1000,
					Offset: uint32(off), Number: v.number, Posted: v.posted}
				if off == 2000 {
					h.Flags = vitcpwire.EndOfMessage
				}
				t.write(v.c, append(dialect.AppendHeader(nil, h), b[off:off+1000]...))
			}
			got, _, ok := v.message()
			if !ok {
				t.hidden("the peer does not echo")
			}
			t.check(bytes.Equal(got, b), "VIT-2.2.2.2.3-3", "%d bytes come back as %d others", len(b), len(got))
		}},
	{Name: "vitcp/acknowledged", Proto: "vitcp", Role: Passive, Rows: list("VIT-3.1-ACK-4", "VIT-3.1-ACK-1"), Text: "at Reliable Reception a message is acknowledged by its number",
		run: func(t *T) {
			v, _ := t.open(nil)
			v.send(vitcpwire.Header{Type: vitcpwire.Send}, pattern(10))
			for i := 0; i < 8; i++ {
				h, _, e := v.segment(true)
				t.check(e == whole, "VIT-3.1-ACK-4", "no acknowledgement: %v", e)
				if h.Ack == v.number {
					t.check(h.Error == 0, "VIT-3.1-ERR-3", "a good message is acknowledged with error %v", h.Error)
					return
				}
			}
			t.fail("VIT-3.1-ACK-1", "Message ACK is %d, the message was %d", uint32(v.peer.Ack), uint32(v.number))
		}},
	{Name: "vitcp/bad-handle", Proto: "vitcp", Role: Passive, Rows: list("VIT-2.2.2.2.2-6", "VIT-3.1-ACK-6", "VIT-3.1-ERR-1", "VIT-3.1-ERR-3"), Text: "a Write to a handle that does not exist is reported as a protection error, and breaks the connection",
		run: func(t *T) {
			v, _ := t.open(nil)
			v.badWrite()
		}},
	{Name: "vitcp/gap", Proto: "vitcp", Role: Passive, Rows: list("VIT-3.1-10"), Text: "a gap in the message numbers breaks the connection",
		run: func(t *T) {
			v, _ := t.open(nil)
			v.send(vitcpwire.Header{Type: vitcpwire.Send}, pattern(5))
			v.message()
			v.number += 7
			v.send(vitcpwire.Header{Type: vitcpwire.Send}, pattern(5))
			v.broken("VIT-3.1-10", "after a gap in the message numbers", nil)
		}},
	{Name: "vitcp/close", Proto: "vitcp", Role: Passive, Rows: list("VIT-2.2.2.2.2-3"), Text: "the end of the TCP connection ends the VI connection",
		run: func(t *T) {
			v, _ := t.open(nil)
			v.closed()
		}},
}
