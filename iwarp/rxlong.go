package iwarp

import (
	"viaduct/internal/regmem"
	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
)

// longMin is how much payload must be missing for a segment to be begun before
// all of it is there: below, another look at the staging buffer is cheaper.
const longMin = 8 << 10

// A longSegment is a segment whose payload is read straight into place. That
// is done only while CRCs are off, when the header of an FPDU may be believed
// at once. Its checks are those of a whole segment, made before the first byte
// is placed, and again for each read. [I-22] [MPA-4.4-8]
type longSegment struct {
	active  bool
	kind    rdmap.Opcode
	tagged  ddp.Tagged
	un      ddp.Untagged
	size    int // of the payload
	placed  int
	trailer int // bytes of pad and CRC to skip
	pins    []regmem.Ref
	iov     [][]byte // scratch
	hdr     [ddp.UntaggedLen]byte
	crc     uint32 // of the length and the DDP header
	dropped []byte // where the rest of a segment goes if its place is gone
}

// beginLong takes the beginning of an FPDU if at least so many bytes of its payload
// are missing, and returns how many are. If anything is wrong with it, it is left
// for the usual way to find out.
func (q *QueuePair) beginLong(p []byte, least int) (direct int) {
	r := &q.rx
	l := r.long
	if r.dec.Markers || !r.first || len(p) <= mpa.LengthLen {
		return 0
	}
	total, ulpdu, err := r.dec.Need(p)
	if err != nil || total == 0 {
		return 0
	}
	u := p[mpa.LengthLen:]
	if r.dec.CRC && (q.supply == nil || ddp.IsTagged(u[0])) {
		return 0
	}
	hl := ddp.HeaderLen(u[0])
	size := ulpdu - hl
	have := len(u) - hl
	if have < 0 || size-have < least {
		return 0
	}
	if l == nil {
		l = new(longSegment)
		r.long = l
	}
	*l = longSegment{size: size, pins: l.pins, iov: l.iov, dropped: l.dropped}
	if ddp.IsTagged(u[0]) {
		h, _, err := ddp.ParseTagged(u)
		op, f := rdmap.CheckTagged(h.RsvdULP)
		if err != nil || f != rdmap.OK {
			return 0
		}
		if op == rdmap.ReadResponse {
			if _, df, rf := q.checkResponse(h, size); df != ddp.OK || rf != rdmap.OK {
				return 0
			}
			if p := q.reads.Front(); p.w != nil && hasFar(p.w.sg[:p.w.nsg]) {
				return 0
			}
			if !h.Last {
				r.fullResponse = size
			}
		} else if q.dev.reg.Check(h.STag, h.TO, uint64(size), q.pd.dom, q, regmem.RemoteWrite) != regmem.OK || q.isFar(h.STag) {
			return 0
		}
		l.kind, l.tagged = op, h
	} else {
		h, _, err := ddp.ParseUntagged(u)
		if err != nil || rdmap.CheckQueue(h.QN, q.ext) != ddp.OK {
			return 0
		}
		op, f := rdmap.CheckUntagged(h, size, q.ext)
		if f != rdmap.OK || !op.IsSend() {
			return 0
		}
		if df, rf := q.beginSend(op, h, u[hl:], size); df != ddp.OK || rf != rdmap.OK || hasFar(r.recv.sg[:r.recv.nsg]) {
			return 0
		}
		l.kind, l.un = op, h
		if h.MO == 0 && !h.Last {
			r.fullSend = size
		}
		l.crc = mpa.CRC(0, p[:mpa.LengthLen+hl])
	}
	l.active = true
	q.rx.n.fpdus++
	q.count(size, l.tagged.Last || l.un.Last)
	for from := u[hl:]; len(from) > 0 && l.active; {
		iov := q.longPlaces(l.iov[:0], len(from))
		n := 0
		for i, b := range iov {
			if err := regmem.Copy(b, from[n:n+len(b)], l.pins[i].Guarded()); err != nil {
				q.failLong(err)
				return 0
			}
			n += len(b)
		}
		clear(iov)
		l.iov = iov[:0]
		q.longPlaced(n)
		if n == 0 {
			q.failLong(nil)
			return 0
		}
		from = from[n:]
	}
	return l.size - l.placed
}

// isFar reports whether the memory of an STag is far: nothing can be read straight
// into it.
func (q *QueuePair) isFar(stag uint32) bool {
	m := q.dev.reg.Lookup(stag)
	return m == nil || m.Far()
}

func hasFar(sg []SGE) bool {
	for i := range sg {
		if m := sg[i].Region; m != nil && m.r.Far() {
			return true
		}
	}
	return false
}

