package iwarp

import (
	"cmp"
	"math"

	"viaduct/internal/budget"
	"viaduct/internal/placer"
	"viaduct/internal/regmem"
	"viaduct/internal/ulp"
	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
)

const (
	maxPredictedHeader = 32

	// maxVerified is the largest number of bytes placed ahead by a single read if CRCs must be
	// verified later. The bytes should then still be in the processor's cache.
	maxVerified = 512 << 10
)

// A guess holds the data for predicting segments.
type guess struct {
	longOp    rdmap.Opcode // opcode of the last segment that was read into place
	long      int          // length of the last such ULPDU that did not end a message, or 0
	lastSend  uint32       // length of the last message on queue 0 of more than one segment
	sendGuess uint32       // predicted length of the current message; 0 if none was predicted

	see budget.Budget // decides whether to look ahead for Writes
}

// begun records s, a segment whose payload is read into place.
func (g *guess) begun(s *segment) {
	g.longOp = s.op
	if !s.last {
		g.long = headerLen(s.op) + s.size
	}
}

// addSegment predicts a segment with hl bytes of headers above MPA and n bytes of payload. See
// [placer.Predictions.Add].
func addSegment(to *placer.Predictions, hl int, place regmem.Ref, n int) bool {
	return to.Add(mpa.LengthLen+hl, place, n, trailerLen(hl+n))
}

// Predict implements [placer.Wire]. It predicts the segments after the current or last one, in
// memory reserved for the peer's next messages: memory lent by the source, the receive of a begun
// message, or the sinks of our own Reads. RDMA Writes do not state their length, and the memory
// after a Write may be in use, so Writes are not predicted. Instead, Predict looks ahead at the
// headers of arrived Writes.
func (r *receiver) Predict(to *placer.Predictions) {
	if r.life.Load().ended() || !r.first || r.dec.Markers {
		return
	}
	r.sendGuess = 0
	if r.dec.CRC {
		to.Max = maxVerified
	}
	var lent ulp.Guess
	if r.box.recvs.supply != nil {
		lent = r.box.recvs.supply.Guess()
	}
	switch {
	case lent.Open > 0 || lent.Size > 0:
		r.predictSource(to, lent)
	case r.dec.CRC:
	case r.longOp == rdmap.ReadResponse:
		r.predictReads(to)
	default:
		if r.longOp.IsSend() && r.box.recvs.supply == nil {
			size := uint32(min(uint64(r.lastSend), r.box.size()))
			if r.predictSend(to, int(size)); to.Len() > 0 {
				r.sendGuess = size
				return
			}
		}
		if r.longOp == rdmap.Write || !r.Open() {
			r.seeWrites(to)
		}
	}
}

// predictSource predicts the rest of the current message, and the following messages, in the memory
// named by lent.
func (r *receiver) predictSource(to *placer.Predictions, lent ulp.Guess) {
	if !r.predictSend(to, lent.Open) {
		return
	}
	size, full := lent.Header+lent.Size, cmp.Or(r.long, mpa.MaxSendULPDU)-ddp.UntaggedLen
	if lent.Size == 0 || lent.Header > min(maxPredictedHeader, full) || size > full && r.long == 0 {
		return
	}
	come := math.MaxInt
	if lent.Partial < len(lent.Payload)/lent.Size {
		come = r.link.fc.Pending()
	}
	for p := lent.Payload; len(p) >= lent.Size; p = p[lent.Size:] {
		if !to.Try(func() bool {
			if !to.Segments(0, size, full, func(at, n int) bool {
				h := 0
				if at == 0 {
					h = lent.Header
				}
				return addSegment(to, ddp.UntaggedLen+h, regmem.Of(p[at+h-lent.Header:][:n-h]), n-h)
			}) {
				return false
			}
			lent.Partial--
			return lent.Partial >= 0 || come >= to.Next()
		}) {
			return
		}
	}
}

// predictSend predicts the rest of the current message on queue 0, if there is one, assuming a
// message of size bytes. It returns false if later segments cannot be predicted.
func (r *receiver) predictSend(to *placer.Predictions, size int) bool {
	n, open := r.queues[rdmap.QueueSend].Open()
	at := int(n)
	if r.Open() && r.seg.op.IsSend() {
		at, open = int(r.seg.un.MO)+r.seg.size, !r.seg.last
	}
	if !open || r.box.recv == nil {
		return true
	}
	return r.long > 0 && r.predictList(to, ddp.UntaggedLen, r.box.sg(), at, size)
}

// predictList predicts segments for the bytes at to size-1 of a list. It returns false unless all
// were predicted.
func (r *receiver) predictList(to *placer.Predictions, header int, sg []SGE, at, size int) bool {
	full := cmp.Or(r.long, mpa.MaxSendULPDU) - header
	return to.Segments(at, size, full, func(at, n int) bool {
		ref, _ := r.mem.pieceOf(regmem.Ref{}, sg, uint64(at), uint64(n))
		return addSegment(to, header, ref, n)
	})
}

// predictReads predicts the rest of the current Read Response and the following responses.
func (r *receiver) predictReads(to *placer.Predictions) {
	off := 0
	if p := r.reads.Front(); p != nil {
		off = int(p.got)
		if s := &r.seg; r.Open() && s.op == rdmap.ReadResponse {
			off += s.size
		}
	}
	for i := 0; ; i++ {
		p := r.reads.At(i)
		if p == nil || p.w == nil || p.atomic || r.long == 0 && int(p.size)-off > mpa.MaxSendULPDU-ddp.TaggedLen {
			return
		}
		if !r.predictList(to, ddp.TaggedLen, p.w.sg[:p.w.nsg], off, int(p.size)) {
			return
		}
		off = 0
	}
}

// seeWrites finds arrived segments of RDMA Writes after the current segment. It reads header after
// header: each gives the place of the payload and the position of the next header. It stops at any
// other message, because another message may change access rights, and at a short segment, because
// copying a short segment from staging is cheaper. If stops are frequent, seeWrites is tried less
// often.
func (r *receiver) seeWrites(to *placer.Predictions) {
	if !r.see.Worth() {
		return
	}
	come := r.link.fc.Ahead()
	var b [mpa.LengthLen + ddp.TaggedLen]byte
	for {
		at := to.Next()
		if at+len(b) > come || !r.link.fc.LookAhead(at, b[:]) {
			return
		}
		h, n, err := ddp.ParseTagged(b[mpa.LengthLen:])
		op, f := rdmap.CheckTagged(h.RsvdULP)
		size := r.dec.Foresee(b[:]) - n
		if err != nil || f != rdmap.OK || op != rdmap.Write || size < longMin {
			break
		}
		ref, out := r.mem.access(h.STag, h.TO, uint64(size), regmem.RemoteWrite)
		if out != regmem.OK || !addSegment(to, n, ref, size) {
			break
		}
	}
	r.see.Done(&budget.Writes, to.Len() > 1)
}
