package iwarp

import (
	"cmp"
	"math"

	"viaduct/internal/budget"
	"viaduct/internal/frameio"
	"viaduct/internal/regmem"
	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
)

const (
	maxPredictedHeader = 32

	// maxVerified is how many bytes are read ahead where they are looked at again
	// for their CRC: they should be in the processor's cache still.
	maxVerified = 512 << 10
)

// seldomSeen is how looking ahead for Writes backs off where it finds little.
var seldomSeen = budget.Rule{Max: 63}

// predictions gathers what is predicted for one read.
type predictions struct {
	*frameio.Plan
	gap   int // bytes of the FPDU before that come first
	ahead int // bytes that are predicted
	max   int // of them
}

// add predicts a segment with n bytes of headers above MPA, and its payload. It is
// false if there is no room for it.
func (x *predictions) add(n int, place []byte) bool {
	if !x.Room() || x.ahead+len(place) > x.max {
		return false
	}
	x.Predict(x.gap+mpa.LengthLen+n, place)
	x.ahead += x.gap + mpa.LengthLen + n + len(place)
	n += len(place)
	x.gap = mpa.FPDULen(n) - mpa.LengthLen - n
	return true
}

// predict predicts what follows the segment in progress, or the last one. That is memory
// that nothing but the peer's next messages may change: lent by a RecvSource, posted to
// receive a message that has begun, or the sinks of our own Reads. RDMA Writes do not say
// how long they are, and what is behind one may be in use: of them nothing is predicted, but
// their headers are looked at.
func (q *QueuePair) predict(p *frameio.Plan) {
	r := &q.rx
	s := &r.seg
	if r.dec.Markers {
		return
	}
	r.sendGuess = 0
	x := predictions{Plan: p, gap: s.trailer, max: frameio.MaxAhead}
	if r.dec.CRC {
		x.max = maxVerified
	}
	if s.missing() > 0 {
		x.gap = s.trailerLen()
	}
	var lent RecvGuess
	if q.supply != nil {
		lent = q.supply.Guess()
	}
	switch {
	case lent.Open > 0 || lent.Size > 0:
		q.predictSource(&x, lent)
	case r.longOp == rdmap.ReadResponse && !r.dec.CRC:
		q.predictReads(&x)
	case r.dec.CRC:
	case r.longOp.IsSend() && q.predictSend(&x):
	case r.longOp == rdmap.Write || !s.long:
		q.seeWrites(&x)
	}
	if len(p.Predicted) == 0 {
		r.ahead = regmem.ReleaseAll(r.ahead)
	}
}

// takeBack forgets what was added since x was before, with n predictions.
func (x *predictions) takeBack(before predictions, n int) {
	*x = before
	x.Predicted = x.Predicted[:n]
}

