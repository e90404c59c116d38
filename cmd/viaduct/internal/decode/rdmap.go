package decode

import (
	"fmt"
	"strings"

	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
)

// An rdmaSide follows the messages of one direction.
type rdmaSide struct {
	fresh  bool // the direction was seen from its first message on
	queue  [4]untagged
	tagged [3]whole // by opcode: Write and Read Response
	reads  []rdmap.ReadRequest
	// readsLost is set if requests may be missing from reads.
	readsLost bool
}

// An untagged follows the messages of one queue.
type untagged struct {
	whole
	sure bool // msn and mo are the next expected ones
	msn  ddp.MSN
	mo   uint32
}

// A whole collects the values of a message over its segments.
type whole struct {
	segments int
	bytes    uint64
	first    uint64 // TO of the first segment
	inner    []Field
	proto    string
	name     string
}

// maxReads limits the number of remembered Read Requests.
const maxReads = 65536

// forget discards uncertain state after a loss.
func (r *rdmaSide) forget() {
	r.fresh = false
	for i := range r.queue {
		r.queue[i].sure, r.queue[i].whole = false, whole{}
	}
	r.tagged = [3]whole{}
	r.readsLost = true
	r.reads = nil
}

// ddp decodes a segment. The last filled bytes of ulpdu were not captured.
func (p *mpaParser) ddp(h *half, m *Message, ulpdu []byte, filled int) {
	s := &p.side[side(h)].rdma
	if p.isSDP && p.ulp == nil {
		p.ulp = newSDP(p, false)
	}
	if len(ulpdu) < 2 || len(ulpdu) < ddp.HeaderLen(ulpdu[0]) {
		m.Name = "FPDU"
		id := "DDP-4.3-1"
		if len(ulpdu) > 0 && ddp.IsTagged(ulpdu[0]) {
			id = "DDP-4.2-1"
		}
		m.wrong(id, fmt.Sprintf("a ULPDU of %d bytes holds no DDP header", len(ulpdu)))
		p.c.d.emit(m)
		return
	}
	m.Proto = "rdmap"
	c := ulpdu[0]
	m.truth("ddp.tagged", ddp.IsTagged(c))
	m.truth("ddp.last", ddp.IsLast(c))
	_, op := rdmap.ParseControl(ulpdu[1])
	m.num("rdmap.opcode", uint64(op))
	m.Name = op.String()
	var w *whole
	var body []byte
	if ddp.IsTagged(c) {
		w, body = p.tagged(h, s, m, ulpdu)
	} else {
		w, body = p.untagged(h, s, m, ulpdu, filled)
	}
	if w == nil {
		p.c.d.emit(m)
		return
	}
	if w.segments == 0 {
		w.bytes, w.inner, w.proto, w.name = 0, nil, "", ""
	}
	w.segments++
	w.bytes += uint64(len(body))
	if m.Proto != "rdmap" {
		w.proto, w.name = m.Proto, m.Name
	} else if w.proto != "" {
		m.Proto, m.Name = w.proto, w.name
	}
	last := ddp.IsLast(c)
	if p.c.d.opt.Segments || !last {
		m.num("ddp.payload", uint64(len(body)))
	}
	if last {
		m.num("rdmap.segments", uint64(w.segments))
		m.num("rdmap.bytes", w.bytes)
		if w.inner != nil && !p.c.d.opt.Segments {
			m.Fields = append(m.Fields, w.inner...)
		}
		w.segments = 0
	} else if !p.c.d.opt.Segments {
		for _, f := range m.Fields { // fields of the upper layer, for the line of the whole message
			if strings.HasPrefix(f.Key, "sdp.") || strings.HasPrefix(f.Key, "nvme.") {
				w.inner = append(w.inner, f)
			}
		}
	}
	if last || p.c.d.opt.Segments || len(m.Wrong) > 0 || m.Note != "" {
		p.c.d.emit(m)
	}
}

func ddpFaults(m *Message, b []byte) bool {
	if b[0]&3 != ddp.Version {
		m.wrong("DDP-4.1-10", fmt.Sprintf("DDP version %d", b[0]&3))
		return true
	}
	return false
}

func rdmapFault(m *Message, f rdmap.Fault, op rdmap.Opcode, n int) bool {
	switch f {
	case rdmap.OK:
		return false
	case rdmap.InvalidVersion:
		m.wrong("RDMAP-7.2-3", "RDMAP version is not 1")
	case rdmap.UnexpectedOpcode:
		m.wrong("RDMAP-7.2-2", fmt.Sprintf("%v has no place here", op))
	default:
		m.wrong("RDMAP-4.2-2", fmt.Sprintf("%d bytes are not the length of %v", n, op))
	}
	return true
}

