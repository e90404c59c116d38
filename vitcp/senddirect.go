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
func (t *sender) SendOne(d *vi.Descriptor) (posted bool) {
	if !t.isShort(d) {
		return false
	}
	sent := t.c.SendNow(func() (made bool) {
		posted, made = t.makeOne(d)
		return made
	})
	if posted && !sent {
		t.c.Kick()
	}
	return posted
}

// makeOne posts a short message, if no message is in progress, and builds the single segment in a
// separate frame. posted without made means that the message was posted but not built. Unless it
// has failed, the message is then sent from the queue. [send role]
func (t *sender) makeOne(d *vi.Descriptor) (posted, made bool) {
	if s := t.life.Load(); !s.running() || s.faulted() || t.active || t.served.Front() != nil || !t.ready(d) {
		return false, false
	}
	t.flow.mine.reach(t.ep.RecvPosted())
	seq, from, bad, ok := t.ep.PostStarted(d)
	if !ok {
		return false, false
	}
	n := from.Len()
	if !t.started(d, seq, bad) || n != int(d.Length) || from.Guarded() {
		from.Release()
		return true, false
	}
	hl := t.dialect.HeaderLen(t.typ)
	p := t.c.Frame(hl + n)
	copy(p[hl:], from.B())
	from.Release()
	t.endSegment(p[:hl], n, 0)
	t.publish()
	return true, true
}

// isShort reports whether makeOne can send the descriptor's message.
func (t *sender) isShort(d *vi.Descriptor) bool {
	most := min(frameio.MaxHeader, t.maxSeg) - vitcpwire.HeaderLen - vitcpwire.RDMALen
	return d.Control.Op() != vi.OpRDMARead && len(d.Segments) <= 1 && int(d.Length) <= most
}
