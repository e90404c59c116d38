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
		return m.cr.mustRefresh() && m.stepCredit()
	default:
		return false
	}
	if m.cr.mayControl() && m.stepAnswers() || m.stepRelease() {
		return true
	}
	if m.life == lifeSuspending {
		return m.cr.mayControl() && m.stepSuspend() || m.stepCredit()
	}
	if m.cr.mayControl() && m.stepControl() {
		return true
	}
	return m.stepOffer() || m.src.step(m.snk.offer.len()) || m.urg.any() && m.stepUrgent() ||
		m.src.closing && m.stepClose() || m.stepCredit()
}

// stepAnswers sends messages that finish transfers of both half-connections.
func (m *Machine) stepAnswers() bool {
	f, room := &m.snk.fetch, &m.src.room
	switch {
	case f.complReady():
		f.complete(m.snk.mode.preference())
	case m.life == lifeOpen && f.sendSmReady():
		f.sendSm()
	case room.len() > 0 && room.complDue():
		room.complete(m.snk.mode.preference())
	case room.ackOwed:
		room.acknowledge()
	default:
		return false
	}
	return true
}

// stepRelease answers a SrcAvailCancel with the last credit. While MSeqAck is held, no message
// gives the peer credit [D-12]. The answer does, because its true number frees the cancel's own
// buffer. [SDP-10.5-2] A SendSm always carries the true number. An RdmaRdCompl should keep the held
// number [D-33], but then two ends with pools of three might wait for credit until the cancel times
// out. For the peer the cancel ends with the SendSm, or when no SrcAvail is open, but never by the
// MSeqAck of another message.
func (m *Machine) stepRelease() bool {
	c, f := &m.cr, &m.snk.fetch
	if !c.hold || c.credit() != 1 || m.life != lifeOpen {
		return false
	}
	if f.sendSmReady() {
		f.sendSm()
		return true
	}
	if f.complReady() {
		c.hold = false
		f.complete(m.snk.mode.preference())
		return true
	}
	return false
}

// stepControl sends cancels, mode changes and requests for another buffer size.
func (m *Machine) stepControl() bool {
	s, k := &m.src, &m.snk
	return s.advs.cancelWant && s.advs.sendCancel() ||
		k.offer.cancelWant && k.offer.sendCancel(s.advs.cancelOpen) ||
		s.mode.pol.wanted && s.changeMode() ||
		k.mode.pol.wanted && !k.eof && k.mode.change(&m.snd) ||
		m.rsz.step()
}

// stepOffer writes into a SinkAvail of the peer, or advertises a read, in a message that also carries
// small waiting writes if that is a Transaction. [SDP-9.4-1] If there was credit, stepAnswers has
// already reported a partly written SinkAvail.
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

// stepUrgent announces an urgent byte in a separate message, which may use a reserved credit.
// [SDP-9.5.3-3] [SDP-9.5.3-7]
func (m *Machine) stepUrgent() bool {
	if !m.cr.mayControl() || m.urg.next() == nil {
		return false
	}
	m.snd.send(sdpwire.Data, 0)
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

// stepCredit sends an empty Data that refreshes the peer's credit, or makes the peer refresh ours.
// [SDP-10.4-1] [D-10]
func (m *Machine) stepCredit() bool {
	if !m.upd.due(m.src.waiting()) && !m.src.mode.askAck(m.cr.credit()) { // [D-45]
		return false
	}
	m.snd.send(sdpwire.Data, 0)
	m.stats.SentCreditUpdates++
	return true
}
