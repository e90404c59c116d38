package conform

import (
	"viaduct/internal/wire/vitcpwire"
)

// A viCall is an unanswered Connect Request of the peer.
type viCall struct {
	*viEnd
	h  vitcpwire.Header
	ce vitcpwire.CE
}

// calledBy accepts a connection opened by the peer, and reads the Connect Request.
func (t *T) calledBy() *viCall {
	v := &viCall{viEnd: &viEnd{t: t, c: t.connect(), posted: 100}}
	h, body, e := v.segment(true)
	t.check(e == whole, "VIT-4.2-2", "no Connect Request: %v", e)
	t.check(h.Type == vitcpwire.ConnectRequest, "VIT-4.2-2", "%v opens the connection", h.Type)
	t.check(h.Flags&vitcpwire.EndOfMessage != 0, "VIT-3.1-5", "a Connect Request without the flag of a last segment")
	t.check(h.Offset == 0, "VIT-3.1-8", "Data Offset of a Connect Request is %d", h.Offset)
	ce, _, err := vitcpwire.ParseCE(body)
	t.check(err == nil, "VIT-3.2-1", "a Connect Request with %d bytes after its header: %v", len(body), err)
	v.h, v.ce = h, ce
	return v
}

// accept sends a Connect Accept. change may modify the headers, and bytes the encoded form.
func (v *viCall) accept(change func(h *vitcpwire.Header, ce *vitcpwire.CE), bytes func(b []byte) []byte) {
	called, err := vitcpwire.MakeDiscriminator(v.t.g.Disc)
	v.t.check(err == nil, v.t.c.Rows[0], "discriminator: %v", err)
	h := vitcpwire.Header{Type: vitcpwire.ConnectAccept, Flags: vitcpwire.EndOfMessage,
		Length: vitcpwire.HeaderLen + vitcpwire.CELen, Posted: v.posted}
	ce := vitcpwire.CE{Attributes: v.ce.Attributes, MTU: min(v.ce.MTU, 65536), Calling: called,
		ReadWindow: 1, Called: v.ce.Calling}
	if change != nil {
		change(&h, &ce)
	}
	v.posted = h.Posted
	b := ce.Append(dialect.AppendHeader(nil, h))
	if bytes != nil {
		b = bytes(b)
	}
	v.t.write(v.c, b)
}

// first reads the peer's first message. The case ends as not observable if the peer sends none.
func (v *viCall) first() (b []byte) {
	b, _, ok := v.message()
	if !ok {
		v.t.hidden("the peer sends nothing")
	}
	return b
}

// refusedAnswer returns a case with an answer to a Connect Request after which the peer must close
// the connection.
func refusedAnswer(name, text, row string, change func(h *vitcpwire.Header, ce *vitcpwire.CE), bytes func(b []byte) []byte) Case {
	return Case{Name: "vitcp/" + name, Proto: "vitcp", Role: Active, Rows: list(row), Text: text, run: func(t *T) {
		v := t.calledBy()
		v.accept(change, bytes)
		t.gone(v.c, row, "to this answer")
		t.calledBy() // the peer is still alive
	}}
}

