package sdpcore

import (
	"viaduct/internal/wire/sdpwire"
)

// mayOffer returns the index of the read to advertise by a SinkAvail, or -1 if none may be
// advertised now. [SDP-9.3-2] [SDP-9.5.1-1] [SDP-11.3-8] [SDP-11.3-14]
func (m *Machine) mayOffer() int {
	s := &m.snk
	switch {
	case m.p.NoSinkAvail:
		return -1
	case s.held > 0 || s.expected > 0 || s.adverts.len() > 0: // no SinkAvail overtakes a SendSm [SDP-11.3-14] [D-34]
		return -1
	case s.cancelWant || s.cancelOpen:
		// While a SinkAvailCancel is due or open, no read is advertised. Without a SinkAvail, a
		// cancelled read waits only for RDMA Reads into it. [SDP-9.5.5-10]
		return -1
	case m.rsz.ackOwed: // the buffer size is about to change [SDP-10.6-15]
		return -1
	case s.offers.len()+m.src.advs.len() >= m.p.PeerMaxAdverts: // [SDP-6.2.1.3-1] [SDP-11.3-18]
		return -1
	}
	i := s.offers.len() // all reads before this one are advertised
	if i >= s.reads.len() {
		return -1
	}
	r := s.reads.at(i)
	// RecvThreshold is at least RecvSize, so the buffer has room for any message.
	if r.offered || r.all || r.off > 0 || r.n <= m.p.RecvThreshold {
		return -1
	}
	return i
}

// sinkAvail advertises the whole of read i. [SDP-9.3-3] [SDP-6.3.3.1-1] [SDP-6.3.3.2-1] If transact
// is set, the message also carries small waiting writes. [SDP-9.4-1] [SDP-6.3.3-3]
func (m *Machine) sinkAvail(i int, transact bool) {
	s := &m.snk
	r := s.reads.at(i)
	size := min(r.n, sdpwire.MaxSize)
	m.keys++
	a := m.send(sdpwire.SinkAvail, 0)
	act := &m.out[a]
	act.Adv, act.RID = m.keys, r.id
	act.Msg.Size, act.Msg.NonDiscards = uint32(size), uint32(s.count) // [SDP-9.3-4] [SDP-6.3.3.4-1]
	r.offered = true
	s.offers.push(sinkAdv{key: m.keys, rid: r.id, size: size})
	m.stats.SentSinkAvails++
	if transact {
		at := m.src.covered()
		end := at
		for end < m.src.writes.len() && !m.src.writes.at(end).urgent {
			end++
		}
		// Writes for zero copy stay in the queue.
		n := m.payload(a, at, end, m.p.PeerSize-sdpwire.SinkAvailLen)
		m.stats.SentBytesTransact += uint64(n)
	}
}

// endOffer ends SinkAvail i, so that the peer can no longer write to the memory of the read. It
// returns the read, which keeps its position in the queue. remote means that the peer has
// invalidated the STag. [SDP-9.3-14]
func (m *Machine) endOffer(i int, remote bool) *read {
	s := &m.snk
	o := s.offers.remove(i)
	m.do(Action{Op: OpRevoke, Adv: o.key, Remote: remote}) // [SDP-9.3-11]
	// The read exists, because no read ends while it is advertised.
	_, r := m.findRead(o.rid)
	r.offered = false
	return r
}

// voidOffers ends all SinkAvails, because the peer will not write any more.
func (m *Machine) voidOffers() {
	for m.snk.offers.len() > 0 {
		m.endOffer(0, false)
	}
	m.checkSinkCancel()
}

// checkSinkCancel ends the SinkAvailCancel and the cancelled reads, if every SinkAvail is resolved.
// [SDP-9.5.5-11] [D-34]
func (m *Machine) checkSinkCancel() {
	s := &m.snk
	if s.offers.len() > 0 {
		return
	}
	s.cancelWant, s.cancelOpen = false, false
	for i := 0; i < s.reads.len(); {
		if r := s.reads.at(i); r.cancel && r.inflight == 0 {
			m.endRead(i, ErrCancelled)
		} else {
			i++
		}
	}
}

// beginRdmaWrCompl checks an RdmaWrCompl, which must fit the oldest SinkAvail.
func (m *Machine) beginRdmaWrCompl(msg *inbound) error {
	s := &m.snk
	switch {
	case s.offers.len() == 0:
		return violation("SDP-9.3-13", msg.MID, "no SinkAvail is open")
	case int(msg.Size) > s.offers.at(0).size:
		return violation("D-20", msg.MID, "%d bytes in a buffer of %d", msg.Size, s.offers.at(0).size)
	case msg.invalidated && msg.inv != s.offers.at(0).stag: // [SDP-9.3-10]
		return violation("SDP-9.3-10", msg.MID, "invalidates an STag that is not the SinkAvail's")
	}
	return nil
}

// endRdmaWrCompl ends the oldest SinkAvail, to which the peer has written bytes. [SDP-9.3-13]
// [D-20]
func (m *Machine) endRdmaWrCompl(msg *inbound) error {
	s := &m.snk
	n := int(msg.Size)
	m.stats.RecvBytesWrite += uint64(n)
	s.pos += uint64(n)
	r := m.endOffer(0, msg.invalidated)
	i, _ := m.findRead(r.id)
	r.off += n
	if n > 0 {
		m.endRead(i, nil)
	} else {
		// No bytes were written: the read continues to wait, after reads to whose buffers the peer
		// may already be writing. [D-20]
		rr := s.reads.remove(i)
		s.reads.push(rr)
		for j := s.reads.len() - 1; j > i && !s.reads.at(j-1).offered; j-- {
			*s.reads.at(j), *s.reads.at(j - 1) = *s.reads.at(j - 1), *s.reads.at(j)
		}
	}
	m.checkSinkCancel()
	m.noteHint(msg.Flags) // [SDP-6.1.2-13]
	return nil
}

// endSinkCancelAck ends all SinkAvails that are still open, because the peer has dropped them. A
// SinkCancelAck without a cancel, or for an earlier cancel, is ignored. [D-34]
func (m *Machine) endSinkCancelAck(msg *inbound) error {
	if s := &m.snk; s.cancelOpen && !serial(msg.MSeqAck).less(s.cancelSeq) {
		m.voidOffers()
	}
	return nil
}
