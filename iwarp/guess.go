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
	maxGuessHeader = 32

	// maxVerified is how many bytes are read ahead where they are looked at again
	// for their CRC: they should be in the processor's cache still.
	maxVerified = 512 << 10
)

// seldomSeen is how looking ahead for Writes backs off where it finds little.
var seldomSeen = budget.Rule{Max: 63}

// A guessing gathers guesses.
type guessing struct {
	g     []frameio.Guess
	gap   int // bytes of the FPDU before that come first
	ahead int // bytes that are guessed
	max   int // of them
}

// add guesses a segment with n bytes of headers above MPA, and its payload. It is
// false if there is no room for it.
func (x *guessing) add(n int, place []byte) bool {
	if len(x.g) == cap(x.g) || x.ahead+len(place) > x.max {
		return false
	}
	x.g = append(x.g, frameio.Guess{Header: x.gap + mpa.LengthLen + n, Place: place})
	x.ahead += x.gap + mpa.LengthLen + n + len(place)
	n += len(place)
	x.gap = mpa.FPDULen(n) - mpa.LengthLen - n
	return true
}

// Guess implements [frameio.Guesser]. What is guessed is memory that nothing but
// the peer's next messages may change: lent by a RecvSource, posted to receive a
// message that has begun, or the sinks of our own Reads. RDMA Writes do not say how long they are, and what is behind one may
// be in use: of them nothing is guessed, but their headers are looked at.
func (e *engine) Guess(g []frameio.Guess) []frameio.Guess {
	q := (*QueuePair)(e)
	r := &q.rx
	l := r.long
	if l == nil || r.dec.Markers || !r.first || q.life.load().ended() {
		return g
	}
	r.sendGuess = 0
	x := guessing{g: g, gap: l.trailer, max: frameio.MaxAhead}
	if r.dec.CRC {
		x.max = maxVerified
	}
	if l.active && l.trailer == 0 {
		x.gap = l.trailerLen()
	}
	var lent RecvGuess
	if q.supply != nil {
		lent = q.supply.Guess()
	}
	switch {
	case lent.Open > 0 || lent.Size > 0:
		q.guessSource(&x, lent)
	case l.kind == rdmap.ReadResponse && !r.dec.CRC:
		q.guessReads(&x)
	case r.dec.CRC:
	case l.kind.IsSend() && q.guessSend(&x):
	case l.kind == rdmap.Write || !l.active:
		q.seeWrites(&x)
	}
	if len(x.g) == 0 { // GuessesOver does not follow then
		r.ahead = regmem.ReleaseAll(r.ahead)
	}
	return x.g
}

// guessSource guesses the rest of the message in progress, and those behind it.
func (q *QueuePair) guessSource(x *guessing, s RecvGuess) {
	r := &q.rx
	l := r.long
	missing := 0 // of the segment in progress
	if l.active {
		missing = l.size - l.placed
	}
	if r.recv != nil {
		at, _ := r.queues[0].Open()
		last := false
		if l.active && l.kind.IsSend() {
			at, last = l.un.MO+uint32(l.size), l.un.Last
		}
		if !last && !q.guessRest(x, int(at), s.Open) {
			return
		}
	}
	size, full := s.Header+s.Size, r.fullSend
	if full == 0 {
		full = mpa.MaxSendULPDU - ddp.UntaggedLen
	}
	if s.Size == 0 || s.Header > min(maxGuessHeader, full) || size > full && r.fullSend == 0 {
		return
	}
	come := math.MaxInt
	if s.Partial < len(s.Payload)/s.Size {
		come = q.fc.Pending()
	}
	for p := s.Payload; len(p) >= s.Size; p = p[s.Size:] {
		before := *x
		for at := 0; at < size; {
			n := min(full, size-at)
			h := 0
			if at == 0 {
				h = s.Header
			}
			if !x.add(ddp.UntaggedLen+h, p[at+h-s.Header:][:n-h:n-h]) {
				*x = before
				return
			}
			at += n
		}
		if s.Partial--; s.Partial < 0 && come < missing+x.ahead+x.gap {
			*x = before
			return
		}
	}
}

