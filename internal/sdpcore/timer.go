package sdpcore

import (
	"time"

	"viaduct/internal/wire/sdpwire"
)

// Deadline returns the time when Tick is due next. ok is false if only an event can change
// anything.
func (m *Machine) Deadline() (at Time, ok bool) {
	if m.untimed() {
		return 0, false
	}
	return m.soonest()
}

// soonest computes the result of Deadline by checking each timer.
func (m *Machine) soonest() (at Time, ok bool) {
	next := func(t Time) {
		if !ok || t < at {
			at, ok = t, true
		}
	}
	s, k, t := &m.src, &m.snk, &m.p.Timers
	switch m.life {
	case lifeSuspending, lifeSuspSent:
		next(m.sus.at + t.Suspend)
		return at, ok
	case lifeOpen:
	default:
		return 0, false
	}
	if s.cancelOpen {
		next(s.cancelAt + t.Cancel)
	}
	if k.cancelOpen {
		next(k.cancelAt + t.Cancel)
	}
	if m.unansweredFits() {
		next(s.advs.at(0).at + t.Unanswered)
	}
	if m.lonelyFits() > 0 {
		next(k.waitAt + t.LocalRead)
	}
	if m.deadlocked() {
		next(k.waitAt + m.deadlockAfter())
	}
	if s.leaving && !s.nudgeAck && s.pol.wanted {
		next(s.leaveAt + t.ModeAck)
	}
	if s.stalled && m.cr.credit() == 2 && m.cr.unacked() > 0 {
		if m.cr.nudged {
			next(m.cr.nudgedAt + m.nudgeAgain())
		} else {
			next(s.stalledAt + t.Nudge)
		}
	}
	if m.inDoubt() {
		next(m.cr.nudgedAt + m.insistAfter())
	}
	if s.pol.wanted || m.p.SendPolicy == PinBuffered && s.mode != sdpwire.Buffered {
		if h := s.pol.changedAt + t.Hysteresis; h > m.now {
			next(h)
		}
	}
	return at, ok
}

// untimed reports whether no timer is running: nothing is advertised, nothing waits for credit, and
// no mode is about to change. The quick check saves checking each timer after nearly every event.
func (m *Machine) untimed() bool {
	s, k := &m.src, &m.snk
	return m.life == lifeOpen && s.advs.len() == 0 && k.adverts.len() == 0 &&
		!(s.cancelOpen || k.cancelOpen || s.leaving || s.stalled || m.cr.nudged || s.pol.wanted) &&
		m.p.SendPolicy != PinBuffered
}

// Tick handles expired timers. Early and late calls do no harm.
func (m *Machine) Tick(now Time, out []Action) []Action {
	m.begin(now, out)
	s, k, t := &m.src, &m.snk, &m.p.Timers
	switch m.life {
	case lifeSuspending, lifeSuspSent:
		if m.now >= m.sus.at+t.Suspend { // [D-53]
			m.abort(ErrNoSuspend)
		}
		return m.end()
	case lifeOpen:
	default:
		return m.end()
	}
	switch {
	case s.cancelOpen && m.now >= s.cancelAt+t.Cancel, k.cancelOpen && m.now >= k.cancelAt+t.Cancel:
		m.abort(ErrDeadPeer) // [D-81]
		return m.end()
	case m.unansweredFits() && m.now >= s.advs.at(0).at+t.Unanswered:
		for i := range s.covered() { // the covered writes are sent by Bcopy instead [D-81]
			s.writes.at(i).bcopy = true
		}
		s.cancelWant = true
	}
	if n := m.lonelyFits(); n > 0 && m.now >= k.waitAt+t.LocalRead {
		m.fetchLocal(n)
	}
	if m.deadlocked() && m.now >= k.waitAt+m.deadlockAfter() {
		k.adverts.at(0).wantSm = true // [SDP-9.2-29]
	}
	return m.end()
}

// unansweredFits reports whether the oldest SrcAvail may be cancelled and its bytes sent by Bcopy.
func (m *Machine) unansweredFits() bool {
	s := &m.src
	return s.advs.len() > 0 && !s.cancelOpen && !s.cancelWant && s.advs.at(0).left <= m.p.SendBudget
}

// lonely reports whether the oldest SrcAvail has unrequested bytes that no read waits for, and no
// SendSm will answer it.
func (m *Machine) lonely() bool {
	k := &m.snk
	if k.adverts.len() == 0 || k.reads.len() > 0 || k.ops.len() > 0 || k.srcCancel || k.expected > 0 {
		return false
	}
	a := k.adverts.at(0)
	return !a.wantSm && a.asked < a.size
}

// lonelyFits returns the number of bytes of a lonely SrcAvail that can be fetched into local
// memory: all, or as many as the receive buffer has room for. So a write that fits the buffers of
// both ends does not wait for a reader. It returns 0 if no SrcAvail is lonely, or if the room is
// not worth a round trip. [D-38] [SDP-9.5.6-1]
func (m *Machine) lonelyFits() int {
	k := &m.snk
	if !m.lonely() {
		return 0
	}
	left := k.adverts.at(0).size - k.adverts.at(0).asked
	room := m.p.RecvBudget - k.compacted
	if room < min(left, m.p.RecvSize) {
		return 0 // too few for a round trip
	}
	return min(left, room)
}

// fetchLocal starts an RDMA Read of n bytes of the oldest SrcAvail into memory of the driver, for a
// later reader. [SDP-9.5.6-1] [SDP-9.2-29]
func (m *Machine) fetchLocal(n int) {
	k := &m.snk
	a := k.adverts.at(0)
	m.do(Action{Op: OpRDMARead, Local: true, N: n, STag: a.stag, TO: a.to + uint64(a.asked)})
	k.ops.push(readOp{adv: a.key, n: n, local: true})
	k.opsLocal++
	a.asked += n
}

// deadlocked reports whether both ends advertise and neither reads. [SDP-9.2-29]
func (m *Machine) deadlocked() bool { return m.src.advs.len() > 0 && m.lonely() }

// deadlockAfter returns how long this end waits before it resolves a deadlock. The times of the
// peers differ, so that one end acts first. [D-38]
func (m *Machine) deadlockAfter() time.Duration {
	if m.p.Role == Connecting {
		return 3 * m.p.Timers.Deadlock
	}
	return m.p.Timers.Deadlock
}

// askModeAck reports whether to send an empty Data that makes the peer acknowledge a ModeChange,
// because another change is wanted. [D-45]
func (m *Machine) askModeAck() bool {
	s := &m.src
	return s.leaving && !s.nudgeAck && s.pol.wanted && m.cr.credit() >= 2 && m.now >= s.leaveAt+m.p.Timers.ModeAck
}