// predictSource predicts the rest of the message in progress, and those behind it.
func (q *QueuePair) predictSource(x *predictions, lent RecvGuess) {
	r := &q.rx
	s := &r.seg
	missing := s.missing()
	if r.recv != nil {
		at, _ := r.queues[0].Open()
		last := false
		if s.long && s.op.IsSend() {
			at, last = s.un.MO+uint32(s.size), s.last
		}
		if !last && !q.predictRest(x, int(at), lent.Open) {
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
		come = q.fc.Pending()
	}
	for p := lent.Payload; len(p) >= lent.Size; p = p[lent.Size:] {
		before, n := *x, len(x.Predicted)
		for at := 0; at < size; {
			k := min(full, size-at)
			h := 0
			if at == 0 {
				h = lent.Header
			}
			if !x.add(ddp.UntaggedLen+h, p[at+h-lent.Header:][:k-h:k-h]) {
				x.takeBack(before, n)
				return
			}
			at += k
		}
		if lent.Partial--; lent.Partial < 0 && come < missing+x.ahead+x.gap {
			x.takeBack(before, n)
			return
		}
	}
}

// predictRest predicts what follows offset at of the message in progress, if that
// has size bytes. It is false if there is more that can't be told.
func (q *QueuePair) predictRest(x *predictions, at, size int) bool {
	r := &q.rx
	if r.fullSend == 0 {
		return false
	}
	for at < size {
		n := min(r.fullSend, size-at)
		p := q.pinAhead(r.recv.sg[:r.recv.nsg], uint64(at), uint64(n))
		if p == nil || !x.add(ddp.UntaggedLen, p) {
			return false
		}
		at += n
	}
	return at == size
}

// predictSend predicts that the message in progress is as long as the last long one. It
// is false if there is nothing to predict.
func (q *QueuePair) predictSend(x *predictions) bool {
	r := &q.rx
	s := &r.seg
	at, open := r.queues[rdmap.QueueSend].Open()
	if s.long {
		at, open = s.un.MO+uint32(s.size), !s.last
	}
	if !open || r.recv == nil || q.supply != nil {
		return false
	}
	r.sendGuess = uint32(min(uint64(r.lastSend), r.recv.length))
	q.predictRest(x, int(at), int(r.sendGuess))
	return len(x.Predicted) > 0
}

// sendMissed tells whether u, the beginning of a segment with n bytes of payload, is
// none of the message that was predicted to go on, or ends it too soon. What was read
// behind it is taken back then before the message is delivered, and its memory with it.
func (q *QueuePair) sendMissed(u []byte, n int) bool {
	if q.rx.sendGuess == 0 {
		return false
	}
	h, _, err := ddp.ParseUntagged(u)
	return err != nil || h.Last && int(h.MO)+n != int(q.rx.sendGuess)
}

// predictReads predicts the rest of the Read Response in progress, and those behind
// it.
func (q *QueuePair) predictReads(x *predictions) {
	r := &q.rx
	off := 0
	if p := q.reads.Front(); p != nil {
		off = int(p.got)
		if s := &r.seg; s.long && s.op == rdmap.ReadResponse {
			off += s.size
		}
	}
	for i := 0; ; i++ {
		p := q.reads.At(i)
		if p == nil || p.w == nil || p.atomic {
			return
		}
		for size := int(p.size); off < size; {
			n := min(size-off, cmp.Or(r.fullResponse, mpa.MaxSendULPDU-ddp.TaggedLen))
			if n < size-off && r.fullResponse == 0 {
				return
			}
			b := q.pinAhead(p.w.sg[:p.w.nsg], uint64(off), uint64(n))
			if b == nil || !x.add(ddp.TaggedLen, b) {
				return
			}
			off += n
		}
		off = 0
	}
}

// seeWrites finds the segments of RDMA Writes that have come behind the one in
// progress, by looking at one header after the other: each tells where its payload
// belongs and where the next header is. It ends before whatever else comes, since that
// may change what may be written where, and before short ones, which are better taken from
// staging. Where they often come next it is tried less often.
func (q *QueuePair) seeWrites(x *predictions) {
	r := &q.rx
	if !r.see.Worth() {
		return
	}
	missing := r.seg.missing()
	come := q.fc.Ahead()
	var b [mpa.LengthLen + ddp.TaggedLen]byte
	for {
		at := missing + x.ahead + x.gap
		if at+len(b) > come || !q.fc.LookAhead(at, b[:]) {
			return
		}
		h, n, err := ddp.ParseTagged(b[mpa.LengthLen:])
		op, f := rdmap.CheckTagged(h.RsvdULP)
		size := r.dec.Foresee(b[:]) - n
		if err != nil || f != rdmap.OK || op != rdmap.Write || size < longMin {
			break
		}
		ref, out := q.dev.reg.Access(h.STag, h.TO, uint64(size), q.pd.dom, q, regmem.RemoteWrite)
		if out != regmem.OK {
			break
		}
		if ref.Guarded() || ref.Far() || !x.add(n, ref.B()) {
			ref.Release()
			break
		}
		r.ahead = append(r.ahead, ref)
	}
	r.see.Done(&seldomSeen, len(x.Predicted) > 1)
}

// pinAhead pins n bytes at offset off of a list until Landed; nil if they
// are not in one piece that can be read to at any time.
func (q *QueuePair) pinAhead(sg []SGE, off, n uint64) (b []byte) {
	walk(sg, off, n, func(s *SGE, off, k uint64) bool {
		if k < n {
			return false
		}
		ref, out := s.pin(q, off, n, regmem.LocalWrite)
		if out != regmem.OK {
			return false
		}
		if ref.Guarded() || ref.Far() {
			ref.Release()
			return false
		}
		q.rx.ahead = append(q.rx.ahead, ref)
		b = ref.B()
		return false
	})
	return b
}

// predicted takes the segments that came as they were predicted, of n bytes behind the
// segment in progress, and returns how many bytes it took.
func (q *QueuePair) predicted(p *frameio.Plan, n int) (taken int) {
	r := &q.rx
	for _, f := range p.Predicted {
		if n <= len(f.Header) {
			break
		}
		k := q.takePredicted(f, n)
		taken += k
		if n -= k; k <= len(f.Header) {
			break
		}
	}
	r.ahead = regmem.ReleaseAll(r.ahead)
	return taken
}

// takePredicted begins one of them as Receive would, after it has ended the segment
// before, and returns how many of the n bytes it took: none behind the header if
// something else came.
func (q *QueuePair) takePredicted(f frameio.Prediction, n int) (taken int) {
	r := &q.rx
	s := &r.seg
	if q.life.Load().ended() || len(f.Header) <= s.trailer+mpa.LengthLen {
		return 0
	}
	p := f.Header[s.trailer:]
	if _, ulpdu, err := r.dec.Need(p); err != nil || mpa.LengthLen+ulpdu != len(p)+len(f.Place) {
		return 0
	}
	if q.sendMissed(p[mpa.LengthLen:], len(f.Place)) {
		return 0
	}
	if k := s.trailer; k > 0 {
		if !q.endLong(f.Header[:k]) {
			return 0
		}
		taken = k
	}
	if q.life.Load().ended() || q.full(p, n-taken) || q.beginLong(p, 1, f.Place) == 0 {
		return taken
	}
	at := f.Place[:min(n-len(f.Header), len(f.Place))]
	if q.placeRead(s, at) {
		return len(f.Header) + len(at)
	}
	return len(f.Header)
}

// placeRead is place for bytes that were read to where they were predicted to belong:
// they stay there if they do.
func (q *QueuePair) placeRead(s *segment, p []byte) bool {
	t := &messageTypes[s.op]
	for n := 0; len(p) > 0; p = p[n:] {
		ref, k, out := t.target(q, s, uint64(s.placed), uint64(len(p)))
		if out != regmem.OK {
			t.fail(q, s, out, nil)
			return false
		}
		n = int(k)
		var err error
		if ref.Far() || &ref.B()[0] != &p[0] {
			err = ref.CopyFrom(p[:n])
		}
		ref.Release()
		if err != nil {
			t.fail(q, s, regmem.NoRegion, err)
			return false
		}
		s.landed(n)
	}
	return true
}
