package sdpcore

import "viaduct/internal/wire/sdpwire"

// pump sends, reads and writes as much as the rules allow now.
func (m *Machine) pump() {
	for m.life != lifeDead {
		m.snk.serve()
		m.steer()
		if !m.step() {
			break
		}
	}
	if m.life == lifeDead {
		m.snk.serve()
		return
	}
	m.snk.held.compact()
	if w := m.src.waiting(); w != m.upd.stalled {
		m.upd.note(w)
	}
}

// steer lets the policies of both halves decide whether the modes should change. The master may
// change a mode at any time for its own reasons. [SDP-12.5-1] [D-42]
func (m *Machine) steer() {
	m.src.mode.steer(&m.src.writes)
	m.snk.mode.steer()
}

// step performs one action. It reports whether there was one.
func (m *Machine) step() bool {
	switch m.life {
	case lifeOpen, lifeSuspending:
	case lifeSuspSent:
		// The rule is silence [SDP-13.1.1-5], but a peer without credits could never answer. The
		// rule that credit is refreshed without a request takes precedence. [SDP-10.5-9] [D-53]
		return m.cr.mustRefresh() && m.upd.step(m.src.waiting())
	default:
		return false
	}
	// First come the messages that finish transfers of both half-connections.
	if m.cr.mayControl() && (m.snk.fetch.answer() || m.src.room.answer()) || m.snk.fetch.release() {
		return true
	}
	if m.life == lifeSuspending {
		return m.cr.mayControl() && m.stepSuspend() || m.upd.step(m.src.waiting())
	}
	if m.cr.mayControl() && m.stepControl() {
		return true
	}
	return m.stepOffer() || m.src.step(m.snk.offer.len()) || m.urg.any() && m.urg.step() ||
		m.src.closing && m.stepClose() || m.upd.step(m.src.waiting())
}

// stepControl sends cancels, mode changes and requests for another buffer size.
func (m *Machine) stepControl() bool {
	s, k := &m.src, &m.snk
	switch {
	case s.advs.cancelWant:
		s.advs.sendCancel()
	case k.offer.cancelWant && !s.advs.cancelOpen:
		// The peer holds MSeqAck while a SrcAvailCancel is open. So the SinkCancelAck could not be
		// distinguished from that for an earlier cancel. [D-34]
		k.offer.sendCancel()
	default:
		return s.mode.pol.wanted && s.changeMode() ||
			k.mode.pol.wanted && !k.eof && k.mode.change(&m.snd) ||
			m.rsz.step()
	}
	return true
}

// stepOffer writes into a SinkAvail of the peer, or advertises a read, in a message that also carries
// small waiting writes if that is a Transaction. [SDP-9.4-1] If there was credit, the answer of
// sinkRoom has already reported a partly written SinkAvail.
func (m *Machine) stepOffer() bool {
	s, k := &m.src, &m.snk
	if s.room.len() > 0 && s.room.writable() {
		s.room.write()
		return true
	}
	if k.mode.current != sdpwire.Pipelined { // [SDP-9.4-2] [SDP-12-10]
		return false
	}
	i := k.mayOffer(s.advs.len(), m.rsz.ackOwed)
	switch {
	case i < 0:
		return false
	case s.canTransact():
		s.transact(k.offer.send(i)) // [D-27]
	case m.cr.mayControl():
		k.offer.send(i)
	default:
		return false
	}
	return true
}

// stepClose sends DisConn after all data.
func (m *Machine) stepClose() bool {
	if !m.src.disconnect() {
		return false
	}
	if m.snk.eof {
		m.finish()
	}
	return true
}
