package sdpcore

import (
	"time"

	"viaduct/internal/wire/sdpwire"
)

// pump sends, reads and writes as much as the rules allow now.
func (m *Machine) pump() {
	for m.life != lifeDead {
		m.serve()
		m.steer()
		if !m.step() {
			break
		}
	}
	if m.life == lifeDead {
		m.serve()
		return
	}
	m.compact()
	m.noteStall()
}

// send appends the OpSend of the next message, complete except for the extended header and the
// payload, and returns its index in out. Messages enter the send queue in the order of their
// numbers. It panics without credit. [SDP-10.1-1] [SDP-6.1.5-1] [SDP-6.1.5-2] [SDP-6.1.5-3]
func (m *Machine) send(mid sdpwire.MID, flags sdpwire.Flags) int {
	c := &m.cr
	if c.credit() == 0 {
		panic("sdpcore: no credit for " + mid.String())
	}
	if m.src.urgents > 0 {
		// Each urgent byte is announced once [SDP-9.5.3-4], at the latest in the message that
		// carries it. [SDP-9.5.3-5]
		if w := m.announceable(); w != nil {
			// The flag is in the next message of any type. [SDP-6.1.2-7] [SDP-9.5.3-2]
			flags |= sdpwire.OOBPend
			w.pended = true
			m.src.urgents--
		}
	}
	m.do(Action{Op: OpSend, Solicited: sdpwire.Solicited(mid, flags), Msg: m.header(mid, flags)})
	return len(m.out) - 1
}

// header returns the header of the next message, for a message without payload, and counts the
// message as sent.
func (m *Machine) header(mid sdpwire.MID, flags sdpwire.Flags) sdpwire.Message {
	c := &m.cr
	h := sdpwire.Message{
		MID: mid, Flags: flags, Bufs: uint16(c.announce()), Len: uint32(mid.HeaderLen()), // [SDP-6.1.4-1]
		MSeq: uint32(c.next), MSeqAck: uint32(c.ack()),
	}
	c.announced()
	c.next++
	if mid != sdpwire.Data {
		c.lastReal = c.next
	}
	m.stats.SentMessages++
	return h
}

// sentPayload records that the last message carries payload.
func (m *Machine) sentPayload() {
	m.cr.lastReal, m.cr.nudged = m.cr.next, false
	if s := &m.src; s.stalled {
		s.stalled = false
		m.stats.LongestCreditStall = max(m.stats.LongestCreditStall, m.now-s.stalledAt)
	}
}

// urgentDistance is the largest number of bytes between the announcement of an urgent byte and the
// byte. [SDP-9.5.3-6]
const urgentDistance = 65535

// announceable returns the urgent write to announce, or nil if there is none. It also returns nil
// while more than urgentDistance bytes would lie between the announcement and its byte, by any
// mechanism. [SDP-9.5.3-6] [D-30]
func (m *Machine) announceable() *write {
	s := &m.src
	between := -1
	for i := range s.writes.len() {
		w := s.writes.at(i)
		between += w.n - w.off
		if w.urgent && !w.pended {
			if between <= urgentDistance {
				return w
			}
			return nil
		}
	}
	return nil
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
	return m.stepPayload() || m.stepUrgent() || m.stepClose() || m.stepCredit()
}

