package decode

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
	"viaduct/internal/wire/sdpwire"
)

// known is the state of a setting agreed on by the peers.
type known uint8

const (
	unknown known = iota
	on
	off
)

// An mpaParser decodes MPA and the protocols above it.
type mpaParser struct {
	c     *conn
	crc   known
	side  [2]mpaSide
	ulp   *sdpState // nil unless the stream is SDP
	isSDP bool      // the options say that the stream is SDP

	nvme *nvmeQueue // nil unless the stream is an NVMe queue
}

// An mpaSide is the decoding state of one direction.
type mpaSide struct {
	operates bool // the side's start-up frame was seen, or preceded the capture
	vain     int  // bytes whose CRC was wrong since the position of the next FPDU was lost
	dec      mpa.Decoder
	rdma     rdmaSide
}

func newMPA(c *conn, sdp bool) *mpaParser {
	p := &mpaParser{c: c, isSDP: sdp}
	p.side[0].rdma.readsLost, p.side[1].rdma.readsLost = true, true // until start-up is seen
	return p
}

func (p *mpaParser) layer() string { return "mpa" }

func side(h *half) int {
	if h.back {
		return 1
	}
	return 0
}

func (p *mpaParser) need(h *half, b []byte) (total, header int, err error) {
	s := &p.side[side(h)]
	if !s.operates {
		if _, ok := rawHello(b); ok && side(h) == 0 && p.ulp == nil {
			return sdpwire.HelloLen, sdpwire.HelloLen, nil
		}
		_, n, err := mpa.ParseFrame(b)
		id := "MPA-7.1.2-16"
		switch {
		case err == nil:
			return n, n, nil
		case errors.Is(err, io.ErrUnexpectedEOF):
			return 0, 0, nil
		case errors.Is(err, mpa.ErrRevision):
			id = "MPA-7.1.1-16"
		case errors.Is(err, mpa.ErrPrivate):
			id = "MPA-7.1.1-20"
		}
		s.operates = true
		return 0, 0, &wrongError{id, err.Error()}
	}
	fpdu, _, err := s.dec.Need(b)
	if err != nil {
		return 0, 0, err
	}
	header = mpa.LengthLen + ddp.UntaggedLen + rdmap.AtomicRequestLen
	if len(b) > mpa.LengthLen && ddp.IsTagged(b[mpa.LengthLen]) {
		header = mpa.LengthLen + ddp.TaggedLen
	}
	return fpdu, min(header, fpdu), nil
}

// rawHello reports whether b begins with a Hello, sent before MPA's start-up, and the Hello's
// layout.
func rawHello(b []byte) (l sdpwire.Layout, ok bool) {
	if l, ok = sdpwire.DetectLayout(b); !ok {
		return l, false
	}
	_, _, err := sdpwire.ParseHello(b, l)
	return l, err == nil
}

func (p *mpaParser) frame(h *half, b []byte, total, filled int) int {
	s := &p.side[side(h)]
	if !s.operates {
		if l, ok := rawHello(b); ok && total == sdpwire.HelloLen {
			p.hello(h, b[:total], l)
			return total
		}
		p.startUp(h, b[:total], filled)
		return total
	}
	m := p.c.d.message(p.c, h.back)
	m.Proto = "mpa"
	ulpdu, used := p.fpdu(h, m, b, total, filled)
	if ulpdu != nil {
		p.ddp(h, m, ulpdu, filled)
		return used
	}
	m.Name = "FPDU"
	p.c.d.emit(m)
	if used < total {
		h.lost = true
		p.forget(h)
	}
	return used
}

// fpdu parses an FPDU. If b is not a plausible FPDU, ulpdu is nil and used is the number of bytes
// to skip.
func (p *mpaParser) fpdu(h *half, m *Message, b []byte, total, filled int) (ulpdu []byte, used int) {
	s := &p.side[side(h)]
	frame := b[:total]
	_, n, err := s.dec.Need(frame)
	if err != nil {
		m.Note = err.Error()
		return nil, 1
	}
	m.num("mpa.ulpdu_length", uint64(n))
	if filled > 0 {
		m.text("mpa.crc", "not captured")
		m.Note = fmt.Sprintf("%d of %d bytes are not in the capture", filled, total)
		d := s.dec
		u, _, err := d.Next(frame)
		if err != nil {
			return nil, total
		}
		s.dec = d
		return u, total
	}
	good := crcGood(frame)
	switch {
	case p.crc == on && good, p.crc == unknown && good:
		p.crc = on
		m.text("mpa.crc", "good")
	case p.crc == on:
		m.text("mpa.crc", "bad")
		field, want := binary.LittleEndian.Uint32(frame[total-4:]), mpa.CRC(0, frame[:total-4])
		m.wrong("MPA-6-1", fmt.Sprintf("CRC is %08x, computed %08x", field, want))
		if !s.dec.Markers && len(b) >= total+4 && !plausible(b[total+mpa.LengthLen:], -1) {
			return nil, 1 // the length itself may be wrong
		}
	default:
		m.text("mpa.crc", "off")
	}
	d := s.dec // a copy, which does not check CRCs
	u, _, err := d.Next(frame)
	if err != nil {
		m.wrong("MPA-8-4", err.Error())
		p.c.ignore = true // the positions of the markers are unknown from here on
		return nil, total
	}
	s.dec = d
	if p.crc == on && !good {
		p.forget(h)
	}
	return u, total
}

func crcGood(frame []byte) bool {
	n := len(frame) - 4
	return binary.LittleEndian.Uint32(frame[n:]) == mpa.CRC(0, frame[:n])
}

