package vitcp

import (
	"viaduct/internal/frameio"
	"viaduct/internal/regmem"
	"viaduct/internal/wire/vitcpwire"
	"viaduct/vi"
)

// An outgoing is the message in progress, if active is set. The segments are consecutive, except
// for Read Responses in between. [VIT-2.2.2.2.3-5]
type outgoing struct {
	active bool
	typ    vitcpwire.Type
	flags  vitcpwire.Flags
	d      *vi.Descriptor
	seq    uint64
	cur    vi.Cursor
	offset uint32
	rdma   vitcpwire.RDMA
}

// begin makes the message of d the message in progress, unless d is an RDMA Read.
func (o *outgoing) begin(d *vi.Descriptor, seq uint64) {
	op := d.Control.Op()
	o.active = op != vi.OpRDMARead
	o.typ, o.flags = vitcpwire.Send, 0
	o.d, o.seq, o.cur, o.offset = d, seq, vi.Cursor{}, 0
	if op != vi.OpSendReceive {
		o.typ = vitcpwire.Write
		o.rdma = vitcpwire.RDMA{Address: d.Remote.Address, Handle: uint32(d.Remote.Handle), Length: d.Length} // [V-24] [V-25]
	}
	if d.Control&vi.Immediate != 0 {
		o.flags = vitcpwire.ImmediateValid
	}
}

// segment returns the header of the next segment of message number, with head bytes of headers and
// n bytes of payload. If void is set, the segment ends the message as void.
func (o *outgoing) segment(number vitcpwire.Number, head, n int, void bool) vitcpwire.Header {
	h := vitcpwire.Header{Type: o.typ, Flags: o.flags, Length: uint16(head + n), Offset: o.offset, Number: number}
	if o.flags&vitcpwire.ImmediateValid != 0 { // the immediate data is in all segments [V-29]
		h.Immediate = o.d.ImmediateData
	}
	o.offset += uint32(n)
	switch {
	case void:
		h.Flags |= vitcpwire.EndOfMessage | vitcpwire.TransmitError // [V-30] [VIT-2.2.2.2.5-5]
	case o.offset == o.d.Length:
		h.Flags |= vitcpwire.EndOfMessage
	}
	return h
}

// putData appends the next segment of the active message.
func (t *sender) putData(b *frameio.Batch) {
	d := t.d
	hl := t.dialect.HeaderLen(t.typ)
	want := int(min(uint32(t.maxSeg-hl), d.Length-t.offset))
	// The header is written last, when the length is known. The batch reserves the room.
	head := b.Header(hl)
	n, bad := 0, vi.Status(0)
	for pieces := b.Pieces(); n < want && pieces > 0; pieces-- {
		m, st := t.ep.Gather(t.batch.held, d, &t.cur, want-n)
		if st != 0 {
			bad = st
			break
		}
		if m.Len() == 0 {
			bad = vi.StatusFormatError // the program has changed the descriptor while it was posted
			break
		}
		ref, st := t.steady(b, regmem.Ref(m))
		if st != 0 {
			bad = st
			break
		}
		n += ref.Len()
		t.batch.put(b, ref)
	}
	t.endSegment(head, n, bad)
}

// endSegment writes the header of the active message's next segment, with n bytes of payload. If
// bad is not 0, the segment ends the message as void.
func (t *sender) endSegment(head []byte, n int, bad vi.Status) {
	t.count.sentBytes.Add(uint64(n))
	h := t.segment(t.last, len(head), n, bad != 0)
	t.encode(head, h, t.rdma)
	if h.Flags&vitcpwire.EndOfMessage == 0 {
		return
	}
	d := t.d
	t.active, t.d = false, nil
	if bad != 0 {
		t.finishSend(d, t.seq, bad)
		return
	}
	t.whole = t.last
	if t.level != reception {
		t.batch.completes(t.seq)
	}
}

// putReadRequest appends the only segment of an RDMA Read.
func (t *sender) putReadRequest(b *frameio.Batch) {
	t.reads.Push(readOut{d: t.d, seq: t.seq, number: t.last})
	t.d = nil
	head := b.Header(t.dialect.HeaderLen(vitcpwire.ReadRequest))
	t.encode(head, vitcpwire.Header{
		Type: vitcpwire.ReadRequest, Flags: vitcpwire.EndOfMessage, Length: uint16(len(head)), Number: t.last,
	}, t.rdma)
	t.whole = t.last
}
