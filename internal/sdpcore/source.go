package sdpcore

import "viaduct/internal/wire/sdpwire"

// source is the half-connection with this end as the Data Source. Its parts are the writes, the mode,
// and the advertisements of both ends by which the peer gets the bytes. source itself chooses among
// them, and sends Data.
type source struct {
	*common
	cr  *credits
	snd *sender
	upd *updates
	urg *urgent

	writes writes
	mode   sendMode
	advs   srcAvails
	room   sinkRoom

	closing bool // no more writes are accepted; DisConn must be sent [SDP-8.2.1-2]
	disSent bool
}

// refuses reports whether no write is accepted any more. [SDP-8.2.1-2] [SDP-8.2.1-20]
func (s *source) refuses() bool { return s.closing || s.life == lifeDead }

// cancel cancels write id. [SDP-9.5.4-1] [D-32]
func (s *source) cancel(id uint64) {
	i, w := s.writes.find(id)
	switch {
	case w == nil || w.detached:
	case w.forced || w.pended:
		s.writes.detach(w)
	case i < s.writes.covered():
		w.cancel = true
		s.advs.wantCancel()
	default:
		s.writes.drop(i, ErrCancelled)
	}
}

// step moves bytes of the outgoing stream: it sends one message, or one RDMA Write. It reports
// whether it did. offers is the number of this end's open SinkAvails.
func (s *source) step(offers int) bool {
	w := s.writes.plain()
	switch {
	case s.writes.forced > 0: // each mode has its own mechanisms, as this switch shows [SDP-12-8]
		if s.cr.mayPayload() {
			s.bcopy()
			return true
		}
	case w == nil:
	case s.writes.zcopy(w) && (s.room.len() == 0 || s.mode.current != sdpwire.Pipelined):
		return s.advertise(w, offers)
	case s.advs.len() > 0: // [SDP-11.2-4] [SDP-11.2-5] [SDP-11.3-5]
	case s.cr.mayPayload() && !s.mode.leavingPipelined():
		s.bcopy()
		return true
	}
	return false
}

// bcopy sends one Data message [SDP-9-2] [SDP-11.1-1] with the rest of the forced write, or with as
// many plain bytes as fit, possibly from several writes. [SDP-9.1-1] [SDP-10-4]
func (s *source) bcopy() {
	end := s.writes.len()
	if s.advs.len() > 0 {
		end = s.writes.forced // only the forced write is sent [SDP-11.3-6] [SDP-9.2-25] [SDP-9.5.2.1-2]
	}
	flags := sdpwire.Flags(0)
	limit := s.p.PeerSize - sdpwire.BSDHLen
	if w, between := s.urg.within(end, limit); between > urgentDistance { // [SDP-9.5.3-5] [SDP-9.5.3-6]
		// A message with all bytes would carry the urgent byte, which may not be announced so
		// early. The next message announces and carries the urgent byte.
		limit = between - urgentDistance
	} else if w != nil {
		flags = sdpwire.OOBPres // [SDP-6.1.2-4] [SDP-9.5.3-8]
		s.stats.UrgentSent++
	}
	a := s.snd.send(sdpwire.Data, flags)
	n := s.writes.fill(a, 0, end, limit)
	s.sentPayload()
	s.stats.SentBytesBcopy += uint64(n)
}

// transact adds small plain writes to the SinkAvail of the action at index a. Writes for zero copy
// stay in the queue. [SDP-9.4-1] [SDP-6.3.3-3]
func (s *source) transact(a int) {
	at := s.writes.covered()
	end := at
	for end < s.writes.len() && !s.writes.at(end).urgent {
		end++
	}
	n := s.writes.fill(a, at, end, s.p.PeerSize-sdpwire.SinkAvailLen)
	s.sentPayload()
	s.stats.SentBytesTransact += uint64(n)
}

// canTransact reports whether the next bytes of the stream can be in a SinkAvail.
func (s *source) canTransact() bool {
	w := s.writes.plain()
	return w != nil && !s.writes.zcopy(w) && !w.urgent && s.writes.covered() == 0 && s.cr.mayPayload()
}

// sentPayload records that the last message carries payload.
func (s *source) sentPayload() {
	s.room.sentPayload()
	s.upd.sentPayload()
}