// startUp decodes a Request or Reply Frame.
func (p *mpaParser) startUp(h *half, b []byte, filled int) {
	s := &p.side[side(h)]
	s.operates = true
	f, _, err := mpa.ParseFrame(b)
	if err != nil {
		return
	}
	m := p.c.d.message(p.c, h.back)
	m.Proto, m.Name = "mpa", "MPA "+f.Kind.String()+" Frame"
	m.truth("mpa.markers", f.Markers)
	m.truth("mpa.crc_wanted", f.CRC)
	m.truth("mpa.reject", f.Reject)
	m.num("mpa.rev", uint64(f.Rev))
	m.num("mpa.pd_length", uint64(f.PDLength()))
	if f.Enhanced {
		m.truth("mpa.peer_to_peer", f.Conn.PeerToPeer)
		m.text("mpa.rtr", f.Conn.RTR.String())
		m.num("mpa.ird", uint64(f.Conn.IRD))
		m.num("mpa.ord", uint64(f.Conn.ORD))
	}
	if len(f.Private) > 0 {
		m.text("mpa.private", fmt.Sprintf("%x", f.Private))
	}
	if filled > 0 {
		m.Note = fmt.Sprintf("%d bytes are not in the capture", filled)
	}
	other := &p.side[1-side(h)]
	other.dec.Markers = f.Markers // M concerns the direction towards its sender
	switch {
	case f.CRC:
		p.crc = on
	case f.Kind == mpa.Reply && p.crc == unknown && p.c.seen:
		p.crc = off
	}
	s.rdma.fresh, s.rdma.readsLost = true, false
	switch {
	case f.Kind == mpa.Request && h.back && p.c.half[0].began && p.side[0].operates:
		m.wrong("MPA-7.1.2-20", "both sides act as Initiator")
	case f.Kind == mpa.Reply && !p.side[1-side(h)].operates && !p.c.half[1-side(h)].lost && p.c.seen && !h.back:
		m.wrong("MPA-7.1.2-16", "a Reply opens the connection")
	}
	var greeting []byte
	var layout sdpwire.Layout
	if f.Kind == mpa.Request && filled == 0 && p.ulp == nil {
		const token = 16
		if l, ok := rawHello(f.Private); ok &&
			(len(f.Private) == sdpwire.HelloLen || len(f.Private) == sdpwire.HelloLen+token) {
			greeting, layout = f.Private, l
		}
		if p.nvme = nil; greeting == nil && !p.isSDP && !h.back {
			p.nvme = nvmeRequest(f.Private)
		}
	}
	p.c.d.emit(m)
	if greeting != nil {
		p.hello(h, greeting, layout)
	}
	if f.Kind == mpa.Reply && f.Reject {
		p.c.ignore = true // the ULP uses the stream directly from here on
	}
}

func (p *mpaParser) forget(h *half) {
	p.side[side(h)].rdma.forget()
	if p.ulp != nil {
		p.ulp.lost(side(h))
	}
}

// plausible reports whether b may be the beginning of a ULPDU of n bytes, or of any length if n is
// -1.
func plausible(b []byte, n int) bool {
	if len(b) < 2 {
		return true
	}
	v, o := rdmap.ParseControl(b[1])
	if b[0]&0x3f != ddp.Version || v != rdmap.Version || b[1]&0x30 != 0 || !o.Assigned() ||
		o.Tagged() != ddp.IsTagged(b[0]) {
		return false
	}
	if n >= 0 && n < ddp.HeaderLen(b[0]) {
		return false
	}
	if o.Tagged() || len(b) < ddp.UntaggedLen {
		return true
	}
	u, _, err := ddp.ParseUntagged(b)
	return err == nil && u.QN == o.Queue() && u.MO <= 1<<30
}

// find searches for an FPDU with a correct CRC or, without CRCs, for two consecutive FPDUs. For
// bytes that repeatedly look like the beginning of an FPDU, the work per skipped byte is limited.
func (p *mpaParser) find(h *half, b []byte, end bool) (at int, ok bool) {
	s := &p.side[side(h)]
	if s.dec.Markers {
		p.c.ignore = true
		return len(b), false
	}
	if !s.operates { // the missing bytes contain the start-up, or a part of it
		if _, _, err := mpa.ParseFrame(b); err == nil {
			return 0, true
		}
	}
	for at = 0; at+mpa.LengthLen+ddp.TaggedLen+4 <= len(b); at++ {
		c := b[at:]
		if c[2]&0x3f != ddp.Version || c[3]&0xf0 != rdmap.Version<<6 {
			continue
		}
		n := int(binary.BigEndian.Uint16(c))
		if !plausible(c[mpa.LengthLen:], n) {
			continue
		}
		total := mpa.FPDULen(n)
		if len(c) < total {
			if end {
				continue
			}
			return at, false
		}
		if s.vain > 1<<20+64*(h.skip+at) {
			continue
		}
		good := crcGood(c[:total])
		if !good {
			s.vain += total
		}
		switch {
		case good:
		case p.crc == on:
			continue
		case len(c) >= total+mpa.LengthLen+ddp.TaggedLen:
			if !plausible(c[total+mpa.LengthLen:], int(binary.BigEndian.Uint16(c[total:]))) {
				continue
			}
		case !end && len(c) != total:
			return at, false
		case len(c) == total && n > ddp.HeaderLen(c[2]): // ends where a packet ends
		default:
			continue
		}
		s.operates, s.vain = true, 0
		p.forget(h)
		return at, true
	}
	return at, false
}
