package vitcp

import (
	"viaduct/internal/frameio"
	"viaduct/internal/wire/vitcpwire"
	"viaduct/vi"
)

// SendOne implements package vi's directSender: a short message that finds the send role
// free, and nothing under way, is made where the peer, or TCP, takes it from. Most of what
// it costs otherwise is the batch.
func (l *link) SendOne() bool { return l.c.SendNow(func() bool { return l.makeOne() }) }

// makeOne makes the one segment of the next message in a frame of its own. Where it is
// false the message, if it has begun, goes on in the usual way, from its beginning. [send role]
func (l *link) makeOne() bool {
	t := &l.tx
	if s := l.life.Load(); !s.running() || s.faulted() || t.active || l.jobs.Front() != nil {
		return false
	}
	d := l.ep.NextSend()
	if d == nil || !l.isShort(d) || !l.ready(d) {
		return false
	}
	l.mine.reach(l.ep.RecvPosted())
	d, seq, from, bad := l.ep.StartSendHeld()
	n := from.Len()
	if !l.started(d, seq, bad) || n != int(d.Length) || from.Guarded() {
		from.Release()
		return false
	}
	hl := l.dialect.HeaderLen(t.typ)
	p := l.c.Frame(hl + n)
	copy(p[hl:], from.B())
	from.Release()
	l.endSegment(p[:hl], n, 0)
	l.publish()
	return true
}

// isShort reports whether a descriptor is one for makeOne.
func (l *link) isShort(d *vi.Descriptor) bool {
	most := min(frameio.MaxHeader, l.maxSeg) - vitcpwire.HeaderLen - vitcpwire.RDMALen
	return d.Control.Op() != vi.OpRDMARead && len(d.Segments) <= 1 && int(d.Length) <= most
}