// advertise sends a SrcAvail for w if the mode, the peer's MaxAdverts and the credits allow it. It
// reports whether it did, or made w use Bcopy.
func (s *source) advertise(w *write, offers int) bool {
	if s.advs.cancelOpen { // [SDP-9.5.4-10]
		return false
	}
	if s.mode.current == sdpwire.Combined && s.advs.len() > 0 { // [D-44] one SrcAvail at a time
		return false
	}
	if s.advs.len()+offers >= s.p.PeerMaxAdverts { // [SDP-6.2.1.3-1] [SDP-11.3-18] [D-15]
		if s.advs.len() == 0 {
			// Otherwise the write would wait until our own SinkAvails no longer use up MaxAdverts.
			w.bcopy = true
			return true
		}
		return false
	}
	if s.mode.current == sdpwire.Combined && !s.cr.mayPayload() || !s.cr.mayControl() {
		return false
	}
	if s.advs.send() > 0 {
		s.sentPayload()
	}
	return true
}

// waiting reports whether payload waits only for credit.
func (s *source) waiting() bool { return s.cr.credit() < 3 && s.ready() }

// ready reports whether payload would be sent if there was credit.
func (s *source) ready() bool {
	if s.life != lifeOpen || s.mode.leavingPipelined() {
		return false
	}
	if s.writes.forced > 0 {
		return true
	}
	w := s.writes.plain()
	return w != nil && s.advs.len() == 0 && !(s.room.len() > 0 && s.room.writable()) &&
		!(s.mode.current == sdpwire.Pipelined && s.writes.zcopy(w))
}

// changeMode performs the next change of the mode to the target of the policy, if the rules allow it.
// It reports whether it did.
func (s *source) changeMode() bool {
	to, ok := s.mode.next()
	if !ok || s.disSent {
		return false
	}
	leave := s.mode.current == sdpwire.Pipelined
	switch {
	case s.room.len() > 0 && s.room.at(0).filled > 0: // RdmaWrCompl must be sent first [SDP-12.4-5]
		return false
	case leave && s.advs.cancelOpen: // a cancel must be answered first
		return false
	case to == sdpwire.Buffered && s.advs.len() > 0: // [SDP-12.1-2]
		return false // without an open SrcAvail no cancel is open either
	}
	// A change to Pipelined is possible even while a SrcAvail is open. [SDP-12.3-2]
	s.snd.modeChange(to, false)
	if leave { // the rules are in Figure 28 of the draft [SDP-12.4-4]
		s.mode.left(s.cr.next - 1)
		s.room.leave()
	}
	s.mode.set(to)
	return true
}

// endSinkAvail handles the advertisement of a SinkAvail, which may be stale. The payload of the
// SinkAvail was accepted before, and counts even if the advertisement is stale. [SDP-9.5.1-10] open
// is the number of the peer's open SrcAvails.
func (s *source) endSinkAvail(msg *inbound, open int) error {
	s.stats.RecvBytesTransact += uint64(msg.n)
	if msg.VA+uint64(msg.Size) < msg.VA {
		return violation("SDP-6.3.3.1-1", msg.MID, "buffer beyond the address space")
	}
	s.stats.RecvSinkAvails++
	if s.disSent { // our DisConn makes the SinkAvail void, which the peer knows [SDP-8.2.1-15]
		return nil
	}
	return s.room.add(msg, open)
}

// disconnect sends DisConn after all data. It reports whether it did. [SDP-8.2.1-4] [SDP-8.2.1-6]
// [SDP-8.2.1-19] [SDP-8.2.1-21]
func (s *source) disconnect() bool {
	if s.disSent || s.writes.len() > 0 || s.advs.cancelOpen || !s.cr.mayControl() {
		return false
	}
	s.snd.send(sdpwire.DisConn, 0)
	s.disSent = true
	s.room.clear()
	return true
}

// unsent reports whether bytes, or a DisConn, were not sent.
func (s *source) unsent() bool { return s.writes.len() > 0 || s.closing && !s.disSent }

// die ends all writes with err, and the bytes they have.
func (s *source) die(err error) {
	for s.writes.len() > 0 {
		s.writes.drop(0, err)
	}
}

// quiesce ends all transfers on the current connection. The writes stay queued.
func (s *source) quiesce() {
	s.advs.revoke()
	s.writes.unforce()
	s.advs.endCancel()
	s.room.clear()
	s.room.ackOwed, s.mode.leaving = false, false
}

// start begins in Combined Mode, with the parameters of a new connection. [SDP-9.5.1-7]
func (s *source) start() {
	s.mode.current, s.mode.threshold = sdpwire.Combined, s.p.SendThreshold
	s.room.count = serial(s.p.FirstSrcCount)
}

// resume continues on a new connection, after start.
func (s *source) resume() {
	s.room.count0 = 0
	s.mode.nudgeAck, s.mode.pol = false, srcPolicy{}
	s.disSent = false // a DisConn is sent again
}
