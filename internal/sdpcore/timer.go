package sdpcore

import "time"

// An alarm is the earliest of several times.
type alarm struct {
	when time.Duration
	set  bool
}

// at adds time t.
func (a *alarm) at(t time.Duration) {
	if !a.set || t < a.when {
		a.when, a.set = t, true
	}
}

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
	var a alarm
	switch m.life {
	case lifeSuspending, lifeSuspSent:
		m.susp.timers(&a)
	case lifeOpen:
		m.src.advs.timers(&a)
		m.src.mode.timers(&a)
		m.snk.timers(&a, m.src.advs.len() > 0)
		m.upd.timers(&a, m.src.waiting())
	}
	return a.when, a.set
}

// untimed reports whether no timer is running: nothing is advertised, nothing waits for credit, and
// no mode is about to change. The quick check saves checking each timer after nearly every event.
func (m *Machine) untimed() bool {
	s, k := &m.src, &m.snk
	return m.life == lifeOpen && s.advs.len() == 0 && k.fetch.adverts.len() == 0 &&
		!(s.advs.cancelOpen || k.offer.cancelOpen || s.mode.leaving || m.upd.stalled || m.upd.nudged || s.mode.pol.wanted) &&
		m.p.SendPolicy != PinBuffered
}

// Tick handles expired timers. Early and late calls do no harm.
func (m *Machine) Tick(now Time, out []Action) []Action {
	m.begin(now, out)
	s, k := &m.src, &m.snk
	switch m.life {
	case lifeSuspending, lifeSuspSent:
		if m.susp.expired() { // [D-53]
			m.abort(ErrNoSuspend)
		}
	case lifeOpen:
		if s.advs.cancelExpired() || k.offer.cancelExpired() {
			m.abort(ErrDeadPeer) // [D-81]
			break
		}
		s.advs.tick()
		k.tick(s.advs.len() > 0)
	}
	return m.end()
}