var vitcpActive = []Case{
	{Name: "vitcp/request", Proto: "vitcp", Role: Active, Rows: list("VIT-4.2-2", "VIT-3.2-1", "VIT-3.2-2", "VIT-3.2-3", "VIT-3.2-4", "VIT-2.2.2.1-1"), Text: "the Connect Request is well formed and names the VI, and nothing follows it before the answer",
		run: func(t *T) {
			v := t.calledBy()
			t.check(string(v.ce.Called.Append(nil)) == string(t.g.Disc), "VIT-3.2-3",
				"the Called Discriminator is %v, that of the address is %q", v.ce.Called, t.g.Disc)
			t.check(v.ce.MTU > 0, "VIT-3.2-4", "the proposed MTU is 0")
			t.check(v.ce.Attributes&^vitcpwire.KnownAttributes == 0, "VIT-3.2-2",
				"unknown attribute bits in %#x", uint16(v.ce.Attributes))
			t.silent(v.c, "VIT-2.2.2.1-1", "before the answer to the Connect Request")
		}},
	{Name: "vitcp/active-messages", Proto: "vitcp", Role: Active, Rows: list("VIT-3.1-10", "VIT-3.1-8", "VIT-3.1-7", "VIT-3.1-16"), Text: "messages are well formed and have consecutive numbers",
		run: func(t *T) {
			v := t.calledBy()
			v.accept(nil, nil)
			b := v.first()
			for range 2 {
				v.send(vitcpwire.Header{Type: vitcpwire.Send}, b)
				next, _, ok := v.message()
				if !ok {
					t.hidden("the peer sends one message")
				}
				b = next
			}
		}},
	{Name: "vitcp/active-mtu", Proto: "vitcp", Role: Active, Rows: list("VIT-3.2-4"), Text: "no message is longer than the MTU of the Connect Accept",
		run: func(t *T) {
			v := t.calledBy()
			v.accept(func(_ *vitcpwire.Header, ce *vitcpwire.CE) { ce.MTU = 10 }, nil)
			b, _, ok := v.message()
			t.check(!ok || len(b) <= 10, "VIT-3.2-4", "a message of %d bytes, the agreed MTU was 10", len(b))
		}},
	{Name: "vitcp/active-credit", Proto: "vitcp", Role: Active, Rows: list("VIT-3.1-17", "VIT-2.2.1-2"), Text: "with descriptor flow control, messages wait for receive descriptors",
		run: func(t *T) {
			v := t.calledBy()
			if v.ce.Attributes&vitcpwire.FlowControl == 0 {
				t.hidden("the peer does not ask for descriptor flow control")
			}
			v.accept(func(h *vitcpwire.Header, _ *vitcpwire.CE) { h.Posted = 0 }, nil)
			v.noMessage("no receive descriptor was posted")
			v.posted = 1
			t.write(v.c, dialect.AppendHeader(nil,
				vitcpwire.Header{Type: vitcpwire.NOP, Flags: vitcpwire.EndOfMessage,
					Length: vitcpwire.HeaderLen, Number: v.number, Posted: v.posted}))
			b := v.first()
			v.send(vitcpwire.Header{Type: vitcpwire.Send}, b)
			v.noMessage("one receive descriptor was posted and used")
		}},
	refusedAnswer("accept-version", "a Connect Accept of another version ends the connection",
		"VIT-3.1-2", nil, func(b []byte) []byte { b[0] = 9; return b }),
	refusedAnswer("accept-type", "an answer of an unknown type ends the connection", "VIT-3.1-3",
		nil, func(b []byte) []byte { b[1] = 20 << 3; return b }),
	refusedAnswer("accept-length", "a Connect Accept that is shorter than its headers ends the connection",
		"VIT-3.1-7", nil, func(b []byte) []byte { b[2], b[3] = 0, 12; return b }),
	refusedAnswer("accept-reliability", "a Connect Accept with another reliability level ends the connection",
		"VIT-2.2.1-4", func(_ *vitcpwire.Header, ce *vitcpwire.CE) { ce.Attributes ^= vitcpwire.Reliable }, nil),
	refusedAnswer("rejected", "a Connect Reject ends the connection", "VIT-4.2-4", func(h *vitcpwire.Header, _ *vitcpwire.CE) {
		h.Type, h.Length = vitcpwire.ConnectReject, vitcpwire.HeaderLen
	}, func(b []byte) []byte { return b[:vitcpwire.HeaderLen] }),
	{Name: "vitcp/active-gap", Proto: "vitcp", Role: Active, Rows: list("VIT-3.1-10"), Text: "a gap in the message numbers breaks the connection",
		run: func(t *T) {
			v := t.calledBy()
			v.accept(nil, nil)
			v.send(vitcpwire.Header{Type: vitcpwire.Send}, v.first())
			b := v.first()
			v.number += 7
			v.send(vitcpwire.Header{Type: vitcpwire.Send}, b)
			v.broken("VIT-3.1-10", "after a gap in the message numbers", func(h vitcpwire.Header) {
				t.check(h.Type != vitcpwire.Send, "VIT-3.1-10",
					"the peer accepts a message after a gap in the numbers, and continues")
			})
		}},
	{Name: "vitcp/active-bad-handle", Proto: "vitcp", Role: Active, Rows: list("VIT-2.2.2.2.2-6", "VIT-3.1-ACK-6", "VIT-3.1-ERR-1", "VIT-3.1-ERR-3"), Text: "a Write to a handle that does not exist is reported as a protection error, and breaks the connection",
		run: func(t *T) {
			v := t.calledBy()
			v.accept(nil, nil)
			v.first()
			v.badWrite()
		}},
	{Name: "vitcp/active-close", Proto: "vitcp", Role: Active, Rows: list("VIT-2.2.2.2.2-3"), Text: "the end of the TCP connection ends the VI connection",
		run: func(t *T) {
			v := t.calledBy()
			v.accept(nil, nil)
			v.first()
			v.closed()
		}},
}

// noMessage fails the case if the peer ends the connection, or sends anything but NOPs. NOPs use no
// receive descriptor.
func (v *viCall) noMessage(why string) {
	for {
		h, _, e := v.segment(false)
		if e != whole {
			v.t.check(e == quiet, "VIT-3.1-17", "connection %v while %s", e, why)
			return
		}
		v.t.check(h.Type == vitcpwire.NOP, "VIT-3.1-17", "a %v comes, although %s", h.Type, why)
	}
}
