package vitcp

import (
	"viaduct/internal/frameio"
	"viaduct/internal/wire/vitcpwire"
)

// fillLast appends the last segments of an ending connection, once. It ends a begun message as
// void, reports the local error or Disconnect to the peer, and then ends the sending direction. The
// consumer's memory is not accessed. Only the send role may end the direction. If another goroutine
// ended the direction between the role's last search for work and last check, the report would be
// lost.
func (t *sender) fillLast(b *frameio.Batch) {
	if t.ended {
		return
	}
	t.ended = true
	defer t.c.Shutdown()
	f := t.life.fault.Load()
	torn := t.active && t.offset > 0
	if torn {
		// No other message may come between the segments of the begun message, so its last segment
		// carries the report. [V-30]
		head := b.Header(t.dialect.HeaderLen(t.typ))
		t.write(head, f.report(t.header(vitcpwire.Header{
			Type: t.typ, Flags: vitcpwire.EndOfMessage | vitcpwire.TransmitError,
			Length: uint16(len(head)), Offset: t.offset, Number: t.last,
		})), t.rdma)
		return
	}
	switch {
	case f != nil:
		t.putBare(b, vitcpwire.NOP, f)
	case t.terms.disconnect && t.life.Load() == lifeFinishing:
		t.putBare(b, vitcpwire.Disconnect, nil) // [V-17]
	case t.acks.pending():
		t.putBare(b, vitcpwire.NOP, nil)
	}
}

// putBare appends a separate message, a segment without payload. The message consumes no descriptor
// of the peer. [V-22] An error code always comes with the number of the failed message.
// [VIT-3.1-ERR-2]
func (t *sender) putBare(b *frameio.Batch, typ vitcpwire.Type, f *fault) {
	h := f.report(t.header(vitcpwire.Header{Type: typ, Flags: vitcpwire.EndOfMessage,
		Length: vitcpwire.HeaderLen, Number: t.last}))
	t.dialect.AppendHeader(b.Header(vitcpwire.HeaderLen)[:0], h)
}
