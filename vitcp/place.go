package vitcp

import (
	"viaduct/internal/frameio"
	"viaduct/internal/regmem"
	"viaduct/internal/wire/vitcpwire"
	"viaduct/vi"
)

// place puts the next payload bytes of the segment where they belong, in
// ascending order.
func (l *link) place(p []byte) {
	x := &l.rx
	t := &messageTypes[x.h.Type]
	for t.target != nil && len(p) > 0 && !l.life.Load().faulted() {
		ref := t.target(l, x.held, len(p), l.cursor(), x.at)
		if ref.Len() == 0 {
			break // they are not wanted
		}
		if ref.Pins() && !ref.Guarded() {
			l.hold(ref)
			ref = ref.Unpinned()
		}
		n := ref.Len()
		var err error
		if x.h.Type == vitcpwire.Write {
			err = ref.CopyLastFrom(p[:n]) // [VIA-4.2-5]
		} else {
			err = ref.CopyFrom(p[:n])
		}
		ref.Release()
		if err != nil {
			t.fail(l)
			break
		}
		p = p[n:] // [VIA-4.2-5]
		x.at += uint32(n)
	}
	x.at += uint32(len(p))
}

// cursor returns how far the list of the message's descriptor is filled.
func (l *link) cursor() *vi.Cursor {
	if l.rx.h.Type == vitcpwire.ReadResponse {
		return &l.reads.Front().cur
	}
	return &l.rx.in.cur
}

// hold keeps the pin of ref, until the next. Messages that follow each other use
// the same memory as a rule, so that one pin serves many.
func (l *link) hold(ref vi.Memory) {
	l.rx.held.Release()
	l.rx.held, l.rx.place = ref, nil
}

// Plan implements frameio.Protocol.
func (l *link) Plan(p *frameio.Plan) error {
	if l.rx.missing > 0 && !l.planRest(p) {
		return nil
	}
	if p.Room() {
		l.predict(p)
	}
	return nil
}

// planRest plans the missing bytes of the segment. It is false if they are not wanted, or
// not any more: then they go where they do no harm.
func (l *link) planRest(p *frameio.Plan) bool {
	x := &l.rx
	n := x.missing - x.last.n // those that are not the last
	if x.thrown = !l.wanted(); !x.thrown {
		t := &messageTypes[x.h.Type]
		at := x.at
		x.look = *l.cursor()
		for n > 0 {
			ref := t.target(l, vi.Memory{}, n, &x.look, at)
			if ref.Len() == 0 {
				l.releaseRefs()
				x.thrown = true
				break
			}
			x.refs = append(x.refs, ref)
			p.MayFault = p.MayFault || ref.Guarded()
			p.Frame = append(p.Frame, ref.B())
			n -= ref.Len()
			at += uint32(ref.Len())
		}
	}
	switch {
	case x.thrown:
		if x.discard == nil {
			x.discard = make([]byte, vitcpwire.MaxSegment)
		}
		p.Frame = append(p.Frame[:0], x.discard[:x.missing])
	case x.last.n > 0:
		p.Frame = append(p.Frame, x.last.b[max(-n, 0):x.last.n])
	}
	return !x.thrown
}

// wanted reports whether the bytes of the segment have a place.
func (l *link) wanted() bool {
	t := l.rx.h.Type
	return l.life.Load().running() && messageTypes[t].target != nil && (t == vitcpwire.ReadResponse || !l.rx.in.drop)
}

func (l *link) releaseRefs() {
	x := &l.rx
	x.refs = regmem.ReleaseAll(x.refs)
}

// Landed implements frameio.Protocol.
func (l *link) Landed(p *frameio.Plan, frame, behind int) (taken, missing int, err error) {
	if l.rx.missing > 0 {
		if err := l.landed(frame); err != nil {
			return 0, 0, err
		}
	}
	if len(p.Predicted) > 0 {
		taken, err = l.predicted(p, behind)
	}
	return taken, l.rx.missing, err
}

// landed notes that n of the missing bytes are in place.
func (l *link) landed(n int) error {
	x := &l.rx
	l.releaseRefs()
	x.missing -= n
	if !l.life.Load().running() {
		return nil
	}
	if x.thrown {
		x.at += uint32(n)
	} else {
		l.skip(n)
	}
	if x.missing > 0 {
		return nil
	}
	x.discard = nil
	var err error
	if k := x.last.n; k > 0 && !x.thrown {
		x.at -= uint32(k)
		err = l.placeLast(x.last.b[:k])
	} else {
		err = l.end()
	}
	l.hold(vi.Memory{}) // Receive need not follow
	if err == nil {
		l.nudge()
	}
	return err
}

// skip moves the place of the next byte n bytes on.
func (l *link) skip(n int) {
	x := &l.rx
	if x.h.Type == vitcpwire.Write {
		x.at += uint32(n)
		return
	}
	t := &messageTypes[x.h.Type]
	for n > 0 && !l.life.Load().faulted() {
		ref := t.target(l, vi.Memory{}, n, l.cursor(), x.at)
		if ref.Len() == 0 {
			return
		}
		n -= ref.Len()
		x.at += uint32(ref.Len())
		ref.Release()
	}
}
