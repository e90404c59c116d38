package iwarp

import (
	"viaduct/internal/frameio"
	"viaduct/internal/regmem"
	"viaduct/internal/wire/mpa"
)

const (
	// copiedPayload is the largest payload of an FPDU sent as a copy together with others. A short
	// FPDU by reference costs three pieces of a gather write, and following the three pieces costs
	// the kernel more time than copying the bytes costs here. FPDUs that fit the segments of an
	// Ethernet are short enough.
	copiedPayload = 2048

	// copiedBytes is the largest number of bytes copied before a write. The copies should still be
	// in the cache when the kernel copies again. Half of copiedBytes would do as well.
	copiedBytes = 128 << 10
)

// copied adds the next segments of the current message with copied payload, as a contiguous piece
// of memory: all segments of the message, or as many as there is room for. It checks and copies the
// memory of all segments at once. It returns false and adds nothing if the message is not suitable,
// or if a part of the memory is not accessible; segment then sends the bytes before the
// inaccessible part.
func (t *sender) copied(b *frameio.Batch) bool {
	m := &t.cur
	if t.enc.Markers || m.w != nil && m.w.nsg != 1 {
		return false
	}
	out := t.copies.room()
	off, left, room := m.cut.Rest()
	hl := headerLen(m.op)
	longest := mpa.FPDULen(hl + room)
	count := min(min(len(out), copiedBytes)/longest, int((left+uint64(room)-1)/uint64(room)))
	n := min(left, uint64(count)*uint64(room))
	if n == 0 {
		return false
	}
	ref, ok := t.source(m, off, n)
	if !ok {
		return false
	}
	p := out[:0]
	from := ref.B()
	for range count {
		off, n, last, _ := m.cut.Next()
		at := len(p)
		p = t.enc.AppendLength(p, hl+n)
		p = m.appendHeader(p, off, last)
		p = append(p, from[:n]...)
		p = t.enc.AppendTrailer(p, hl+n, t.crc(p[at:]))
		from = from[n:]
	}
	ref.Release()
	t.copies.used += len(p)
	t.mss.since += int(n)
	t.stats.sentFPDUs.Add(uint64(count))
	t.stats.sentBytes.Add(n)
	b.Bytes(p)
	if n == left {
		t.endMessage()
	}
	return true
}

// source pins n bytes at offset off of the payload of message m. ok is false if the bytes are not
// accessible, or cannot be copied directly because the memory is far or may fault.
func (t *sender) source(m *txMessage, off, n uint64) (ref regmem.Ref, ok bool) {
	var out regmem.Outcome
	if r := &m.read; m.in != nil {
		ref, out = t.mem.access(r.SourceSTag, r.SourceTO+off, n, regmem.RemoteRead) // [I-43] [I-61]
	} else {
		ref, out = m.w.sg[0].pin(&t.mem, regmem.Ref{}, off, n, regmem.LocalRead)
	}
	if out == regmem.OK && (ref.Guarded() || ref.Far()) {
		ref.Release()
		return regmem.Ref{}, false
	}
	return ref, out == regmem.OK
}

// appendHeader appends to p the DDP header of the segment at offset off.
func (m *txMessage) appendHeader(p []byte, off uint64, last bool) []byte {
	switch {
	case m.in != nil:
		return m.op.TaggedHeader(m.read.SinkSTag, m.read.SinkTO+off, last).Append(p) // [RDMAP-4.4-2]
	case m.op.Tagged():
		return m.op.TaggedHeader(m.w.remote.STag, m.w.remote.TO+off, last).Append(p) // [DDP-5.2-7] [DDP-4.2-6]
	}
	// All fields except MO and L are as in the first segment. [DDP-4.3-2] [DDP-4.3-5] [DDP-4.3-9]
	// [DDP-4.2-4]
	return m.op.UntaggedHeader(m.msn, uint32(off), last, m.w.stag).Append(p)
}
