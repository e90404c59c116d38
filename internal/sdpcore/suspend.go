package sdpcore

import (
	"time"

	"viaduct/internal/wire/sdpwire"
)

// suspend is the state of a suspension. [SDP 13.1.1] An implementation need not be able to start
// one; this package can. [SDP-13.1-2] [SDP-13.1-3]
type suspend struct {
	local    bool             // requested by this end
	remote   bool             // requested by the peer, and not answered
	port     uint16           // if local: port that the peer must reconnect to
	peerPort uint16           // if remote: port that we must reconnect to
	retry    bool             // our own request was overtaken; repeat it after Resume [SDP-13.1.2-3]
	peerDone bool             // the peer has sent its last message
	at       time.Duration    // when the suspension began
	times    [8]time.Duration // times when suspensions were answered, as a ring [D-55]
	n        int              // number of suspensions answered
}

// Suspend begins a suspension: RDMA in progress is finished, and then SuspComm is sent with the
// port where the connection will be resumed. [SDP-13.1.1-3] [SDP-13.1.1-4] OpSuspended reports
// the end of the suspension; reads and writes stay queued. The error is ErrNoSuspend if the
// connection is not open.
func (m *Machine) Suspend(now Time, port uint16, out []Action) ([]Action, error) {
	m.begin(now, out)
	if m.life != lifeOpen {
		return m.end(), ErrNoSuspend
	}
	m.sus.local, m.sus.port = true, port
	m.beginSuspend()
	return m.end(), nil
}

// beginSuspend begins to finish In-Process transfers. It drops a SrcAvailCancel without an answer,
// because the suspension cancels all SrcAvails. Holding MSeqAck for that cancel would deny the peer
// the credit for its SuspCommAck.
func (m *Machine) beginSuspend() {
	m.life, m.sus.at = lifeSuspending, m.now
	m.cr.hold = false
}

// stepSuspend sends SuspComm or SuspCommAck once no transfer is In-Process. It reports whether it
// did. [SDP-13.1.1-3] [SDP-13.1.1-6] [D-53]
func (m *Machine) stepSuspend() bool {
	if m.snk.ops.len() > 0 { // stepAnswers reports completed reads first
		return false
	}
	if m.sus.remote {
		m.send(sdpwire.SuspCommAck, 0)
		m.do(Action{Op: OpReconnect, Msg: sdpwire.Message{Port: m.sus.peerPort}})
		m.quiesce()
		return true
	}
	a := m.send(sdpwire.SuspComm, 0)
	m.out[a].Msg.Port = m.sus.port // [SDP-6.5.1.1-1]
	m.life = lifeSuspSent
	return true
}

// quiesce ends the current connection, with all advertisements. [SDP-13-1]
func (m *Machine) quiesce() {
	s, k := &m.src, &m.snk
	m.life = lifeSuspended
	m.stats.Suspensions++
	m.revokeAdvs()
	for i := range s.nforced {
		s.writes.at(i).forced = false
	}
	s.nforced = 0
	m.settleCancel()
	s.avail.clear()
	s.ackOwed, s.leaving = false, false
	k.adverts.clear()
	k.expected, k.srcCancel = 0, false
	m.voidOffers()
}

// endSuspComm handles the peer's request to move the connection. [SDP-13.1-1]
func (m *Machine) endSuspComm(msg *inbound) error {
	u := &m.sus
	switch {
	case m.life == lifeSuspSent && m.p.Role == Accepting:
		u.peerDone = true
		return nil // the requests have crossed, and ours takes precedence [SDP-13.1.2-1] [D-54]
	case m.p.NoSuspend, int(msg.Port) < m.p.MinSuspendPort, m.tooOften(): // [D-55]
		return ErrNoSuspend
	}
	u.retry = u.local // [SDP-13.1.2-2] [SDP-13.1.2-3]
	u.remote, u.peerPort, u.peerDone = true, msg.Port, true
	m.beginSuspend()
	return nil
}