func (p *mpaParser) tagged(h *half, s *rdmaSide, m *Message, ulpdu []byte) (*whole, []byte) {
	if ddpFaults(m, ulpdu) {
		return nil, nil
	}
	t, n, err := ddp.ParseTagged(ulpdu)
	if err != nil {
		m.Note = err.Error()
		return nil, nil
	}
	body := ulpdu[n:]
	m.hex("ddp.stag", uint64(t.STag))
	op, fault := rdmap.CheckTagged(t.RsvdULP)
	if rdmapFault(m, fault, op, len(body)) {
		m.hex("ddp.to", t.TO)
		return nil, nil
	}
	w := &s.tagged[op]
	if w.segments == 0 {
		w.first = t.TO
	} else if t.TO != w.first+w.bytes {
		m.wrong("DDP-5.2-7", fmt.Sprintf("TO %#x where %#x was due", t.TO, w.first+w.bytes))
	}
	to := t.TO
	if t.Last && !p.c.d.opt.Segments {
		to = w.first
	}
	m.hex("ddp.to", to)
	if len(body) > 0 && t.TO+uint64(len(body))-1 < t.TO {
		m.wrong("DDP-7.1-13", "TO and length pass the end of the address space")
	}
	switch op {
	case rdmap.ReadResponse:
		p.response(s, &p.side[1-side(h)].rdma, m, t, w, len(body))
	case rdmap.Write:
		if p.ulp != nil {
			p.ulp.write(h, m, t, len(body))
		}
	}
	return w, body
}

// response compares a segment of a Read Response with asker's oldest Read Request.
func (p *mpaParser) response(s, asker *rdmaSide, m *Message, t ddp.Tagged, w *whole, n int) {
	if asker.readsLost && len(asker.reads) == 0 {
		return
	}
	if len(asker.reads) == 0 {
		m.wrong("RDMAP-7.2-2", "nothing was asked for")
		return
	}
	r := asker.reads[0]
	if r.Size == 0 && n == 0 {
		if t.Last {
			asker.reads = asker.reads[1:]
		}
		return
	}
	if asker.readsLost {
		// The oldest known request need not be the answered request.
		if r.SinkSTag != t.STag || t.TO-r.SinkTO > uint64(r.Size) {
			return
		}
		asker.readsLost = false
	}
	done := w.bytes
	if w.segments == 0 {
		done = 0
	}
	switch {
	case t.STag != r.SinkSTag:
		m.wrong("RDMAP-5.2.2-7", fmt.Sprintf("STag %#x, the request named %#x", t.STag, r.SinkSTag))
	case t.TO != r.SinkTO+done:
		m.wrong("RDMAP-5.2.2-7", fmt.Sprintf("TO %#x where %#x was due", t.TO, r.SinkTO+done))
	case done+uint64(n) > uint64(r.Size), t.Last && done+uint64(n) != uint64(r.Size):
		m.wrong("RDMAP-5.2.2-7", fmt.Sprintf("%d bytes, the request was for %d", done+uint64(n), r.Size))
	}
	if t.Last {
		asker.reads = asker.reads[1:]
	}
}

