package sdpcore

import (
	"time"

	"viaduct/internal/wire/sdpwire"
)

// Time is the time of an event, counted from any moment that the driver chooses.
type Time = time.Duration

// A side is the role of one end in a half-connection.
type side uint8

const (
	dataSource side = iota
	dataSink
)

// modeArrows is Figure 26, each arrow with its master of Figure 27. Any other
// change is a violation. [SDP-12-1] [SDP-12-2]
//
//	Buffered <---> Combined <---> Pipelined
var modeArrows = [...]struct {
	from, to sdpwire.Mode
	master   side
}{
	{sdpwire.Combined, sdpwire.Buffered, dataSource},  // [SDP-12.1-1]
	{sdpwire.Buffered, sdpwire.Combined, dataSink},    // [SDP-12.2-1]
	{sdpwire.Combined, sdpwire.Pipelined, dataSource}, // [SDP-12.3-1]
	{sdpwire.Pipelined, sdpwire.Combined, dataSource}, // [SDP-12.4-1]
}

// modeChangeBy reports whether side by may change the mode from from to to.
func modeChangeBy(by side, from, to sdpwire.Mode) bool {
	for _, a := range modeArrows {
		if a.from == from && a.to == to && a.master == by {
			return true
		}
	}
	return false
}

// setSendMode changes the mode of the half-connection with this end as Data Source.
func (m *Machine) setSendMode(to sdpwire.Mode) {
	m.src.mode = to
	m.src.pol.changed, m.src.pol.changedAt = true, m.now
	m.src.pol.sendSms, m.src.pol.hints = 0, 0
	m.do(Action{Op: OpMode, Local: true, Msg: sdpwire.Message{Mode: to}})
}

// setRecvMode changes the mode of the half-connection with this end as Data Sink.
func (m *Machine) setRecvMode(to sdpwire.Mode) {
	m.snk.mode = to
	m.snk.pol.bcopied = 0
	m.snk.pol.changedAt = m.now
	m.do(Action{Op: OpMode, Msg: sdpwire.Message{Mode: to}})
}

// sendModeChange sends a ModeChange. From then on the sender is in the new mode, although the
// message has not arrived. [SDP-12-6] [SDP-12-7] [SDP-12.4-2] If s is set, the receiver changes its
// sending half, otherwise its receiving half. [SDP-6.3.8.1-1]
func (m *Machine) sendModeChange(to sdpwire.Mode, s bool) {
	a := m.send(sdpwire.ModeChange, 0)
	m.out[a].Msg.Mode, m.out[a].Msg.S = to, s
	m.stats.ModeChangesSent++
}

// leavingPipelined reports whether the policy wants to change from Pipelined to Combined. In that
// case no new transfer may begin.
func (m *Machine) leavingPipelined() bool {
	return m.src.mode == sdpwire.Pipelined && m.src.pol.target == sdpwire.Combined && m.src.pol.wanted
}

// changeSendMode performs the next change of the sending half's mode the policy wants, if the rules
// allow it now. It reports whether it did.
func (m *Machine) changeSendMode() bool {
	s := &m.src
	if !s.pol.wanted || s.mode == s.pol.target { // the mode never changes to the current mode [SDP-12-3]
		s.pol.wanted = false
		return false
	}
	if s.disSent || s.leaving { // [SDP-12.4-3]
		return false
	}
	to := s.pol.target
	switch {
	case s.mode == sdpwire.Buffered:
		return false // the peer is master [SDP-12-2]
	case s.mode == sdpwire.Pipelined: // the change goes through Combined, whatever the target
		to = sdpwire.Combined
		switch {
		case s.avail.len() > 0 && s.avail.at(0).filled > 0: // RdmaWrCompl must be sent first [SDP-12.4-5]
			return false
		case s.cancelOpen: // a cancel must be answered first
			return false
		}
		m.sendModeChange(to, false)
		// The rules are in Figure 28 of the draft. [SDP-12.4-4]
		s.leaving, s.leaveSeq, s.leaveAt, s.nudgeAck = true, m.cr.next-1, m.now, false
		s.count0 = s.count
		s.avail.clear() // incomplete SinkAvails are discarded [SDP-12.4-6]
	case to == sdpwire.Buffered:
		if s.advs.len() > 0 { // [SDP-12.1-2]; without an open SrcAvail no cancel is open either
			return false
		}
		m.sendModeChange(to, false)
	default: // a change to Pipelined is possible even while a SrcAvail is open [SDP-12.3-2]
		m.sendModeChange(to, false)
	}
	m.setSendMode(to)
	return true
}

// changeRecvMode changes the receiving half from Buffered to Combined if the policy wants it. It
// reports whether it did. [SDP-12.2-1]
func (m *Machine) changeRecvMode() bool {
	k := &m.snk
	if !k.pol.wanted || k.eof { // a policy can only want to leave Buffered Mode here
		return false
	}
	k.pol.wanted = false
	m.sendModeChange(sdpwire.Combined, true)
	m.setRecvMode(sdpwire.Combined)
	return true
}

// beginModeChange checks a ModeChange. A change by the wrong side is always an error, because
// messages are ordered, and an end becomes master only by receiving the change. [D-43]
func (m *Machine) beginModeChange(msg *inbound) error {
	half, from, by := "receiving", m.snk.mode, dataSource
	if msg.S {
		half, from, by = "sending", m.src.mode, dataSink
	}
	if !modeChangeBy(by, from, msg.Mode) {
		row := "SDP-12-1"
		switch {
		case from == msg.Mode:
			row = "SDP-12-3"
		case modeChangeBy(dataSource+dataSink-by, from, msg.Mode):
			row = "SDP-12-2"
		}
		return violation(row, msg.MID, "%s half from %v to %v", half, from, msg.Mode)
	}
	if msg.Mode == sdpwire.Buffered && m.snk.adverts.len() > 0 {
		return violation("SDP-12.1-2", msg.MID, "to Buffered with a SrcAvail open")
	}
	return nil
}

// endModeChange follows the master of a half-connection, which has changed its mode. [SDP-6.3.8-3]
// [SDP-12-9]
func (m *Machine) endModeChange(msg *inbound) error {
	m.stats.ModeChangesRecv++
	if msg.S {
		m.setSendMode(msg.Mode)
		return nil
	}
	m.voidOffers() // only Pipelined Mode has SinkAvails, as in Figure 29 [SDP-12.4-9] [SDP-12.4-4]
	m.setRecvMode(msg.Mode)
	return nil
}
