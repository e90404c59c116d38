package iwarp

import (
	"viaduct/internal/frameio"
	"viaduct/internal/regmem"
	"viaduct/internal/wire/rdmap"
)

// longMin is how much payload must be missing for a segment to be begun before
// all of it is there: below, another look at the staging buffer is cheaper.
const longMin = 8 << 10

// place puts the next bytes of the payload of a segment where they belong.
func (q *QueuePair) place(t *messageType, s *segment, p []byte) bool {
	if s.at != nil {
		s.placed += copy(s.at[s.placed:], p)
		s.at = nil // the pin may go
		return true
	}
	for len(p) > 0 {
		ref, k, out := t.target(q, s, uint64(s.placed), uint64(len(p)))
		if out != regmem.OK {
			t.fail(q, s, out, nil)
			return false
		}
		err := ref.CopyFrom(p[:k])
		ref.Release()
		if err != nil {
			t.fail(q, s, regmem.NoRegion, err)
			return false
		}
		p = p[k:]
		s.placed += int(k)
	}
	return true
}

// hold keeps the pin of ref, if there is one, in place of the one before. Messages that
// follow each other use the same memory as a rule, so that one pin serves many. Far
// memory and such that copying to may fault are not held: that is false.
func (r *rxState) hold(ref regmem.Ref) bool {
	if !ref.Pins() || ref.Guarded() || ref.Far() {
		return false
	}
	r.held.Release()
	r.held = ref
	return true
}

// letGo gives the pin back.
func (r *rxState) letGo() {
	if r.held.Pins() {
		r.held.Release()
		r.held = regmem.Ref{}
	}
}

// reach gives a range that the peer names by its STag, if that allows what is needed, as
// far as held pins it: else the bytes are nil.
func (q *QueuePair) reach(stag uint32, to, n uint64, need regmem.Rights) ([]byte, regmem.Outcome) {
	r := &q.rx
	if m := regmem.RegionOf(r.held); m != nil && m.Handle() == stag {
		return regmem.Within(r.held, to, n, q.pd.dom, q, need)
	}
	ref, out := q.dev.reg.Access(stag, to, n, q.pd.dom, q, need)
	if out == regmem.OK && !r.hold(ref) {
		ref.Release()
		return nil, out
	}
	return ref.B(), out
}

// reachList gives n bytes of a list of ours from offset off on, if they are in one piece and
// held pins them, or nothing has to: else nil.
func (q *QueuePair) reachList(sg []SGE, off, n uint64) []byte {
	for i := range sg {
		s := &sg[i]
		l := s.length()
		if off >= l {
			off -= l
			continue
		}
		if n > l-off {
			return nil
		}
		if s.Region == nil {
			return s.Buf[off : off+n]
		}
		r := &q.rx
		if m := s.Region.r; regmem.RegionOf(r.held) == m {
			b, _ := regmem.Within(r.held, m.Base()+s.Off+off, n, q.pd.dom, q, regmem.LocalWrite)
			return b
		}
		if ref, out := s.pin(q, off, n, regmem.LocalWrite); out != regmem.OK {
			return nil
		} else if r.hold(ref) {
			return ref.B()
		} else {
			ref.Release()
			return nil
		}
	}
	return nil
}

// pieceOf pins the first piece, of up to n bytes, of the memory of a list from offset off on.
func (q *QueuePair) pieceOf(sg []SGE, off, n uint64) (ref regmem.Ref, k uint64, out regmem.Outcome) {
	for i := range sg {
		s := &sg[i]
		l := s.length()
		if off >= l {
			off -= l
			continue
		}
		k = min(l-off, n)
		ref, out = s.pin(q, off, k, regmem.LocalWrite)
		return ref, k, out
	}
	return regmem.Ref{}, 0, regmem.OutOfBounds
}

// list returns the memory of a Send's receive or of a Read's sink, and where in it the
// payload of the segment begins.
func (q *QueuePair) list(s *segment) (sg []SGE, off uint64) {
	if s.op == rdmap.ReadResponse {
		p := q.reads.Front()
		return p.w.sg[:p.w.nsg], uint64(p.got)
	}
	w := q.rx.recv
	return w.sg[:w.nsg], uint64(s.un.MO)
}

// listTarget is the target of message types whose memory is a list of ours.
func (q *QueuePair) listTarget(s *segment, off, n uint64) (regmem.Ref, uint64, regmem.Outcome) {
	sg, from := q.list(s)
	return q.pieceOf(sg, from+off, n)
}

// far reports whether memory of the segment is far: nothing can be read straight into it.
func (q *QueuePair) far(s *segment) bool {
	if s.op == rdmap.Write {
		m := q.dev.reg.Lookup(s.tagged.STag)
		return m == nil || m.Far()
	}
	sg, _ := q.list(s)
	for i := range sg {
		if m := sg[i].Region; m != nil && m.r.Far() {
			return true
		}
	}
	return false
}

// Plan implements [frameio.Protocol].
func (e *engine) Plan(p *frameio.Plan) error {
	q := (*QueuePair)(e)
	s := &q.rx.seg
	if s.missing() > 0 && !q.planRest(p) {
		return nil
	}
	if !q.life.Load().ended() && q.rx.first && p.Room() {
		q.predict(p)
	}
	return nil
}

// planRest plans the missing bytes of the long segment. It is false if they have no
// place any more: they are read and dropped, so that our Terminate gets through. [I-36]
func (q *QueuePair) planRest(p *frameio.Plan) bool {
	s := &q.rx.seg
	t := &messageTypes[s.op]
	for at := s.placed; at < s.size && !q.life.Load().ended(); {
		ref, k, out := t.target(q, s, uint64(at), uint64(s.size-at))
		if out != regmem.OK {
			t.fail(q, s, out, nil)
			break
		}
		s.pins = append(s.pins, ref)
		p.MayFault = p.MayFault || ref.Guarded()
		p.Frame = append(p.Frame, ref.B())
		at += int(k)
	}
	if !q.life.Load().ended() {
		return true
	}
	s.pins = regmem.ReleaseAll(s.pins)
	if s.dropped == nil {
		s.dropped = make([]byte, longMin)
	}
	p.Frame = append(p.Frame[:0], s.dropped[:min(len(s.dropped), s.missing())])
	return false
}

// Landed implements [frameio.Protocol].
func (e *engine) Landed(p *frameio.Plan, frame, behind int) (taken, missing int, err error) {
	q := (*QueuePair)(e)
	s := &q.rx.seg
	if s.missing() > 0 {
		q.note()
		s.landed(frame)
	}
	if len(p.Predicted) > 0 {
		taken = q.predicted(p, behind)
		q.publish()
	}
	return taken, s.missing(), nil
}
