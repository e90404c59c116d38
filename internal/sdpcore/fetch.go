package sdpcore

import (
	"time"

	"viaduct/internal/wire/sdpwire"
)

// fetch starts an RDMA Read into r [SDP-9-4] from the oldest SrcAvail with unrequested bytes. fetch
// returns false if no RDMA Read was started. [SDP-9.2-7] [SDP-9.5.2.1-3] If the free part of r is
// too short for zero copy, the SrcAvail will be answered with SendSm. [SDP-9.2-6] [SDP-6.3.5-1]
func (m *Machine) fetch(r *read) bool {
	s := &m.snk
	i := m.fetchable()
	if i < 0 || s.opsLocal > 0 {
		return false
	}
	a := s.adverts.at(i)
	room, left := r.n-r.off-r.inflight, a.size-a.asked
	// [SDP-9.2-5]
	if room < left && room <= m.p.RecvThreshold {
		// No RDMA Read into r is in progress: such a Read would fetch the whole rest of this
		// SrcAvail.
		if i == 0 && (r.off == 0 || r.all) {
			a.wantSm = true
		}
		return false
	}
	// The RDMA Read begins after the prefix, with the STag of the SrcAvail. [SDP-9.2-8]
	// [SDP-6.3.2.3-1] [SDP-11.3-15]
	n := min(room, left)
	m.do(Action{Op: OpRDMARead, ID: r.id, Off: r.off + r.inflight, N: n, STag: a.stag, TO: a.to + uint64(a.asked)})
	s.ops.push(readOp{adv: a.key, rid: r.id, n: n})
	a.asked += n
	r.inflight += n
	r.fetched = true
	return true
}

// fetchable returns the index of the SrcAvail that the next RDMA Read takes bytes from, or -1 if
// there is none.
func (m *Machine) fetchable() int {
	s := &m.snk
	if m.life != lifeOpen || s.srcCancel || s.expected > 0 || s.ops.len() >= m.p.ORD { // [SDP-9.5.4-6] [SDP-9.2-26] [SDP-6.2.1.7-1]
		return -1
	}
	for i := range s.adverts.len() {
		a := s.adverts.at(i)
		if a.wantSm {
			return -1
		}
		if a.asked < a.size {
			return i
		}
	}
	return -1
}

// ReadDone reports that the oldest RDMA Read is complete. Without an RDMA Read in progress,
// ReadDone panics, except on a dead connection.
func (m *Machine) ReadDone(now time.Duration, out []Action) []Action {
	m.begin(now, out)
	s := &m.snk
	if s.ops.len() == 0 {
		if m.life == lifeDead {
			return m.end()
		}
		panic("sdpcore: completion of an RDMA Read that was not asked for")
	}
	op := s.ops.pop()
	for i := range s.adverts.len() {
		if a := s.adverts.at(i); a.key == op.adv {
			a.done += op.n
			a.at = m.now
			break
		}
	}
	m.stats.RecvBytesRead += uint64(op.n)
	s.pos += uint64(op.n)
	if op.local {
		s.opsLocal--
		s.holds.push(held{n: op.n})
		s.held += op.n
		s.compacted += op.n
	} else if i, r := m.findRead(op.rid); r != nil {
		r.off += op.n
		r.inflight -= op.n
		if r.cancel && r.inflight == 0 {
			m.endRead(i, ErrCancelled)
		}
	}
	if s.discard {
		m.dropHeld()
	}
	m.serve()
	return m.end()
}

// beginSrcAvail checks a SrcAvail, before its payload is accepted.
func (m *Machine) beginSrcAvail(msg *inbound) error {
	s, n := &m.snk, msg.n
	m.stats.RecvSrcAvails++
	switch {
	case s.eof:
		return violation("SDP-8.2.1-8", msg.MID, "after DisConn")
	case s.mode == sdpwire.Buffered: // [SDP-11.1-1]
		return violation("SDP-11.1-1", msg.MID, "in Buffered Mode")
	case s.mode == sdpwire.Combined && n == 0:
		return violation("SDP-9.2-2", msg.MID, "without payload in Combined Mode")
	case s.mode == sdpwire.Combined && s.adverts.len() > 0:
		return violation("SDP-11.2-4", msg.MID, "another is open in Combined Mode")
	case s.expected > 0 && n > 0:
		return violation("SDP-11.2-4", msg.MID, "%d bytes are owed by Data", s.expected)
	case s.mode == sdpwire.Pipelined && n > 0:
		return violation("SDP-9.2-3", msg.MID, "with payload in Pipelined Mode")
	case s.srcCancel:
		return violation("SDP-9.5.4-10", msg.MID, "before the cancel was answered")
	case uint32(n) > msg.Size:
		return violation("D-18", msg.MID, "%d bytes of payload from a buffer of %d", n, msg.Size)
	case msg.VA+uint64(msg.Size) < msg.VA:
		return violation("SDP-6.3.2.1-1", msg.MID, "buffer beyond the address space")
	case s.offers.len() > 0:
		return errVoid // Write Zcopy takes precedence [SDP-11.3-9] [SDP-11.3-16]
	case m.src.avail.len()+s.adverts.len() >= m.p.MaxAdverts: // [SDP-6.2.1.3-1] [D-15]
		return violation("SDP-11.3-18", msg.MID, "more than %d advertisements open", m.p.MaxAdverts)
	}
	return nil
}

