package sdpcore

import (
	"viaduct/internal/wire/sdpwire"
)

// take moves n bytes from the front of the held payload to read r.
func (m *Machine) take(r *read, n int) {
	m.do(Action{Op: OpCopy, ID: r.id, Off: r.off, N: n})
	r.off += n
	m.consume(n)
}

// consume counts n held bytes as consumed, and each Private Buffer without held bytes as posted
// again.
func (m *Machine) consume(n int) {
	s := &m.snk
	s.held -= n
	m.cr.grow(n)
	for n > 0 {
		h := s.holds.at(0)
		k := min(n, h.n)
		h.n -= k
		n -= k
		if !h.private {
			s.compacted -= k
		}
		if h.n == 0 {
			if h.private {
				m.cr.free++
			}
			s.holds.pop()
		}
	}
}

// accept accepts n bytes of payload of the current message. If apart is set, the last byte is
// urgent and kept out of the stream. It fails if the rules allow no payload now.
func (m *Machine) accept(mid sdpwire.MID, n int, apart bool) error {
	s := &m.snk
	switch {
	case s.eof: // [SDP-8.2.1-8]
		return violation("SDP-8.2.1-8", mid, "payload after DisConn")
	case s.adverts.len() > 0 && s.expected == 0:
		row := "SDP-11.2-4"
		if s.mode == sdpwire.Pipelined {
			row = "SDP-11.3-5"
		}
		return violation(row, mid, "payload while a SrcAvail is open")
	case s.adverts.len() > 0 && n > s.expected:
		return violation("SDP-11.3-6", mid, "%d bytes where %d were owed", n, s.expected)
	case s.closed && !m.snk.discard:
		return ErrReadClosed // [D-49]
	}
	s.expected = max(0, s.expected-n)
	s.pol.bcopied += n
	if s.offers.len() == 0 {
		s.count++ // [SDP-6.3.3.4-3]
		m.hold(n, apart)
		return nil
	}
	// Only this message consumes the oldest SinkAvail. The peer's own counter shows the peer that
	// the SinkAvail was consumed. [SDP-9.5.1-4] [SDP-9.5.1-5]
	r := m.endOffer(0, false)
	m.hold(n, apart)
	if r == s.reads.at(0) && s.held > 0 {
		m.take(r, min(r.n-r.off, s.held))
		m.endRead(0, nil)
	}
	m.checkSinkCancel()
	return nil
}

// hold appends n bytes to the held payload.
func (m *Machine) hold(n int, apart bool) {
	s := &m.snk
	s.pos += uint64(n)
	if apart {
		n--
	}
	if n == 0 {
		m.cr.free++
		return
	}
	m.do(Action{Op: OpHold, N: n})
	s.holds.push(held{n: n, private: true})
	s.held += n
	if s.discard {
		m.dropHeld()
	}
}

func (m *Machine) dropHeld() {
	if n := m.snk.held; n > 0 {
		m.do(Action{Op: OpDrop, N: n})
		m.consume(n)
	}
}

// compact copies the newest payload to free its Private Buffer, if buffers run low and the payload
// fills at most half of the buffer. A buffer with a single byte must not cost the peer a whole
// credit. [SDP-9.5.6-1] [D-79]
func (m *Machine) compact() {
	s := &m.snk
	// If more than half of the buffers are free, nothing is copied. Otherwise payload is held,
	// because only held payload fills buffers.
	if m.cr.free > m.cr.pool/2 {
		return
	}
	h := s.holds.at(s.holds.len() - 1)
	if !h.private || h.n > m.p.RecvSize/2 || s.compacted+h.n > m.p.RecvBudget {
		return
	}
	m.do(Action{Op: OpCompact, N: h.n})
	m.stats.CompactedBytes += uint64(h.n)
	h.private = false
	s.compacted += h.n
	m.cr.free++
	// Merge the copy with the preceding run. A preceding run exists, because at least two Private
	// Buffers are full here, even with the smallest pool of three.
	if before := s.holds.at(s.holds.len() - 2); !before.private {
		before.n += h.n
		s.holds.remove(s.holds.len() - 1)
	}
}
