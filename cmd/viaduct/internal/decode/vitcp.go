package decode

import (
	"errors"
	"fmt"

	"viaduct/internal/wire/vitcpwire"
)

// A vitcpParser decodes VI/TCP.
type vitcpParser struct {
	c    *conn
	side [2]vitcpSide
	flow bool // both sides declared that descriptors are counted
}

// A vitcpSide is the decoding state of one direction.
type vitcpSide struct {
	attrs  vitcpwire.Attributes
	stated bool // attrs is known
	fresh  bool // the direction was seen from its first segment on

	sure   bool // number is the number of the last numbered message
	number vitcpwire.Number
	parts  [4]whole // the messages in progress, by partOf
	reads  []vitcpwire.Number
	lost   bool // requests may be missing from reads

	posted   vitcpwire.Count // receive descriptors that this side has posted, as last stated
	consumed vitcpwire.Count // messages of this side that use up a descriptor
}

func newVITCP(c *conn) *vitcpParser {
	p := &vitcpParser{c: c}
	for i := range p.side {
		p.side[i].fresh = c.seen
	}
	return p
}

func (p *vitcpParser) layer() string { return "vitcp" }

var dialect vitcpwire.Dialect

func (p *vitcpParser) need(h *half, b []byte) (total, header int, err error) {
	if len(b) < vitcpwire.HeaderLen {
		return 0, 0, nil
	}
	f, _, err := dialect.ParseHeader(b)
	if err != nil {
		id := "VIT-3.1-7"
		switch {
		case errors.Is(err, vitcpwire.ErrVersion):
			id = "VIT-3.1-2"
		case errors.Is(err, vitcpwire.ErrType):
			id = "VIT-3.1-3"
		}
		return 0, 0, &wrongError{id, err.Error()}
	}
	return int(f.Length), dialect.HeaderLen(f.Type), nil
}

func (p *vitcpParser) forget(h *half) {
	s := &p.side[side(h)]
	s.fresh, s.sure, s.lost, s.reads = false, false, true, nil
	s.parts = [4]whole{}
	p.flow = false // used descriptors cannot be counted any more
}

func (p *vitcpParser) frame(h *half, b []byte, total, filled int) int {
	f, n, err := dialect.ParseHeader(b)
	if err != nil {
		return 1
	}
	s, o := &p.side[side(h)], &p.side[1-side(h)]
	m := p.c.d.message(p.c, h.back)
	m.Proto, m.Name = "vitcp", f.Type.String()
	m.num("vitcp.type", uint64(f.Type))
	m.text("vitcp.flags", f.Flags.String())
	m.num("vitcp.length", uint64(f.Length))
	m.num("vitcp.offset", uint64(f.Offset))
	m.num("vitcp.number", uint64(f.Number))
	m.num("vitcp.ack", uint64(f.Ack))
	m.num("vitcp.posted", uint64(f.Posted))
	if f.Flags&vitcpwire.ImmediateValid != 0 {
		m.hex("vitcp.immediate", uint64(f.Immediate))
	}
	if f.Error != 0 {
		m.text("vitcp.error", f.Error.String())
	}
	var rdma vitcpwire.RDMA
	switch {
	case f.Type.HasRDMA():
		r, k, err := vitcpwire.ParseRDMA(b[n:total])
		if err == nil {
			rdma = r
			m.hex("vitcp.address", r.Address)
			m.hex("vitcp.handle", uint64(r.Handle))
			m.num("vitcp.rdma_length", uint64(r.Length))
			n += k
		}
	case f.Type.HasCE():
		ce, k, err := vitcpwire.ParseCE(b[n:total])
		if err != nil {
			m.wrong("VIT-3.2-3", err.Error())
		} else {
			p.connect(s, o, m, f, ce)
		}
		n += k
	}
	if filled > 0 {
		m.Note = fmt.Sprintf("%d of %d bytes are not in the capture", filled, total)
	}
	payload := max(0, total-n)
	m.num("vitcp.payload", uint64(payload))
	whole := p.judge(h, s, o, m, f, rdma, payload)
	if p.c.d.opt.Segments || whole || len(m.Wrong) > 0 || m.Note != "" {
		p.c.d.emit(m)
	}
	return total
}

func (p *vitcpParser) connect(s, o *vitcpSide, m *Message, f vitcpwire.Header, ce vitcpwire.CE) {
	m.text("vitcp.attributes", ce.Attributes.String())
	m.num("vitcp.mtu", uint64(ce.MTU))
	m.text("vitcp.calling", ce.Calling.String())
	m.text("vitcp.called", ce.Called.String())
	m.num("vitcp.read_window", uint64(ce.ReadWindow))
	if f.Type == vitcpwire.ConnectReject {
		m.text("vitcp.reason", f.Error.RejectReason())
	}
	if f.Type == vitcpwire.ConnectRequest || f.Type == vitcpwire.ConnectAccept {
		s.attrs, s.stated, s.posted = ce.Attributes, true, f.Posted
		p.flow = s.stated && o.stated && s.attrs&o.attrs&vitcpwire.FlowControl != 0 && s.fresh && o.fresh
	}
}