// endSrcAvail records the advertisement of a SrcAvail. The advertisement ends by RDMA or by a
// SendSm. [SDP-9.5.2.1-4]
func (m *Machine) endSrcAvail(msg *inbound) error {
	s, n := &m.snk, msg.n
	m.stats.RecvBytesPrefix += uint64(n)
	if s.closed && !s.discard {
		return ErrReadClosed
	}
	m.keys++
	a := s.adverts.push(inAdv{key: m.keys, stag: msg.STag, to: msg.VA + uint64(n), size: int(msg.Size) - n, at: m.now})
	a.empty = a.size == 0              // [D-18]
	a.wantSm = m.p.NoRead || s.discard // [SDP-9-5]
	if s.adverts.len() == 1 {
		s.waitAt = m.now
	}
	return nil
}

// rdComplReady reports whether the oldest SrcAvail has bytes to acknowledge.
func (m *Machine) rdComplReady() bool {
	s := &m.snk
	if s.adverts.len() == 0 {
		return false
	}
	a := s.adverts.at(0)
	// Acknowledge only bytes already read [SDP-9.2-10], and only while no other read is in
	// progress, so that each round has a single answer.
	return a.empty || a.done > a.reported && a.done == a.asked
}

// rdCompl acknowledges the bytes of the oldest SrcAvail that were read since the last
// acknowledgement. [SDP-9.2-9] [SDP-9.2-11] [SDP-9.2-12] [SDP-9.2-13] [SDP-9.2-28] [SDP-6.3.7.1-1]
// [SDP-6.3.7.1-2] [SDP-6.3.7.1-3]
func (m *Machine) rdCompl() {
	s := &m.snk
	a := *s.adverts.at(0)
	n := m.send(sdpwire.RdmaRdCompl, m.preference())
	act := &m.out[n]
	act.Msg.Size = uint32(a.done - a.reported)
	s.adverts.at(0).reported = a.done
	if a.done == a.size {
		// The last RdmaRdCompl invalidates the STag [SDP-9.2-20]; earlier ones use Send with SE.
		// [SDP-9.2-21]
		if !m.p.NoInvalidate {
			act.Invalidate, act.STag = true, a.stag
		}
		s.adverts.pop()
		s.waitAt = m.now
		m.endHold()
	}
}

// endHold ends the hold of MSeqAck once the SrcAvailCancel is complete. [D-33]
func (m *Machine) endHold() {
	if m.snk.adverts.len() == 0 {
		m.snk.srcCancel, m.cr.hold = false, false
	}
}

// sendSmReady reports whether a SendSm is due, in any mode [SDP-11-2] [D-21]: for the oldest
// SrcAvail after all of its reads were finished and acknowledged, or for a cancel.
func (m *Machine) sendSmReady() bool {
	s := &m.snk
	if s.adverts.len() == 0 {
		return false
	}
	a := s.adverts.at(0)
	if a.done != a.asked || a.done != a.reported || a.empty {
		return false
	}
	if s.srcCancel {
		return s.ops.len() == 0 // [SDP-9.5.4-7]
	}
	return a.wantSm && s.expected == 0
}

// sendSm forces the rest of the oldest SrcAvail to Bcopy [SDP-9.5.2.1-1], or answers a cancel by a
// single SendSm for all SrcAvails. The SendSm is the first message with the true MSeqAck again.
// [SDP-9.5.4-8] [SDP-9.5.4-9] [D-32] [D-33]
func (m *Machine) sendSm() {
	s := &m.snk
	if s.srcCancel {
		s.srcCancel, m.cr.hold = false, false
		m.send(sdpwire.SendSm, 0)
		s.adverts.clear()
		m.stats.SentSendSms++
		return
	}
	m.send(sdpwire.SendSm, 0)
	a := s.adverts.pop()
	s.expected = a.size - a.reported // [SDP-9.2-27]; later SrcAvails stay [SDP-11.3-7]
	s.waitAt = m.now
	m.stats.SentSendSms++
}

// beginSrcAvailCancel checks a SrcAvailCancel: a second must not be open at the same time.
func (m *Machine) beginSrcAvailCancel(msg *inbound) error {
	if m.snk.srcCancel {
		return violation("SDP-9.5.4-10", msg.MID, "another is being answered")
	}
	return nil
}

// endSrcAvailCancel makes sendSm answer the cancel and drop all unfinished SrcAvails. [SDP-9.5.4-2]
// [SDP-9.5.4-3] If no SrcAvail is open, the cancel has no effect. [SDP-9.5.4-4]
func (m *Machine) endSrcAvailCancel(msg *inbound) error {
	s := &m.snk
	if s.adverts.len() == 0 {
		return nil
	}
	s.srcCancel = true
	m.cr.hold, m.cr.holdAt = m.life == lifeOpen, serial(msg.MSeq)-1 // [SDP-9.5.4-5] [D-33]
	return nil
}
