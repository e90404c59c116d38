package vitcp

import (
	"viaduct/internal/frameio"
	"viaduct/internal/wire/vitcpwire"
	"viaduct/vi"
)

// SendOne implements package vi's directSender. If the send role is free and no message is in
// progress, a short message is built directly in the memory read by the peer or by TCP. This avoids
// the queue and the batch, otherwise most of the cost. In all other cases SendOne returns false,
// and the message takes the queue.
func (l *link) SendOne(d *vi.Descriptor) (posted bool) {
	if !l.isShort(d) {
		return false
	}
	sent := l.c.SendNow(func() (made bool) {
		posted, made = l.makeOne(d)
		return made
	})
	if posted && !sent {
		l.c.Kick()
	}
	return posted
}

// makeOne posts a short message, if no message is in progress, and builds the single segment in a
// separate frame. posted without made means that the message was posted but not built. Unless it
// has failed, the message is then sent from the queue. [send role]
func (l *link) makeOne(d *vi.Descriptor) (posted, made bool) {
	t := &l.tx
	if s := l.life.Load(); !s.running() || s.faulted() || t.active || l.jobs.Front() != nil || !l.ready(d) {
		return false, false
	}
	l.mine.reach(l.ep.RecvPosted())
	seq, from, bad, ok := l.ep.PostStarted(d)
	if !ok {
		return false, false
	}
	n := from.Len()
	if !l.started(d, seq, bad) || n != int(d.Length) || from.Guarded() {
		from.Release()
		return true, false
	}
	hl := l.dialect.HeaderLen(t.typ)
	p := l.c.Frame(hl + n)
	copy(p[hl:], from.B())
	from.Release()
	l.endSegment(p[:hl], n, 0)
	l.publish()
	return true, true
}

// isShort reports whether makeOne can send the descriptor's message.
func (l *link) isShort(d *vi.Descriptor) bool {
	most := min(frameio.MaxHeader, l.maxSeg) - vitcpwire.HeaderLen - vitcpwire.RDMALen
	return d.Control.Op() != vi.OpRDMARead && len(d.Segments) <= 1 && int(d.Length) <= most
}