// stepAnswers sends messages that finish transfers of both half-connections.
func (m *Machine) stepAnswers() bool {
	s := &m.src
	switch {
	case m.rdComplReady():
		m.rdCompl()
	case m.life == lifeOpen && m.sendSmReady():
		m.sendSm()
	case m.wrComplDue():
		m.wrCompl()
	case s.ackOwed: // sent after the RdmaWrCompl of the In-Process SinkAvail [SDP-9.5.5-7] [SDP-6.3.11-1]
		s.ackOwed = false
		m.send(sdpwire.SinkCancelAck, 0)
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
	c := &m.cr
	if !c.hold || c.credit() != 1 || m.life != lifeOpen {
		return false
	}
	if m.sendSmReady() {
		m.sendSm()
		return true
	}
	if m.rdComplReady() {
		c.hold = false
		m.rdCompl()
		return true
	}
	return false
}

// wrComplDue reports whether to report the oldest SinkAvail as written: it is full, or no more
// bytes are written to it now. A partly filled SinkAvail is never kept. [D-37]
func (m *Machine) wrComplDue() bool {
	s := &m.src
	if s.avail.len() == 0 {
		return false
	}
	k := s.avail.at(0)
	return k.filled > 0 && !m.writable()
}

// writable reports whether the next bytes of the stream go into the oldest SinkAvail. [SDP-11.3-11]
// Small writes go there only if no write follows, or if they share the RdmaWrCompl of others;
// otherwise Data is cheaper. [D-22] [SDP-9.5.2.2-1] [SDP-9.3-6]
func (m *Machine) writable() bool {
	s := &m.src
	if s.avail.len() == 0 || m.life != lifeOpen || m.leavingPipelined() || s.nforced > 0 {
		return false
	}
	k, w := s.avail.at(0), s.plain()
	if w == nil || w.urgent || w.forced || k.filled == k.size || s.advs.len() > 0 {
		return false
	}
	if w.n-w.off > s.threshold || k.filled > 0 {
		return true
	}
	return s.covered() == s.writes.len()-1
}

// stepControl sends cancels, mode changes and requests for another buffer size.
func (m *Machine) stepControl() bool {
	s, k := &m.src, &m.snk
	switch {
	case s.cancelWant && s.advs.len() > 0 && !s.cancelOpen:
		// [SDP-9.5.4-1]
		m.send(sdpwire.SrcAvailCancel, 0)
		s.cancelWant, s.cancelOpen, s.cancelSeq, s.cancelAt = false, true, m.cr.next-1, m.now
		m.stats.SentSrcCancels++
	case k.cancelWant && k.offers.len() > 0 && !k.cancelOpen && !s.cancelOpen:
		// Only one SinkAvailCancel may be open at a time. [SDP-9.5.5-10] [D-34] None is sent while
		// a SrcAvailCancel is open, because the peer then holds MSeqAck, and the SinkCancelAck of
		// this cancel could not be distinguished from that for an earlier cancel.
		m.send(sdpwire.SinkAvailCancel, 0)
		k.cancelWant, k.cancelOpen, k.cancelSeq, k.cancelAt = false, true, m.cr.next-1, m.now
		m.stats.SentSinkCancels++
	case m.changeSendMode():
	case m.changeRecvMode():
	case m.resizeStep():
	default:
		return false
	}
	return true
}

// stepPayload moves bytes of the outgoing stream, or advertises a read for the incoming stream. If
// there was credit, stepAnswers has already reported a partly written SinkAvail.
func (m *Machine) stepPayload() bool {
	s := &m.src
	c := &m.cr
	w := s.plain()
	if m.writable() {
		m.rdmaWrite()
		return true
	}
	offer := -1
	if m.snk.mode == sdpwire.Pipelined { // [SDP-9.4-2] [SDP-12-10]
		offer = m.mayOffer()
	}
	small := w != nil && !s.zcopy(w) && !w.urgent
	if offer >= 0 && small && s.covered() == 0 && c.mayPayload() {
		m.sinkAvail(offer, true) // Transaction [SDP-9.4-1] [D-27]
		return true
	}
	if offer >= 0 && c.mayControl() {
		m.sinkAvail(offer, false)
		return true
	}
	switch {
	case s.nforced > 0: // each mode has its own mechanisms, as this switch shows [SDP-12-8]
		if c.mayPayload() {
			m.data()
			return true
		}
	case w == nil:
	case s.zcopy(w) && (s.avail.len() == 0 || s.mode != sdpwire.Pipelined):
		return m.advertise(w)
	case s.advs.len() > 0: // [SDP-11.2-4] [SDP-11.2-5] [SDP-11.3-5]
	case c.mayPayload() && !m.leavingPipelined():
		m.data()
		return true
	}
	return false
}

// advertise sends a SrcAvail for w if the mode, the peer's MaxAdverts and the credits allow it. It
// reports whether it did, or made w use Bcopy.
func (m *Machine) advertise(w *write) bool {
	s := &m.src
	if s.cancelOpen { // [SDP-9.5.4-10]
		return false
	}
	if s.mode == sdpwire.Combined && s.advs.len() > 0 { // [D-44] one SrcAvail at a time
		return false
	}
	if s.advs.len()+m.snk.offers.len() >= m.p.PeerMaxAdverts { // [SDP-6.2.1.3-1] [SDP-11.3-18] [D-15]
		if s.advs.len() == 0 {
			// Otherwise the write would wait until our own SinkAvails no longer use up MaxAdverts.
			w.bcopy = true
			return true
		}
		return false
	}
	if s.mode == sdpwire.Combined && !m.cr.mayPayload() || !m.cr.mayControl() {
		return false
	}
	m.srcAvail()
	return true
}

// stepUrgent announces an urgent byte in a separate message, which may use a reserved credit.
// [SDP-9.5.3-3] [SDP-9.5.3-7]
func (m *Machine) stepUrgent() bool {
	if m.src.urgents == 0 || !m.cr.mayControl() || m.announceable() == nil {
		return false
	}
	m.send(sdpwire.Data, 0)
	return true
}

// stepClose sends DisConn after all data. [SDP-8.2.1-4] [SDP-8.2.1-6] [SDP-8.2.1-19] [SDP-8.2.1-21]
func (m *Machine) stepClose() bool {
	s := &m.src
	if !s.closing || s.disSent || s.writes.len() > 0 || s.cancelOpen || !m.cr.mayControl() {
		return false
	}
	m.send(sdpwire.DisConn, 0)
	s.disSent = true
	s.avail.clear()
	if m.snk.eof {
		m.finish()
	}
	return true
}

// stepCredit sends an empty Data that refreshes the peer's credit, or makes the peer refresh ours.
// [SDP-10.4-1] [D-10]
func (m *Machine) stepCredit() bool {
	c := &m.cr
	n := c.credit()
	switch {
	case n == 0: // without credit no message may be sent [SDP-10.5-5]
		return false
	case c.mustRefresh(): // this update may take even the last credit [SDP-10.5-2] [SDP-10.5-8]
	case n >= 2 && c.shouldRefresh():
	case m.nudge():
		c.nudged, c.nudgedAt = true, m.now
	case m.inDoubt() && m.now >= c.nudgedAt+m.insistAfter(): // [D-08]
	case m.askModeAck(): // [D-45]
		m.src.nudgeAck = true
	default:
		return false
	}
	m.send(sdpwire.Data, 0)
	m.stats.SentCreditUpdates++
	return true
}

// waiting reports whether payload waits only for credit.
func (m *Machine) waiting() bool {
	s := &m.src
	if m.life != lifeOpen || m.cr.mayPayload() || m.leavingPipelined() {
		return false
	}
	if s.nforced > 0 {
		return true
	}
	w := s.plain()
	return w != nil && s.advs.len() == 0 && !m.writable() && !(s.mode == sdpwire.Pipelined && s.zcopy(w))
}

// nudge reports whether to spend one of two credits on an empty Data, because payload waits and the
// peer has no reason to send more credit. There are three cases:
//   - All unacknowledged messages are empty Data, which the peer does not answer while we have two
//     credits.
//   - Message 0 is unacknowledged, and its acknowledgement looks like none. [D-08]
//   - Payload has waited for Timers.Nudge, because the peer gives credit only when one is left.
//     [D-10]
func (m *Machine) nudge() bool {
	c := &m.cr
	if c.credit() != 2 || c.unacked() == 0 || !m.waiting() {
		return false
	}
	if c.nudged {
		return m.now-c.nudgedAt >= m.nudgeAgain()
	}
	switch {
	case !c.ackSure && c.unacked() == 1:
		return true
	case !c.acked.less(c.lastReal):
		return true
	}
	return m.src.stalled && m.now-m.src.stalledAt >= m.p.Timers.Nudge
}

// inDoubt reports whether payload is stuck because the peer did not answer the empty Data after
// message 0. A peer with three buffers that follows the printed formula literally does not answer:
// for such a peer, its MSeqAck of 0 from set-up has acknowledged message 0. It counts two credits
// where we count one, and need not send more before its count is one. It then gets another empty
// Data, as its count allows. [D-08]
func (m *Machine) inDoubt() bool {
	c := &m.cr
	return c.nudged && !c.ackSure && c.unacked() == 2 && c.credit() == 1 && m.waiting()
}

// insistAfter returns how long the peer may take to answer before stepCredit sends another empty
// Data for inDoubt. The time is long, and differs between the peers: if both spent their last
// credit while the other's refresh was in flight, both would have none. [D-08]
func (m *Machine) insistAfter() time.Duration { return 200 * m.nudgeAgain() }

// nudgeAgain returns the pause before another empty Data. It differs between the peers, because two
// peers that ask each other at the same time would never stop.
func (m *Machine) nudgeAgain() time.Duration {
	if m.p.Role == Connecting {
		return m.p.Timers.Nudge
	}
	return 3 * m.p.Timers.Nudge
}

// noteStall records whether payload waits for credit.
func (m *Machine) noteStall() {
	s := &m.src
	switch w := m.waiting(); {
	case w && !s.stalled:
		s.stalled, s.stalledAt = true, m.now
		m.stats.CreditStalls++
	case !w && s.stalled:
		s.stalled = false
		m.stats.LongestCreditStall = max(m.stats.LongestCreditStall, m.now-s.stalledAt)
	}
}
