package decode

import (
	"encoding/binary"
	"errors"
	"fmt"

	"viaduct/internal/fc"
	"viaduct/internal/fc/fcip"
	"viaduct/internal/wire/iu"
)

// fcipWord is the first word of every encapsulated frame: protocol, version, complements.
const fcipWord = 0x0101fefe

// An fcipParser decodes an FCIP link and the Fibre Channel frames of the link.
type fcipParser struct {
	c    *conn
	side [2]struct{ began bool } // the side's Special Frame was seen
	f    fc.Frame
}

func newFCIP(c *conn) *fcipParser { return &fcipParser{c: c} }

func (p *fcipParser) layer() string { return "fcip" }

func (p *fcipParser) need(h *half, b []byte) (total, header int, err error) {
	if len(b) < 16 {
		return 0, 0, nil
	}
	n, err := fcip.FrameLen(b)
	if err != nil {
		return 0, 0, &wrongError{"FCFS-2.3-3", err.Error()}
	}
	const delimiter = 4
	return n, min(n, fcip.HeaderLen+delimiter+fc.HeaderLen), nil
}

func (p *fcipParser) frame(h *half, b []byte, total, filled int) int {
	b = b[:total]
	s := &p.side[side(h)]
	m := p.c.d.message(p.c, h.back)
	m.Proto, m.Name = "fcip", "FC frame"
	defer p.c.d.emit(m)
	m.num("fcip.length", uint64(total))
	if filled > 0 {
		m.Note = fmt.Sprintf("%d of %d bytes are not in the capture", filled, total)
		if hd, _, err := fc.ParseHeader(b[fcip.HeaderLen+4:]); err == nil {
			p.header(m, &hd)
		}
		return total
	}
	if !s.began {
		s.began = true
		if x, _, err := fcip.ParseSpecial(b); err == nil {
			m.Name = "FCIP Special Frame"
			m.hex("fcip.source", uint64(x.Source))
			m.hex("fcip.entity", x.Entity)
			m.hex("fcip.nonce", x.Nonce)
			m.hex("fcip.destination", uint64(x.Destination))
			m.num("fcip.k_a_tov", uint64(x.KATOV))
			m.truth("fcip.changed", x.Changed)
			return total
		}
	}
	_, err := fcip.Parse(b, &p.f)
	switch {
	case err == nil:
	case errors.Is(err, fc.ErrCRC):
		m.wrong("FCFS-2.1-6", fmt.Sprintf("CRC of the frame is %x", b[total-8:total-4]))
		if hd, _, err := fc.ParseHeader(b[fcip.HeaderLen+4:]); err == nil {
			p.header(m, &hd)
		}
		return total
	case errors.Is(err, fcip.ErrSync):
		m.wrong("FCFS-2.3-3", err.Error())
		h.lost = true
		return 1
	case errors.Is(err, fcip.ErrFrame):
		m.wrong("FCFS-2.3-1", err.Error())
		return total
	default:
		m.wrong("FCFS-2.1-1", err.Error())
		return total
	}
	f := &p.f
	m.text("fc.sof", f.SOF.String())
	m.text("fc.eof", f.EOF.String())
	p.header(m, &f.Header)
	switch {
	case f.RCtl == fc.RCtlELSReq || f.RCtl == fc.RCtlELSReply:
		m.Name = fc.CmdOf(f.Payload).String()
		m.num("fc.els", uint64(fc.CmdOf(f.Payload)))
	case f.Type == fc.TypeFCVI:
		p.fcvi(m, f)
	case f.Type == fc.TypeCT:
		if ct, _, err := fc.ParseCT(f.Payload); err == nil {
			m.Name = ct.Cmd.String()
			m.hex("fc.ct", uint64(ct.Cmd))
		}
	}
	m.num("fc.payload", uint64(len(f.Payload)))
	return total
}

func (p *fcipParser) header(m *Message, h *fc.Header) {
	m.Proto, m.Name = "fc", h.RCtl.String()
	m.hex("fc.r_ctl", uint64(h.RCtl))
	m.text("fc.s_id", h.SID.String())
	m.text("fc.d_id", h.DID.String())
	m.hex("fc.type", uint64(h.Type))
	m.hex("fc.f_ctl", uint64(h.FCtl))
	m.num("fc.seq_id", uint64(h.SeqID))
	m.hex("fc.df_ctl", uint64(h.DFCtl))
	m.num("fc.seq_cnt", uint64(h.SeqCnt))
	m.hex("fc.ox_id", uint64(h.OXID))
	m.hex("fc.rx_id", uint64(h.RXID))
	m.num("fc.parameter", uint64(h.Param))
}

// fcvi decodes the Device_Header of an Information Unit.
func (p *fcipParser) fcvi(m *Message, f *fc.Frame) {
	if len(f.Opt) < iu.ShortLen {
		return
	}
	h, n, err := iu.ParseHeader(f.Opt)
	if err != nil {
		return
	}
	m.Proto, m.Name = "fcvi", h.Op.String()
	m.num("fcvi.opcode", uint64(h.Op))
	if !h.Op.Valid() {
		m.wrong("FCVI-5.9.3-2", fmt.Sprintf("opcode %#x is not one of the twelve", uint8(h.Op)))
		return
	}
	m.hex("fcvi.handle", uint64(h.Handle))
	m.hex("fcvi.flags", uint64(h.Flags))
	m.num("fcvi.msg_id", uint64(h.MsgID))
	m.hex("fcvi.parameter", uint64(h.Param))
	if n == iu.LongLen {
		m.hex("fcvi.rmt_va", h.RmtVA)
		m.hex("fcvi.rmt_va_handle", uint64(h.RmtHandle))
		m.num("fcvi.tot_len", uint64(h.Total))
	}
}

// find searches for the first word of an encapsulated frame, followed by the word's copy.
func (p *fcipParser) find(h *half, b []byte, end bool) (at int, ok bool) {
	for at = 0; at+16 <= len(b); at++ {
		if binary.BigEndian.Uint32(b[at:]) != fcipWord {
			continue
		}
		if _, err := fcip.FrameLen(b[at:]); err == nil {
			return at, true
		}
	}
	return at, false
}

func (p *fcipParser) forget(*half) {} // frames are independent of each other
