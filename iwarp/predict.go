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
	longOp rdmap.Opcode // opcode of the last segment that was read into place
	// Payload bytes of the last segment to begin a message on queue 0 without ending the message,
	// or 0.
	fullSend  int
	lastSend  uint32 // length of the last message on queue 0 of more than one segment
	sendGuess uint32 // predicted length of the current message; 0 if none was predicted
	// Payload bytes of the last Read Response segment without the last flag, or 0.
	fullResponse int
	see          budget.Budget // decides whether to look ahead for Writes
}

// begun records s, a segment whose payload is read into place.
func (g *guess) begun(s *segment) {
	g.longOp = s.op
	switch {
	case s.last:
	case s.op == rdmap.ReadResponse:
		g.fullResponse = s.size
	case s.op.IsSend() && s.un.MO == 0:
		g.fullSend = s.size
	}
}

// addSegment predicts a segment with n bytes of headers above MPA, whose payload goes to place. It
// returns false if there is no room for the segment.
func addSegment(to *placer.Predictions, n int, place []byte) bool {
	u := n + len(place)
	return to.Add(mpa.LengthLen+n, place, mpa.FPDULen(u)-mpa.LengthLen-u)
}

// Predict implements [placer.Wire]. It predicts the segments after the current or last one, in
// memory reserved for the peer's next messages: memory lent by the source, the receive of a begun
// message, or the sinks of our own Reads. RDMA Writes do not state their length, and the memory
// after a Write may be in use, so Writes are not predicted. Instead, Predict looks ahead at the
// headers of arrived Writes.
func (w *frames) Predict(to *placer.Predictions) {
	r := (*receiver)(w)
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
	case r.longOp == rdmap.ReadResponse && !r.dec.CRC:
		r.predictReads(to)
	case r.dec.CRC:
	case r.longOp.IsSend() && r.predictSend(to):
	case r.longOp == rdmap.Write || !r.Open():
		r.seeWrites(to)
	}
}

// predictSource predicts the rest of the current message, and the following messages, in the memory
// named by lent.
func (r *receiver) predictSource(to *placer.Predictions, lent ulp.Guess) {
	if r.box.recv != nil {
		at, last := r.sendEnd()
		if !last && !r.predictRest(to, at, lent.Open) {
			return
		}
	}
	size, full := lent.Header+lent.Size, r.fullSend
	if full == 0 {
		full = mpa.MaxSendULPDU - ddp.UntaggedLen
	}
	if lent.Size == 0 || lent.Header > min(maxPredictedHeader, full) || size > full && r.fullSend == 0 {
		return
	}
	come := math.MaxInt
	if lent.Partial < len(lent.Payload)/lent.Size {
		come = r.link.fc.Pending()
	}
	for p := lent.Payload; len(p) >= lent.Size; p = p[lent.Size:] {
		if !to.Try(func() bool {
			for at := 0; at < size; {
				k := min(full, size-at)
				h := 0
				if at == 0 {
					h = lent.Header
				}
				if !addSegment(to, ddp.UntaggedLen+h, p[at+h-lent.Header:][:k-h]) {
					return false
				}
				at += k
			}
			lent.Partial--
			return lent.Partial >= 0 || come >= to.Next()
		}) {
			return
		}
	}
}

// sendEnd returns the offset where the current message on queue 0 continues after the current
// segment, and whether the current segment is the last.
func (r *receiver) sendEnd() (at int, last bool) {
	if r.Open() && r.seg.op.IsSend() {
		return int(r.seg.un.MO) + r.seg.size, r.seg.last
	}
	n, open := r.queues[rdmap.QueueSend].Open()
	return int(n), !open
}

// predictRest predicts the rest of the current message from offset at on, assuming a message of
// size bytes. It returns false if later segments cannot be predicted.
func (r *receiver) predictRest(to *placer.Predictions, at, size int) bool {
	if r.fullSend == 0 {
		return false
	}
	return r.predictList(to, ddp.UntaggedLen, r.box.sg(), at, size, r.fullSend)
}

// predictList predicts segments with full bytes of payload each, for the bytes at to size-1 of a
// list. It returns false unless all were predicted.
func (r *receiver) predictList(to *placer.Predictions, header int, sg []SGE, at, size, full int) bool {
	for at < size {
		n := min(full, size-at)
		ref, _ := r.mem.pieceOf(sg, uint64(at), uint64(n))
		if b := to.Pin(ref, n); b == nil || !addSegment(to, header, b) {
			return false
		}
		at += n
	}
	return at == size
}

// predictSend predicts the rest of the current message, assuming the length of the last message of
// several segments. It returns false if nothing was predicted.
func (r *receiver) predictSend(to *placer.Predictions) bool {
	at, last := r.sendEnd()
	if last || r.box.recv == nil || r.box.recvs.supply != nil {
		return false
	}
	r.sendGuess = uint32(min(uint64(r.lastSend), r.box.size()))
	r.predictRest(to, at, int(r.sendGuess))
	return to.Len() > 0
}

// sendMissed reports whether the prediction of the current message was wrong. u holds the headers
// of a segment with n bytes of payload. The prediction was wrong if the segment belongs to another
// message, or ends the message early. The caller then takes back the bytes read after the segment
// before delivering the message.
func (r *receiver) sendMissed(u []byte, n int) bool {
	if r.sendGuess == 0 {
		return false
	}
	h, _, err := ddp.ParseUntagged(u)
	return err != nil || h.Last && int(h.MO)+n != int(r.sendGuess)
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
	full := cmp.Or(r.fullResponse, mpa.MaxSendULPDU-ddp.TaggedLen)
	for i := 0; ; i++ {
		p := r.reads.At(i)
		if p == nil || p.w == nil || p.atomic || r.fullResponse == 0 && int(p.size)-off > full {
			return
		}
		if off < int(p.size) && !r.predictList(to, ddp.TaggedLen, p.w.sg[:p.w.nsg], off, int(p.size), full) {
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
		if out != regmem.OK {
			break
		}
		if b := to.Pin(ref, size); b == nil || !addSegment(to, n, b) {
			break
		}
	}
	r.see.Done(&budget.Writes, to.Len() > 1)
}