// tooOften reports whether the peer has suspended more often within a minute than allowed. If not,
// it counts this suspension. [D-55]
func (m *Machine) tooOften() bool {
	u := &m.sus
	if m.p.Timers.SuspendLimit < 0 {
		return false
	}
	limit := min(m.p.Timers.SuspendLimit, len(u.times))
	if u.n >= limit && m.now-u.times[(u.n-limit)%len(u.times)] < time.Minute {
		return true
	}
	u.times[u.n%len(u.times)] = m.now
	u.n++
	return false
}

// beginSuspCommAck checks a SuspCommAck: it must answer a SuspComm.
func (m *Machine) beginSuspCommAck(msg *inbound) error {
	if m.life != lifeSuspSent {
		return violation("SDP-13.1.1-6", msg.MID, "nothing was asked")
	}
	return nil
}

// endSuspCommAck ends the current connection, on which the peer sends no more messages.
func (m *Machine) endSuspCommAck(*inbound) error {
	m.do(Action{Op: OpSuspended})
	m.sus.local = false
	m.quiesce()
	return nil
}

// Suspended reports whether the machine waits for Resume.
func (m *Machine) Suspended() bool { return m.life == lifeSuspended }

// Resume continues a suspended connection over a new LLP connection, which is set up by Hello and
// HelloAck as usual. Numbers, credits and counters restart, both modes are Combined, and
// undelivered bytes are sent again. Resume panics if the connection is not suspended.
// [SDP-13.1.1-10] [SDP-13.1.1-17] [D-52]
func (m *Machine) Resume(now Time, p Params, out []Action) []Action {
	if m.life != lifeSuspended {
		panic("sdpcore: Resume of a connection that is " + m.life.String())
	}
	m.begin(now, out)
	m.start(p)
	s, k := &m.src, &m.snk
	s.count0, s.nudgeAck, s.stalled = 0, false, false
	s.pol = srcPolicy{}
	s.disSent = false // a DisConn is sent again
	s.urgents = 0
	for i := range s.writes.len() {
		if w := s.writes.at(i); w.urgent { // each urgent write is announced again
			w.pended = false
			s.urgents++
		}
	}
	k.pol = snkPolicy{changedAt: m.now}
	k.disSeen, k.announced = false, 0
	for i := range k.holds.len() { // held bytes are outside of the new Private Buffers
		if h := k.holds.at(i); h.private {
			h.private = false
			k.compacted += h.n
		}
	}
	retry := m.sus.retry
	m.sus.local, m.sus.remote, m.sus.retry, m.sus.peerDone = false, false, false, false
	m.life = lifeOpen
	if retry {
		m.sus.local, m.life, m.sus.at = true, lifeSuspending, m.now
	}
	return m.end()
}

// A State is the data of a connection that moves to another process, without the bytes of its
// stream. [SDP-13.1.1-11]
type State struct {
	Role     Role // role on the suspended connection
	RecvSize int  // bytes of each receive Private Buffer [SDP-13.1.1-14]
	RecvBufs int
	ORD      int
	Held     int    // bytes received and not read [SDP-13.1.1-16]
	RecvPos  uint64 // stream position after the received bytes
	EOF      bool   // the peer's DisConn was received
	Closing  bool   // DisConn was sent, or is still to be sent
	Unsent   int    // queued bytes that were not delivered
}

// State returns the state for another process. It panics if the machine is not suspended.
func (m *Machine) State() State {
	if m.life != lifeSuspended {
		panic("sdpcore: State of a connection that is " + m.life.String())
	}
	return State{Role: m.p.Role, RecvSize: m.p.RecvSize, RecvBufs: m.p.RecvBufs, ORD: m.p.ORD, Held: m.snk.held,
		RecvPos: m.snk.pos, EOF: m.snk.eof, Closing: m.src.closing, Unsent: m.src.queued}
}

// Restore returns a machine that continues where another process stopped. The driver must hold
// st.Held bytes as if by OpHold, queue the unsent bytes by Write, and call CloseWrite if st.Closing
// is set.
func Restore(p Params, st State) *Machine {
	m := New(p)
	k := &m.snk
	if st.Held > 0 {
		k.holds.push(held{n: st.Held})
		k.held, k.compacted = st.Held, st.Held
	}
	k.pos, k.eof, m.src.closing = st.RecvPos, st.EOF, false
	return m
}