// partOf returns the index of a type whose messages may have several segments, and otherwise 3.
func partOf(t vitcpwire.Type) int {
	switch t {
	case vitcpwire.Send:
		return 0
	case vitcpwire.Write:
		return 1
	case vitcpwire.ReadResponse:
		return 2
	}
	return 3
}

// judge checks a segment on its own and against the earlier segments, and reports whether a message
// is complete.
func (p *vitcpParser) judge(h *half, s, o *vitcpSide, m *Message, f vitcpwire.Header, rdma vitcpwire.RDMA, payload int) bool {
	if f.Type == vitcpwire.NOP && payload > 0 {
		m.wrong("VIT-3.1-NOP-1", fmt.Sprintf("a NOP with %d bytes behind it", payload))
	}
	if f.Posted.Sub(s.posted) > 0 {
		s.posted = f.Posted
	}
	multi := f.Type == vitcpwire.Send || f.Type == vitcpwire.Write || f.Type == vitcpwire.ReadResponse
	w := &s.parts[partOf(f.Type)]
	first := !multi || f.Offset == 0
	if s.fresh || s.sure || w.segments > 0 {
		if due := w.bytes; multi && uint64(f.Offset) != due {
			m.wrong("VIT-3.1-8", fmt.Sprintf("Data Offset %d where %d was due", f.Offset, due))
		}
	}
	if f.Type.Numbered() {
		switch {
		case !s.sure:
		case first && w.segments == 0 && f.Number != s.number.Add(1):
			m.wrong("VIT-3.1-10", fmt.Sprintf("message number %d where %d was due", uint32(f.Number),
				uint32(s.number.Add(1))))
		case w.segments > 0 && f.Number != s.number:
			m.wrong("VIT-3.1-13", fmt.Sprintf("message number %d within message %d", uint32(f.Number),
				uint32(s.number)))
		}
		s.sure, s.number = true, f.Number
	}
	w.segments++
	w.bytes = uint64(f.Offset) + uint64(payload)
	last := !multi || f.Flags&vitcpwire.EndOfMessage != 0
	if multi && (f.Type == vitcpwire.Write || f.Type == vitcpwire.ReadResponse) &&
		f.Flags&vitcpwire.TransmitError == 0 {
		if w.bytes > uint64(rdma.Length) || last && w.bytes != uint64(rdma.Length) {
			m.wrong("VIT-3.2.1-4", fmt.Sprintf("%d bytes so far, RDMA Length is %d", w.bytes, rdma.Length))
		}
	}
	switch f.Type {
	case vitcpwire.ReadRequest:
		if len(s.reads) >= maxReads {
			s.reads, s.lost = nil, true
		}
		s.reads = append(s.reads, f.Number)
	case vitcpwire.ReadResponse:
		switch {
		case len(o.reads) == 0 && !o.lost && o.fresh, len(o.reads) > 0 && !o.lost && o.reads[0] != f.Number:
			m.wrong("VIT-3.1-12", fmt.Sprintf("no RDMA Read Request with number %d is due for an answer",
				uint32(f.Number)))
		case len(o.reads) > 0 && o.reads[0] == f.Number && last:
			o.reads, o.lost = o.reads[1:], false
		}
	}
	if last && (f.Type == vitcpwire.Send || f.Type == vitcpwire.Write && f.Flags&vitcpwire.ImmediateValid != 0) {
		s.consumed = s.consumed.Add(1)
		if p.flow && s.consumed.Sub(o.posted) > 0 {
			m.wrong("VIT-3.1-17", fmt.Sprintf("uses receive descriptor %d, %d are posted",
				uint16(s.consumed), uint16(o.posted)))
		}
	}
	if last {
		if multi {
			m.num("vitcp.segments", uint64(w.segments))
			m.num("vitcp.bytes", w.bytes)
		}
		*w = whole{}
	}
	return last
}

// find searches for a segment followed by another segment, or by the end of b.
func (p *vitcpParser) find(h *half, b []byte, end bool) (at int, ok bool) {
	for at = 0; at+vitcpwire.HeaderLen <= len(b); at++ {
		n, good := vitcpHead(b[at:])
		if !good {
			continue
		}
		switch {
		case len(b)-at >= n+vitcpwire.HeaderLen:
			if _, good := vitcpHead(b[at+n:]); !good {
				continue
			}
		case len(b)-at == n && n > vitcpwire.HeaderLen+vitcpwire.RDMALen:
		case end:
			continue
		default:
			return at, false
		}
		p.forget(h)
		return at, true
	}
	return at, false
}

// vitcpHead reports whether b may begin with a segment, and the length of the segment.
func vitcpHead(b []byte) (n int, ok bool) {
	f, n, err := dialect.ParseHeader(b)
	if err != nil || f.Error.VI() > vitcpwire.DescriptorError || f.Type == vitcpwire.NOP && int(f.Length) != n {
		return 0, false
	}
	return int(f.Length), true
}
