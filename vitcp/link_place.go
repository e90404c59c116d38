package vitcp

import (
	"viaduct/internal/regmem"
	"viaduct/internal/wire/vitcpwire"
	"viaduct/vi"
)

// place puts the next payload bytes of the segment where they belong, in
// ascending order.
func (l *link) place(p []byte) error {
	x := &l.rx
	for len(p) > 0 && !l.life.load().faulted() {
		ref, err := l.target(x.held, len(p), &x.in.cur, x.at)
		if err != nil {
			return err
		}
		if len(ref.B) == 0 {
			break // they are not wanted
		}
		if ref.Pins() && !ref.Guarded() {
			l.hold(ref)
			ref = vi.Memory{B: ref.B}
		}
		n := len(ref.B)
		if x.h.Type == vitcpwire.Write {
			err = ref.CopyLastFrom(p[:n]) // [VIA-4.2-5]
		} else {
			err = ref.CopyFrom(p[:n])
		}
		ref.Release()
		if err != nil {
			l.faulted()
			break
		}
		p = p[n:] // [VIA-4.2-5]
		x.at += uint32(n)
	}
	x.at += uint32(len(p))
	return nil
}

// hold keeps the pin of ref, until the next. Messages that follow each other use
// the same memory as a rule, so that one pin serves many.
func (l *link) hold(ref vi.Memory) {
	l.rx.held.Release()
	l.rx.held = ref
}

// target pins, by handle and address, where the next bytes of the message go:
// registered memory or nothing; at most n bytes at
// offset at. An empty Ref means that they are not wanted. cur is that of a
// Send; a response has its own. What lies in the region that held pins is not
// pinned again.
func (l *link) target(held vi.Memory, n int, cur *vi.Cursor, at uint32) (vi.Memory, error) {
	x := &l.rx
	in := &x.in
	switch x.h.Type {
	case vitcpwire.Send:
		if in.drop {
			return vi.Memory{}, nil
		}
		if uint64(at)+uint64(n) > uint64(l.terms.mtu) { // [V-14]
			l.failReceive(vi.StatusLengthError, vitcpwire.DescriptorError)
			return vi.Memory{}, nil
		}
		ref, bad := l.ep.Scatter(held, in.d, cur, n) // [VIT-2.2.2.1-3]
		if bad == 0 && len(ref.B) == 0 {
			bad = vi.StatusLengthError // longer than the buffers [VIA-4.1-2] [VIA-4.6-5]
		}
		if bad != 0 { // [VIA-4.6-7]
			l.failReceive(bad, vitcpwire.DescriptorError)
		}
		return ref, nil
	case vitcpwire.Write:
		if in.drop {
			return vi.Memory{}, nil
		}
		ref, ok := l.ep.Target(held, vi.MemHandle(in.rdma.Handle), in.rdma.Address+uint64(at), uint64(n), true) // [VIT-2.2.2.1-3] [VIA-4.2-1]
		if !ok {                                                                                                // deregistered since [V-42]
			l.failWrite(vi.StatusRDMAProtection, vi.ErrorRDMAWProt, vitcpwire.ProtectionError)
		}
		return ref, nil
	case vitcpwire.ReadResponse:
		read := l.reads.Front()
		if cur == &in.cur {
			cur = &read.cur
		}
		ref, bad := l.ep.Scatter(held, read.d, cur, n) // [VIT-2.2.2.1-3]
		if bad == 0 && len(ref.B) == 0 {
			bad = vi.StatusFormatError // the descriptor was changed under us
		}
		if bad != 0 { // [VIA-4.6-15]
			l.failRead(bad)
		}
		return ref, nil
	}
	return vi.Memory{}, nil // payload that means nothing
}

// Direct implements frameio.Protocol.
func (l *link) Direct(iov [][]byte) ([][]byte, error) {
	x := &l.rx
	n := x.missing - x.last.n // those that are not the last
	cur := x.in.cur
	if x.thrown = !l.wanted(); x.thrown {
		return l.throwAway(iov), nil
	}
	if x.h.Type == vitcpwire.ReadResponse {
		cur = l.reads.Front().cur
	}
	at := x.at
	for n > 0 {
		ref, err := l.target(vi.Memory{}, n, &cur, at)
		if err != nil || len(ref.B) == 0 {
			// Not wanted any more: from here on to the bin.
			l.releaseDirect()
			x.thrown = true
			return l.throwAway(iov[:0]), err
		}
		x.refs = append(x.refs, ref)
		iov = append(iov, ref.B)
		n -= len(ref.B)
		at += uint32(len(ref.B))
	}
	if x.last.n > 0 {
		iov = append(iov, x.last.b[max(-n, 0):x.last.n])
	}
	return iov, nil
}

// wanted reports whether the bytes of the segment have a place.
func (l *link) wanted() bool {
	if !l.life.load().running() {
		return false
	}
	switch l.rx.h.Type {
	case vitcpwire.Send, vitcpwire.Write:
		return !l.rx.in.drop
	case vitcpwire.ReadResponse:
		return true
	}
	return false
}

// throwAway gives the missing bytes of a segment a place where they do no
// harm.
func (l *link) throwAway(iov [][]byte) [][]byte {
	x := &l.rx
	if x.discard == nil {
		x.discard = make([]byte, vitcpwire.MaxSegment)
	}
	return append(iov, x.discard[:x.missing])
}

func (l *link) releaseDirect() {
	x := &l.rx
	x.refs = regmem.ReleaseAll(x.refs)
}

// DirectDone implements frameio.Protocol.
func (l *link) DirectDone(n int) error {
	x := &l.rx
	l.releaseDirect()
	x.missing -= n
	if !l.life.load().running() {
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
	if k := x.last.n; k > 0 && !x.thrown {
		x.at -= uint32(k)
		err := l.placeLast(x.last.b[:k])
		l.hold(vi.Memory{}) // Receive need not follow
		if err != nil {
			return err
		}
	} else if err := l.segmentDone(); err != nil {
		return err
	}
	l.nudge()
	return nil
}

// skip moves the place of the next byte n bytes on.
func (l *link) skip(n int) {
	x := &l.rx
	if x.h.Type == vitcpwire.Write {
		x.at += uint32(n)
		return
	}
	for n > 0 && !l.life.load().faulted() {
		ref, err := l.target(vi.Memory{}, n, &x.in.cur, x.at)
		if err != nil || len(ref.B) == 0 {
			return
		}
		n -= len(ref.B)
		x.at += uint32(len(ref.B))
		ref.Release()
	}
}