// guessRest guesses what follows offset at of the message in progress, if that
// has size bytes. It is false if there is more that can't be told.
func (q *QueuePair) guessRest(x *guessing, at, size int) bool {
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

// guessSend guesses that the message in progress is as long as the last long one. It
// is false if there is nothing to guess.
func (q *QueuePair) guessSend(x *guessing) bool {
	r := &q.rx
	l := r.long
	at, open := r.queues[rdmap.QueueSend].Open()
	if l.active {
		at, open = l.un.MO+uint32(l.size), !l.un.Last
	}
	if !open || r.recv == nil || q.supply != nil {
		return false
	}
	r.sendGuess = int(min(uint64(r.lastSend), r.recv.length))
	q.guessRest(x, int(at), r.sendGuess)
	return len(x.g) > 0
}

// sendMissed tells whether u, the beginning of a segment with n bytes of payload, is
// none of the message that was guessed to go on, or ends it too soon. What was read
// behind it is taken back then before the message is delivered, and its memory with it.
func (q *QueuePair) sendMissed(u []byte, n int) bool {
	if q.rx.sendGuess == 0 {
		return false
	}
	h, _, err := ddp.ParseUntagged(u)
	return err != nil || h.Last && int(h.MO)+n != q.rx.sendGuess
}

// guessReads guesses the rest of the Read Response in progress, and those behind
// it.
func (q *QueuePair) guessReads(x *guessing) {
	r := &q.rx
	l := r.long
	off := 0
	if p := q.reads.Front(); p != nil {
		off = int(p.got)
		if l.active && l.kind == rdmap.ReadResponse {
			off += l.size
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
func (q *QueuePair) seeWrites(x *guessing) {
	r := &q.rx
	l := r.long
	if !r.see.Worth() {
		return
	}
	missing := 0
	if l.active {
		missing = l.size - l.placed
	}
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
		if ref.Guarded() || ref.Far() || !x.add(n, ref.B) {
			ref.Release()
			break
		}
		r.ahead = append(r.ahead, ref)
	}
	r.see.Done(&seldomSeen, len(x.g) > 1)
}

// pinAhead pins n bytes at offset off of a list until GuessesOver; nil if they
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
		b = ref.B
		return false
	})
	return b
}

// Guessed implements [frameio.Guesser]. It begins the segment as [Receive] would,
// after it has ended the one before.
func (e *engine) Guessed(header []byte, g frameio.Guess, left int) (taken, direct int, err error) {
	q := (*QueuePair)(e)
	r := &q.rx
	l := r.long
	if q.life.load().ended() || len(header) <= l.trailer+mpa.LengthLen {
		return 0, 0, frameio.ErrWrongGuess
	}
	p := header[l.trailer:]
	if _, ulpdu, err := r.dec.Need(p); err != nil || mpa.LengthLen+ulpdu != len(p)+len(g.Place) {
		return 0, 0, frameio.ErrWrongGuess
	}
	if q.sendMissed(p[mpa.LengthLen:], len(g.Place)) {
		return 0, 0, frameio.ErrWrongGuess
	}
	if taken = l.trailer; taken > 0 {
		if err := q.verifyLong(header[:taken]); err != nil {
			q.badFPDU(err)
			return taken, 0, frameio.ErrWrongGuess
		}
		l.trailer = 0
		q.endLong()
	}
	if q.life.load().ended() || q.full(p, left-taken) || q.beginLong(p, 1) == 0 {
		return taken, 0, frameio.ErrWrongGuess
	}
	for at := g.Place[:min(left-len(header), len(g.Place))]; len(at) > 0; {
		iov := q.longPlaces(l.iov[:0], len(at))
		k := 0
		for _, b := range iov {
			if &b[0] != &at[0] {
				copy(b, at)
			}
			at = at[len(b):]
			k += len(b)
		}
		clear(iov)
		l.iov = iov[:0]
		q.longPlaced(k)
		if k == 0 { // its place is gone already
			q.failLong(nil)
			return len(header), 0, frameio.ErrWrongGuess
		}
	}
	return len(header), l.size - l.placed, nil
}

// GuessesOver implements [frameio.Guesser].
func (e *engine) GuessesOver() {
	q := (*QueuePair)(e)
	r := &q.rx
	r.ahead = regmem.ReleaseAll(r.ahead)
	q.touch()
	q.publish()
}
