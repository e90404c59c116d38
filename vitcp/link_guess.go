package vitcp

import (
	"slices"

	"viaduct/internal/frameio"
	"viaduct/internal/regmem"
	"viaduct/internal/wire/vitcpwire"
	"viaduct/vi"
)

// Guess implements frameio.Guesser: it guesses the rest of the message in progress,
// if that is an RDMA Write or an RDMA Read Response, whose headers say how long they
// are, and of the responses that are awaited behind it. A Send is guessed to be as long
// as the last long one. So the memory is that message's alone.
func (l *link) Guess(g []frameio.Guess) []frameio.Guess {
	x := &l.rx
	x.sendGuess = 0
	if !l.life.load().running() || x.deaf || x.last.due > 0 {
		return g
	}
	switch p := x.asm.data; {
	case x.missing > 0 && x.h.Type == vitcpwire.ReadResponse, x.missing == 0 && x.asm.resp.active, !p.active && x.h.Type == vitcpwire.ReadResponse:
		return l.guessReads(g)
	case p.active && p.typ == vitcpwire.Write && !x.in.drop:
		n := int(x.in.rdma.Length) - int(p.offset)
		if n <= 0 {
			break
		}
		// No more than the range that was checked. [VIT-2.2.2.2.2-6] [V-42]
		ref, ok := l.ep.Target(vi.Memory{}, vi.MemHandle(x.in.rdma.Handle), x.in.rdma.Address+uint64(p.offset), uint64(min(n, frameio.MaxAhead)), true)
		if ok {
			g, _ = l.guessIn(g, vitcpwire.Write, ref, n)
		}
	case p.active && p.typ == vitcpwire.Send && x.in.d != nil && !x.in.drop:
		n := int64(x.lastSend) - int64(p.offset)
		if n <= 0 {
			break
		}
		cur := x.in.cur
		if ref, ok := l.scatterAhead(x.in.d, &cur, x.missing, int(min(n, frameio.MaxAhead))); ok {
			x.sendGuess = x.lastSend
			g, _ = l.guessIn(g, vitcpwire.Send, ref, int(n))
		}
	}
	return g
}

// scatterAhead pins where up to n bytes go that follow the next skip bytes from cur on.
func (l *link) scatterAhead(d *vi.Descriptor, cur *vi.Cursor, skip, n int) (ref vi.Memory, ok bool) {
	for skip > 0 {
		ref, bad := l.ep.Scatter(vi.Memory{}, d, cur, skip)
		if bad != 0 || len(ref.B) == 0 {
			return vi.Memory{}, false
		}
		skip -= len(ref.B)
		ref.Release()
	}
	ref, bad := l.ep.Scatter(vi.Memory{}, d, cur, n)
	return ref, bad == 0 && len(ref.B) > 0
}

// guessReads guesses the rest of the Read Response in progress, and those behind it.
func (l *link) guessReads(g []frameio.Guess) []frameio.Guess {
	x := &l.rx
	at := uint32(0)
	if x.asm.resp.active {
		at = x.asm.resp.offset
	}
	i, rest := 0, x.missing
	if x.missing > 0 && x.h.Flags&vitcpwire.EndOfMessage != 0 {
		i, rest = 1, 0 // the oldest has got all
	}
	for ahead := 0; i < l.reads.Len() && len(g) < cap(g) && ahead < frameio.MaxAhead; i++ {
		r := l.reads.At(i)
		n := int(r.d.Length) - int(at)
		if n <= 0 {
			return g
		}
		cur := r.cur // it is at what is missing of the segment in progress
		ref, ok := l.scatterAhead(r.d, &cur, rest, n)
		if !ok {
			return g
		}
		var all bool
		if g, all = l.guessIn(g, vitcpwire.ReadResponse, ref, n); !all {
			return g
		}
		ahead += n
		at, rest = 0, 0
	}
	return g
}