func (p *mpaParser) untagged(h *half, s *rdmaSide, m *Message, ulpdu []byte, filled int) (*whole, []byte) {
	if ddpFaults(m, ulpdu) {
		return nil, nil
	}
	u, n, err := ddp.ParseUntagged(ulpdu)
	if err != nil {
		m.Note = err.Error()
		return nil, nil
	}
	body := ulpdu[n:]
	m.num("ddp.qn", uint64(u.QN))
	m.num("ddp.msn", uint64(u.MSN))
	m.num("ddp.mo", uint64(u.MO))
	if stag, ok := rdmap.InvalidateSTag(u); ok {
		m.hex("rdmap.invalidate_stag", uint64(stag))
	}
	every := rdmap.Extensions{Immediate: true, Atomic: true}
	if rdmap.CheckQueue(u.QN, every) != ddp.OK {
		m.wrong("DDP-7.1-1", fmt.Sprintf("there is no queue %d", u.QN))
		return nil, nil
	}
	op, fault := rdmap.CheckUntagged(u, len(body), every)
	if rdmapFault(m, fault, op, len(body)) && fault != rdmap.Unspecified {
		return nil, nil
	}
	q := &s.queue[u.QN]
	if s.fresh && !q.sure && q.msn == 0 {
		q.sure, q.msn = true, ddp.FirstMSN
	}
	if q.sure {
		switch {
		case u.MSN != q.msn && q.msn == ddp.FirstMSN && u.MO == 0 && q.mo == 0:
			m.wrong("DDP-4.3-7", fmt.Sprintf("the first MSN is %d", u.MSN))
		case u.MSN != q.msn && q.mo != 0:
			m.wrong("DDP-4.3-9", fmt.Sprintf("MSN %d within message %d", u.MSN, q.msn))
		case u.MSN != q.msn:
			m.wrong("DDP-4.3-6", fmt.Sprintf("MSN %d where %d was due", u.MSN, q.msn))
		}
		if u.MO != q.mo {
			id := "DDP-5.2-5"
			if q.mo == 0 {
				id = "DDP-4.3-10"
			}
			m.wrong(id, fmt.Sprintf("MO %d where %d was due", u.MO, q.mo))
		}
	}
	q.sure = true
	if q.msn, q.mo = u.MSN, u.MO+uint32(len(body)); u.Last {
		q.msn, q.mo = u.MSN.Next(), 0
	}
	if filled > len(body) {
		return &q.whole, body
	}
	whole := filled == 0
	switch {
	case op == rdmap.ReadRequestOp && whole:
		p.readRequest(h, s, m, body)
	case op == rdmap.TerminateOp && whole:
		terminate(m, body)
	case op.IsImmediate() && whole:
		if d, _, err := rdmap.ParseImmediate(body); err == nil {
			m.text("rdmap.immediate", fmt.Sprintf("%x", d[:]))
		}
	case op == rdmap.AtomicRequestOp && whole:
		if a, _, err := rdmap.ParseAtomicRequest(body); err == nil {
			m.text("rdmap.atomic", a.Op.String())
			m.num("rdmap.id", uint64(a.ID))
			m.hex("rdmap.stag", uint64(a.STag))
			m.hex("rdmap.to", a.TO)
		}
	case op == rdmap.AtomicResponseOp && whole:
		if a, _, err := rdmap.ParseAtomicResponse(body); err == nil {
			m.num("rdmap.id", uint64(a.ID))
			m.hex("rdmap.value", a.Value)
		}
	case op.IsSend() && p.ulp != nil && u.MO == 0:
		p.ulp.send(h, m, u, body, filled)
	case op.IsSend() && p.nvme != nil && u.MO == 0 && whole:
		p.nvme.capsule(m, side(h) == 0, body)
	}
	return &q.whole, body
}

func (p *mpaParser) readRequest(h *half, s *rdmaSide, m *Message, body []byte) {
	r, _, err := rdmap.ParseReadRequest(body)
	if err != nil {
		return
	}
	m.hex("rdmap.sink_stag", uint64(r.SinkSTag))
	m.hex("rdmap.sink_to", r.SinkTO)
	m.num("rdmap.size", uint64(r.Size))
	m.hex("rdmap.source_stag", uint64(r.SourceSTag))
	m.hex("rdmap.source_to", r.SourceTO)
	if r.Size > 0 && r.SourceTO+uint64(r.Size)-1 < r.SourceTO {
		m.wrong("RDMAP-7.2-11", "source TO and size pass the end of the address space")
	}
	if p.ulp != nil {
		p.ulp.read(h, m, r)
	}
	if len(s.reads) >= maxReads {
		s.reads, s.readsLost = nil, true
	}
	s.reads = append(s.reads, r)
}

// terminate decodes a Terminate. For a peer that swaps the parts of the first octet, terminate also
// reports the swapped meaning.
func terminate(m *Message, body []byte) {
	t, _, err := rdmap.ParseTerminate(body)
	if err != nil {
		return
	}
	m.num("rdmap.term_layer", uint64(t.Layer))
	m.num("rdmap.term_etype", uint64(t.Type))
	m.num("rdmap.term_code", uint64(t.Code))
	m.text("rdmap.term_text", t.Text())
	if t.Length {
		m.num("rdmap.term_seglen", uint64(t.SegLen))
	}
	if s, ok := t.Swapped(); ok {
		m.text("rdmap.term_swapped", s.Text())
	}
	if t.Layer == rdmap.LayerLLP && t.Type == mpa.TerminateType {
		m.text("rdmap.term_mpa", mpa.Code(t.Code).String())
	}
}
