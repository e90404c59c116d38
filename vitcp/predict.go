package vitcp

import (
	"viaduct/internal/frameio"
	"viaduct/internal/regmem"
	"viaduct/internal/wire/vitcpwire"
	"viaduct/vi"
)

// predict predicts the rest of the message in progress, if that is an RDMA Write or an
// RDMA Read Response, whose headers say how long they are, and the responses that are
// awaited behind it. A Send is taken to be as long as the last long one. So the memory is
// that message's alone.
func (l *link) predict(to *frameio.Plan) {
	x := &l.rx
	x.sendGuess = 0
	if !l.life.Load().running() || x.deaf || x.last.due > 0 {
		return
	}
	switch p := x.asm.data; {
	case x.missing > 0 && x.h.Type == vitcpwire.ReadResponse, x.missing == 0 && x.asm.resp.active, !p.active && x.h.Type == vitcpwire.ReadResponse:
		l.predictReads(to)
	case p.active && p.typ == vitcpwire.Write && !x.in.drop:
		n := int(x.in.rdma.Length) - int(p.offset)
		if n <= 0 {
			break
		}
		// No more than the range that was checked. [VIT-2.2.2.2.2-6] [V-42]
		ref, ok := l.ep.Target(vi.Memory{}, vi.MemHandle(x.in.rdma.Handle), x.in.rdma.Address+uint64(p.offset), uint64(min(n, frameio.MaxAhead)), true)
		if ok {
			l.predictIn(to, vitcpwire.Write, ref, n)
		}
	case p.active && p.typ == vitcpwire.Send && x.in.d != nil && !x.in.drop:
		n := int64(x.lastSend) - int64(p.offset)
		if n <= 0 {
			break
		}
		cur := x.in.cur
		if ref, ok := l.scatterAhead(x.in.d, &cur, x.missing, int(min(n, frameio.MaxAhead))); ok {
			x.sendGuess = x.lastSend
			l.predictIn(to, vitcpwire.Send, ref, int(n))
		}
	}
}

// scatterAhead pins where up to n bytes go that follow the next skip bytes from cur on.
func (l *link) scatterAhead(d *vi.Descriptor, cur *vi.Cursor, skip, n int) (ref vi.Memory, ok bool) {
	for skip > 0 {
		ref, bad := l.ep.Scatter(vi.Memory{}, d, cur, skip)
		if bad != 0 || ref.Len() == 0 {
			return vi.Memory{}, false
		}
		skip -= ref.Len()
		ref.Release()
	}
	ref, bad := l.ep.Scatter(vi.Memory{}, d, cur, n)
	return ref, bad == 0 && ref.Len() > 0
}

// predictReads predicts the rest of the Read Response in progress, and those behind it.
func (l *link) predictReads(to *frameio.Plan) {
	x := &l.rx
	at := uint32(0)
	if x.asm.resp.active {
		at = x.asm.resp.offset
	}
	i, rest := 0, x.missing
	if x.missing > 0 && x.h.Flags&vitcpwire.EndOfMessage != 0 {
		i, rest = 1, 0 // the oldest has got all
	}
	for ahead := 0; i < l.reads.Len() && to.Room() && ahead < frameio.MaxAhead; i++ {
		r := l.reads.At(i)
		n := int(r.d.Length) - int(at)
		if n <= 0 {
			return
		}
		cur := r.cur // it is at what is missing of the segment in progress
		ref, ok := l.scatterAhead(r.d, &cur, rest, n)
		if !ok {
			return
		}
		if !l.predictIn(to, vitcpwire.ReadResponse, ref, n) {
			return
		}
		ahead += n
		at, rest = 0, 0
	}
}

// predictIn predicts the last n bytes of a message, of which ref is the first part or all,
// and keeps the pin if anything is predicted in it. It is true if all of them are.
func (l *link) predictIn(to *frameio.Plan, t vitcpwire.Type, ref vi.Memory, n int) (all bool) {
	x := &l.rx
	hl := l.dialect.HeaderLen(t)
	full := vitcpwire.MaxSegment - hl
	if x.long > 0 {
		full = int(x.long) - hl
	}
	b := ref.B()
	if ref.Guarded() && !(ref.FaultBreaks() && l.c.InPlace()) { // reading there may fail
		b = nil
	}
	before := len(to.Predicted)
	for n > 0 && to.Room() {
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
		to.Predict(hl, b[:end:end])
		b = b[k:]
		n -= k
	}
	if len(to.Predicted) > before {
		x.ahead = append(x.ahead, ref)
		to.MayFault = to.MayFault || ref.Guarded()
	} else { // Landed need not follow
		ref.Release()
	}
	return n == 0
}

// predicted takes the segments that came as they were predicted, of n bytes behind the
// segment in progress, and returns how many bytes it took.
func (l *link) predicted(p *frameio.Plan, n int) (taken int, err error) {
	for _, f := range p.Predicted {
		if n <= len(f.Header) {
			break
		}
		var k int
		if k, err = l.takePredicted(f, n); err != nil || k == 0 {
			break
		}
		taken += k
		n -= k
	}
	x := &l.rx
	x.ahead = regmem.ReleaseAll(x.ahead)
	l.hold(vi.Memory{})
	if err == nil && l.life.Load().running() {
		l.nudge()
	}
	return taken, err
}

// takePredicted takes one of them, and returns how many of the n bytes that were: none
// if something else came.
func (l *link) takePredicted(f frameio.Prediction, n int) (taken int, err error) {
	x := &l.rx
	h, _, err := l.dialect.ParseHeader(f.Header)
	if err != nil || !l.life.Load().running() || x.deaf ||
		!l.predictable(h, len(f.Place)) || l.dialect.HeaderLen(h.Type) != len(f.Header) {
		return 0, nil
	}
	payload := len(f.Place)
	if h.Type == vitcpwire.Write && h.Flags&vitcpwire.EndOfMessage != 0 {
		payload += len(x.last.b)
	}
	if int(h.Length) != len(f.Header)+payload {
		return 0, nil
	}
	if err := l.begin(h, f.Header[vitcpwire.HeaderLen:], payload); err != nil {
		return 0, err
	}
	body := f.Place[:min(n-len(f.Header), len(f.Place))]
	taken = len(f.Header) + len(body)
	if l.inPlace(body) {
		l.skip(len(body))
	} else {
		l.place(body)
	}
	if len(body) < len(f.Place) {
		x.missing = payload - len(body)
		l.setLast(payload - len(f.Place))
		return taken, nil
	}
	if x.last.due = payload - len(f.Place); x.last.due > 0 {
		return taken, nil
	}
	return taken, l.end()
}

// predictable tells whether a segment of n bytes may be what was predicted. A Send that
// ends too soon is not: what was read behind it is taken back before the message is
// delivered, and its memory with it.
func (l *link) predictable(h vitcpwire.Header, n int) bool {
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
	x.look = *l.cursor()
	ref := messageTypes[x.h.Type].target(l, vi.Memory{}, len(p), &x.look, x.at)
	defer ref.Release()
	return ref.Len() == len(p) && &ref.B()[0] == &p[0]
}
