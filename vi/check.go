package vi

import "viaduct/internal/regmem"

// checkSend applies the rules of section 3 of the architecture to a descriptor of the send queue.
// It returns the error bits of the broken rules, 0 if there are none.
func (e *Endpoint) checkSend(d *Descriptor) Status {
	if bad := e.checkSendForm(d); bad != 0 {
		return bad
	}
	if bad := e.checkSegments(d, d.Control.Op() != OpSendReceive); bad != 0 {
		return bad
	}
	return e.checkSendLength(d)
}

// checkSendForm checks the fields of a descriptor before the segments, and checkSendLength checks
// the sum of the segments' lengths. Both return error bits, or 0.
func (e *Endpoint) checkSendForm(d *Descriptor) Status {
	op := d.Control.Op()
	if d.Control&controlReserved != 0 || op == opReserved || op == OpRDMARead && d.Control&Immediate != 0 {
		return StatusFormatError // [VIA 3.2] [VIA 3.6] [VIA-3.2-1] [VIA-3.2-3] [VIA-3.6-1] [VIA-4.6-1] [VIA-5.3-4]
	}
	if op == OpRDMARead && e.attrs.Reliability&e.v.nic.attrs.RDMAReadSupport == 0 {
		return StatusFormatError // [VIA 4.3] [VIA-4.3-2]
	}
	return 0
}

func (e *Endpoint) checkSendLength(d *Descriptor) Status {
	if d.Capacity() != uint64(d.Length) || d.Length > e.agreed.MaxTransferSize {
		return StatusLengthError // [VIA 3.5] [VIA-3.5-1] [VIA-3.5-2] [VIA-4.6-3]
	}
	return 0
}

// checkRecv checks a descriptor of the receive queue like checkSend. It ignores the immediate and
// fence bits, because they have no meaning for a receive, and Length, because it is only a
// convention. [VIA 3.2] [VIA 3.5] [VIA-3.2-2]
func (e *Endpoint) checkRecv(d *Descriptor) Status {
	if bad := e.checkRecvForm(d); bad != 0 {
		return bad
	}
	return e.checkSegments(d, false)
}

func (e *Endpoint) checkRecvForm(d *Descriptor) Status {
	if d.Control.Op() != OpSendReceive || d.Control&controlReserved != 0 { // [VIA-4.6-6]
		return StatusFormatError
	}
	return 0
}

// holdSend makes the checks of checkSend, and pins the source of a Send or RDMA Write with one
// segment. held is the zero Memory if nothing was pinned.
func (e *Endpoint) holdSend(d *Descriptor) (held Memory, bad Status) {
	op := d.Control.Op()
	if !d.oneSegment() || op == OpRDMARead {
		return Memory{}, e.checkSend(d)
	}
	if bad = e.checkSendForm(d); bad == 0 {
		bad = e.checkSegmentCount(d, op != OpSendReceive)
	}
	if bad == 0 {
		held, bad = e.holdSegment(d)
	}
	if bad == 0 {
		if bad = e.checkSendLength(d); bad != 0 {
			held.Release()
			held = Memory{}
		}
	}
	return held, bad
}

// holdRecv makes the checks of checkRecv, and pins the memory of a descriptor with one segment.
// held is the zero Memory if nothing was pinned.
func (e *Endpoint) holdRecv(d *Descriptor) (held Memory, bad Status) {
	if !d.oneSegment() {
		return Memory{}, e.checkRecv(d)
	}
	if bad = e.checkRecvForm(d); bad == 0 {
		held, bad = e.holdSegment(d)
	}
	return held, bad
}

// oneSegment reports whether the descriptor has exactly one segment, of at least 1 byte.
func (d *Descriptor) oneSegment() bool { return len(d.Segments) == 1 && d.Segments[0].Length > 0 }

// holdSegment pins all of the first segment, with the checks of checkSegments.
func (e *Endpoint) holdSegment(d *Descriptor) (Memory, Status) {
	s := &d.Segments[0]
	m, out := e.v.nic.memory.Access(uint32(s.Handle), s.Address, uint64(s.Length), e.domain, nil, regmem.Local)
	if out != regmem.OK {
		return Memory{}, StatusProtectionError // [VIA-1.5-4] [VIA-1.5-5] [VIA-4.6-2]
	}
	return Memory(m), 0
}

func (e *Endpoint) checkSegments(d *Descriptor, rdma bool) Status {
	if bad := e.checkSegmentCount(d, rdma); bad != 0 {
		return bad
	}
	for i := range d.Segments {
		s := &d.Segments[i]
		if s.Length == 0 {
			continue // an empty segment needs no valid handle [VIA 3.4] [VIA-3.4-3] [VIA-3.4-4]
		}
		if e.v.nic.memory.Check(uint32(s.Handle), s.Address, uint64(s.Length), e.domain, nil, regmem.Local) != regmem.OK {
			return StatusProtectionError // [VIA 1.5] [VIA-1.5-4] [VIA-1.5-5] [VIA-1.5-6] [VIA-4.6-2]
		}
	}
	return 0
}

func (e *Endpoint) checkSegmentCount(d *Descriptor, rdma bool) Status {
	n := len(d.Segments)
	if rdma {
		n++ // the address segment counts as a segment [VIA 3.4] [VIA-3.4-2]
	}
	if m := e.v.nic.attrs.MaxSegmentsPerDesc; m > 0 && n > m { // [VIA-3.4-1]
		return StatusFormatError
	}
	return 0
}

// A Cursor is a position in the segments of a descriptor. The zero Cursor is the start of the first
// segment.
type Cursor struct { // [VIA-3.5-7] [VIA-8.3-11]
	seg int
	off uint32
}

// Skip advances the cursor by n bytes in the segments of d, at most to the end of the last segment.
func (c *Cursor) Skip(d *Descriptor, n uint64) {
	for n > 0 && c.seg < len(d.Segments) {
		k := uint64(d.Segments[c.seg].Length - c.off)
		if n < k {
			c.off += uint32(n)
			return
		}
		n -= k
		c.seg, c.off = c.seg+1, 0
	}
}

// Gather pins the next piece of d's memory, at most limit bytes of one segment, and advances the
// cursor. At the end of the segments it returns an empty Memory and status 0. If the check of the
// memory fails, it returns StatusProtectionError.
//
// held is memory the caller has pinned already, or the zero Memory. If the piece belongs to the
// region of held, the piece gets no pin of its own and is valid until held is released. The checks
// are the same in both cases. held must not be guarded.
func (e *Endpoint) Gather(held Memory, d *Descriptor, c *Cursor, limit int) (Memory, Status) {
	return e.piece(held, d, c, limit, regmem.LocalRead)
}

// Scatter is Gather for memory the caller will write.
func (e *Endpoint) Scatter(held Memory, d *Descriptor, c *Cursor, limit int) (Memory, Status) {
	return e.piece(held, d, c, limit, regmem.LocalWrite)
}

func (e *Endpoint) piece(held Memory, d *Descriptor, c *Cursor, limit int, need regmem.Rights) (Memory, Status) {
	for c.seg < len(d.Segments) {
		s := &d.Segments[c.seg]
		n := min(uint64(s.Length-c.off), uint64(limit))
		if n == 0 {
			if limit == 0 {
				break
			}
			c.seg, c.off = c.seg+1, 0
			continue
		}
		m, ok := e.access(held, s.Handle, s.Address+uint64(c.off), n, need)
		if !ok {
			return Memory{}, StatusProtectionError
		}
		c.off += uint32(n)
		if c.off == s.Length {
			c.seg, c.off = c.seg+1, 0
		}
		return m, 0
	}
	return Memory{}, 0
}