// guessIn guesses the last n bytes of a message, of which ref is the first part or all,
// and keeps the pin if anything is guessed in it. all tells that they are guessed.
func (l *link) guessIn(g []frameio.Guess, t vitcpwire.Type, ref vi.Memory, n int) (_ []frameio.Guess, all bool) {
	x := &l.rx
	hl := l.dialect.HeaderLen(t)
	full := vitcpwire.MaxSegment - hl
	if x.long > 0 {
		full = int(x.long) - hl
	}
	b := ref.B
	if ref.Guarded() && !(ref.FaultBreaks() && l.c.ByKernel()) { // reading there may fail
		b = nil
	}
	before := len(g)
	for n > 0 && len(g) < cap(g) {
		k := min(n, full)
		if len(b) < k {
			break
		}
		end := k
		if t == vitcpwire.Write && k == n { // the last bytes come through staging
			if end -= len(x.last.b); end <= 0 {
				break
			}
		}
		g = append(g, frameio.Guess{Header: hl, Place: b[:end:end]})
		b = b[k:]
		n -= k
	}
	if len(g) > before {
		x.ahead = append(x.ahead, ref)
	} else { // GuessesOver need not follow
		ref.Release()
	}
	return g, n == 0
}

// Guessed implements frameio.Guesser.
func (l *link) Guessed(header []byte, g frameio.Guess, left int) (taken, direct int, err error) {
	x := &l.rx
	h, _, err := l.dialect.ParseHeader(header)
	if err != nil || !l.life.load().running() || x.deaf ||
		!l.guessable(h, len(g.Place)) || l.dialect.HeaderLen(h.Type) != len(header) {
		return 0, 0, frameio.ErrWrongGuess
	}
	payload := len(g.Place)
	if h.Type == vitcpwire.Write && h.Flags&vitcpwire.EndOfMessage != 0 {
		payload += len(x.last.b)
	}
	if int(h.Length) != len(header)+payload {
		return 0, 0, frameio.ErrWrongGuess
	}
	var r vitcpwire.RDMA
	if h.Type.HasRDMA() && len(header) > vitcpwire.HeaderLen {
		r, _, _ = vitcpwire.ParseRDMA(header[vitcpwire.HeaderLen:])
	}
	if err := l.segment(h, r, payload); err != nil {
		return 0, 0, err
	}
	body := g.Place[:min(left-len(header), len(g.Place))]
	if l.inPlace(body) {
		l.skip(len(body))
	} else if err := l.place(body); err != nil {
		return 0, 0, err
	}
	if len(body) < len(g.Place) {
		x.missing = payload - len(body)
		l.setLast(payload - len(g.Place))
		return len(header), x.missing, nil
	}
	if x.last.due = payload - len(g.Place); x.last.due > 0 {
		return len(header), 0, nil
	}
	return len(header), 0, l.segmentDone()
}

// MayFault implements frameio.Faulter.
func (l *link) MayFault() bool {
	guarded := func(ref vi.Memory) bool { return ref.Guarded() }
	return slices.ContainsFunc(l.rx.refs, guarded) || slices.ContainsFunc(l.rx.ahead, guarded)
}

// guessable tells whether a segment of n bytes may be what was guessed. A Send that
// ends too soon is not: what was read behind it is taken back before the message is
// delivered, and its memory with it.
func (l *link) guessable(h vitcpwire.Header, n int) bool {
	if end := l.rx.sendGuess; end > 0 {
		return h.Type == vitcpwire.Send &&
			(h.Flags&vitcpwire.EndOfMessage == 0 || uint64(h.Offset)+uint64(n) == uint64(end))
	}
	return h.Type == vitcpwire.Write || h.Type == vitcpwire.ReadResponse
}

// inPlace reports whether p, which came with the segment being taken, is where it
// belongs.
func (l *link) inPlace(p []byte) bool {
	if !l.wanted() {
		return false
	}
	x := &l.rx
	cur := x.in.cur
	if x.h.Type == vitcpwire.ReadResponse {
		cur = l.reads.Front().cur
	}
	ref, err := l.target(vi.Memory{}, len(p), &cur, x.at)
	defer ref.Release()
	return err == nil && len(ref.B) == len(p) && &ref.B[0] == &p[0]
}

// GuessesOver implements frameio.Guesser.
func (l *link) GuessesOver() {
	x := &l.rx
	x.ahead = regmem.ReleaseAll(x.ahead)
	l.hold(vi.Memory{})
	if l.life.load().running() {
		l.nudge()
	}
}