// longPlaces appends to iov the places of the next max bytes, pinned.
func (q *QueuePair) longPlaces(iov [][]byte, max int) [][]byte {
	l := q.rx.long
	n := uint64(min(max, l.size-l.placed))
	if l.kind == rdmap.Write {
		ref, out := q.dev.reg.Access(l.tagged.STag, l.tagged.TO+uint64(l.placed), n, q.pd.dom, q, regmem.RemoteWrite)
		if out == regmem.OK {
			l.pins = append(l.pins, ref)
			iov = append(iov, ref.B)
		}
		return iov
	}
	var sg []SGE
	var off uint64
	if l.kind == rdmap.ReadResponse {
		p := q.reads.Front()
		sg, off = p.w.sg[:p.w.nsg], uint64(p.got)+uint64(l.placed)
	} else {
		w := q.rx.recv
		sg, off = w.sg[:w.nsg], uint64(l.un.MO)+uint64(l.placed)
	}
	walk(sg, off, n, func(s *SGE, off, n uint64) bool {
		ref, out := s.pin(q, off, n, regmem.LocalWrite)
		if out != regmem.OK {
			return false
		}
		l.pins = append(l.pins, ref)
		iov = append(iov, ref.B)
		return true
	})
	return iov
}

// longPlaced notes that n bytes are in place, and gives the pins back.
func (q *QueuePair) longPlaced(n int) {
	l := q.rx.long
	l.pins = regmem.ReleaseAll(l.pins)
	l.placed += n
	if l.placed == l.size {
		l.trailer = l.trailerLen()
	}
}

// trailerLen returns how many bytes of pad and CRC follow the payload.
func (l *longSegment) trailerLen() int {
	n := headerLen(l.kind) + l.size
	return mpa.FPDULen(n) - mpa.LengthLen - n
}

// Direct implements [frameio.Protocol].
func (e *engine) Direct(iov [][]byte) ([][]byte, error) {
	q := (*QueuePair)(e)
	l := q.rx.long
	n := len(iov)
	if !q.life.load().ended() {
		if iov = q.longPlaces(iov, l.size-l.placed); len(iov) == n {
			q.failLong(nil)
		}
	}
	if len(iov) == n { // the rest is read and dropped, so that our Terminate gets through [I-36]
		if l.dropped == nil {
			l.dropped = make([]byte, longMin)
		}
		iov = append(iov, l.dropped[:min(longMin, l.size-l.placed)])
	}
	return iov, nil
}

// DirectDone implements [frameio.Protocol].
func (e *engine) DirectDone(n int) error {
	q := (*QueuePair)(e)
	q.touch()
	q.longPlaced(n)
	return nil
}

// verifyLong checks the CRC of a long segment, if there are any.
func (q *QueuePair) verifyLong(trailer []byte) error {
	if !q.rx.dec.CRC {
		return nil
	}
	l := q.rx.long
	w := q.rx.recv
	crc := l.crc
	walk(w.sg[:w.nsg], uint64(l.un.MO), uint64(l.size), func(s *SGE, off, n uint64) bool {
		ref, out := s.pin(q, off, n, regmem.LocalWrite)
		if out == regmem.OK {
			crc = mpa.CRC(crc, ref.B)
			ref.Release()
		}
		return true
	})
	return q.rx.dec.Verify(crc, headerLen(l.kind)+l.size, trailer)
}

// endLong delivers a long segment after its trailer has come.
func (q *QueuePair) endLong() {
	l := q.rx.long
	l.active = false
	switch l.kind {
	case rdmap.Write:
		q.rx.n.placed += uint64(l.size)
	case rdmap.ReadResponse:
		q.reads.Front().got += uint32(l.size)
		if l.tagged.Last {
			q.readDone()
		}
	default:
		h := l.un
		u := h.Append(l.hdr[:0])
		if n, done := q.rx.queues[rdmap.QueueSend].Placed(h, l.size); done {
			if h.MO > 0 {
				q.rx.lastSend = n
			}
			q.deliver(l.kind, nil, u, n)
		}
	}
}

// dropLong forgets a long segment because the stream ended.
func (q *QueuePair) dropLong() {
	if l := q.rx.long; l != nil && l.active {
		q.longPlaced(0)
		l.active, l.trailer = false, 0
	}
}

// failLong ends the stream because memory of a long segment is gone since it
// was checked.
func (q *QueuePair) failLong(err error) {
	l := q.rx.long
	q.longPlaced(0)
	l.active, l.trailer = false, 0
	switch l.kind {
	case rdmap.Write:
		t := rdmap.TerminateDDP(ddp.InvalidSTag, l.tagged.Append(nil))
		t.SegLen = uint16(ddp.TaggedLen + l.size)
		q.fault(t, err)
	case rdmap.ReadResponse:
		p := q.reads.Front()
		q.sq.Update(p.seq, func(w **sendWQE) { (*w).status = StatusLocalAccess })
		q.fault(rdmap.TerminateRDMAP(rdmap.Catastrophic, nil), ErrLocalAccess)
	default:
		q.completeRecv(StatusLocalAccess, 0)
		q.fault(rdmap.TerminateRDMAP(rdmap.Catastrophic, nil), ErrLocalAccess)
	}
}
