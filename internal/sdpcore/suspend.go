package sdpcore

import (
	"time"

	"viaduct/internal/wire/sdpwire"
)

// suspend is the state of a suspension. [SDP 13.1.1] An implementation need not be able to start
// one; this package can. [SDP-13.1-2] [SDP-13.1-3]
type suspend struct {
	*common
	cr  *credits
	snd *sender

	local    bool             // requested by this end
	remote   bool             // requested by the peer, and not answered
	port     uint16           // if local: port that the peer must reconnect to
	peerPort uint16           // if remote: port that we must reconnect to
	retry    bool             // our own request came too late; repeat it after Resume [SDP-13.1.2-3]
	peerDone bool             // the peer has sent its last message
	at       time.Duration    // when the suspension began
	times    [8]time.Duration // times when suspensions were answered, as a ring [D-55]
	n        int              // number of suspensions answered
}

// begin begins to finish In-Process transfers. It drops a SrcAvailCancel without an answer, because
// a suspension cancels all SrcAvails. Holding MSeqAck for that cancel would deny the peer the credit
// for its SuspCommAck.
func (u *suspend) begin() {
	u.life, u.at = lifeSuspending, u.now
	u.cr.hold = false
}

// request begins a suspension of this end's own.
func (u *suspend) request(port uint16) {
	u.local, u.port = true, port
	u.begin()
}

// endSuspComm handles the peer's request to move the connection. [SDP-13.1-1]
func (u *suspend) endSuspComm(msg *inbound) error {
	switch {
	case u.life == lifeSuspSent && u.p.Role == Accepting:
		u.peerDone = true
		return nil // the requests have crossed, and ours takes precedence [SDP-13.1.2-1] [D-54]
	case u.p.NoSuspend, int(msg.Port) < u.p.MinSuspendPort, u.tooOften(): // [D-55]
		return ErrNoSuspend
	}
	u.retry = u.local // [SDP-13.1.2-2] [SDP-13.1.2-3]
	u.remote, u.peerPort, u.peerDone = true, msg.Port, true
	u.begin()
	return nil
}

// tooOften reports whether the peer has suspended more often within a minute than allowed. If not,
// it counts this suspension. [D-55]
func (u *suspend) tooOften() bool {
	if u.p.Timers.SuspendLimit < 0 {
		return false
	}
	limit := min(u.p.Timers.SuspendLimit, len(u.times))
	if u.n >= limit && u.now-u.times[(u.n-limit)%len(u.times)] < time.Minute {
		return true
	}
	u.times[u.n%len(u.times)] = u.now
	u.n++
	return false
}

// step sends SuspComm or SuspCommAck. It reports whether that was the answer, after which this end
// is suspended. [SDP-13.1.1-3] [SDP-13.1.1-6] [D-53]
func (u *suspend) step() (answered bool) {
	if u.remote {
		u.snd.send(sdpwire.SuspCommAck, 0)
		u.do(Action{Op: OpReconnect, Msg: sdpwire.Message{Port: u.peerPort}})
		return true
	}
	a := u.snd.send(sdpwire.SuspComm, 0)
	u.out[a].Msg.Port = u.port // [SDP-6.5.1.1-1]
	u.life = lifeSuspSent
	return false
}

// beginSuspCommAck checks a SuspCommAck: it must answer a SuspComm.
func (u *suspend) beginSuspCommAck(msg *inbound) error {
	if u.life != lifeSuspSent {
		return violation("SDP-13.1.1-6", msg.MID, "nothing was asked")
	}
	return nil
}

// resume ends the suspension, or begins again if this end's own request was overtaken.
func (u *suspend) resume() {
	retry := u.retry
	u.local, u.remote, u.retry, u.peerDone = retry, false, false, false
	u.life = lifeOpen
	if retry {
		u.begin()
	}
}

// expired reports whether the peer has not answered in time.
func (u *suspend) expired() bool { return u.now >= u.at+u.p.Timers.Suspend }

// timers adds the time of expired.
func (u *suspend) timers(a *alarm) { a.at(u.at + u.p.Timers.Suspend) }

// Suspend begins a suspension: RDMA in progress is finished, and then SuspComm is sent with the
// port where the connection will be resumed. [SDP-13.1.1-3] [SDP-13.1.1-4] OpSuspended reports
// the end of the suspension; reads and writes stay queued. While the peer suspends the connection, a
// request waits for Resume. The error is ErrNoSuspend if the connection is not open otherwise.
func (m *Machine) Suspend(now Time, port uint16, out []Action) ([]Action, error) {
	m.begin(now, out)
	switch {
	case m.life == lifeOpen:
		m.susp.request(port)
	case m.life == lifeSuspending && m.susp.remote, m.life == lifeSuspended && m.susp.remote:
		m.susp.port, m.susp.retry = port, true // as if our request had been overtaken
	default:
		return m.end(), ErrNoSuspend
	}
	return m.end(), nil
}

// stepSuspend sends SuspComm or SuspCommAck once no transfer is In-Process. It reports whether it
// did.
func (m *Machine) stepSuspend() bool {
	if m.snk.fetch.ops.len() > 0 { // completed reads are reported first
		return false
	}
	if m.susp.step() {
		m.quiesce()
	}
	return true
}

// quiesce ends the current connection, with all advertisements. [SDP-13-1]
func (m *Machine) quiesce() {
	m.life = lifeSuspended
	m.stats.Suspensions++
	m.src.quiesce()
	m.snk.quiesce()
}

// endSuspCommAck ends the current connection, on which the peer sends no more messages.
func (m *Machine) endSuspCommAck(*inbound) error {
	m.do(Action{Op: OpSuspended})
	m.susp.local = false
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
	m.upd.restart()
	m.urg.restart()
	m.src.resume()
	m.snk.resume()
	m.susp.resume()
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
	return State{Role: m.p.Role, RecvSize: m.p.RecvSize, RecvBufs: m.p.RecvBufs, ORD: m.p.ORD, Held: m.snk.held.n,
		RecvPos: m.snk.pos, EOF: m.snk.eof, Closing: m.src.closing, Unsent: m.src.writes.queued}
}

// Restore returns a machine that continues where another process stopped. The driver must hold
// st.Held bytes as if by OpHold, queue the unsent bytes by Write, and call CloseWrite if st.Closing
// is set.
func Restore(p Params, st State) *Machine {
	m := New(p)
	k := &m.snk
	if st.Held > 0 {
		k.held.addLocal(st.Held)
	}
	k.pos, k.eof, m.src.closing = st.RecvPos, st.EOF, false
	return m
}
