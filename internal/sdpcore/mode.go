package sdpcore

import (
	"time"

	"viaduct/internal/wire/sdpwire"
)

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

// checkModeChange checks a ModeChange by side by of a half-connection in mode from. A change by the
// wrong side is always an error, because messages are ordered, and an end becomes master only by
// receiving the change. [D-43]
func checkModeChange(msg *inbound, half string, by side, from sdpwire.Mode) error {
	row := "SDP-12-1"
	switch {
	case modeChangeBy(by, from, msg.Mode):
		return nil
	case from == msg.Mode:
		row = "SDP-12-3"
	case modeChangeBy(dataSource+dataSink-by, from, msg.Mode):
		row = "SDP-12-2"
	}
	return violation(row, msg.MID, "%s half from %v to %v", half, from, msg.Mode)
}

// modeChange sends a ModeChange. From then on the sender is in the new mode, although the message
// has not arrived. [SDP-12-6] [SDP-12-7] [SDP-12.4-2] If slave is set, the receiver changes its
// sending half, otherwise its receiving half. [SDP-6.3.8.1-1]
func (s *sender) modeChange(to sdpwire.Mode, slave bool) {
	a := s.send(sdpwire.ModeChange, 0)
	s.out[a].Msg.Mode, s.out[a].Msg.S = to, slave
	s.stats.ModeChangesSent++
}

// sendMode is the mode of the half-connection with this end as Data Source. Its policy, in
// policy.go, chooses the mode.
type sendMode struct {
	*common
	current   sdpwire.Mode
	threshold int // current zero-copy threshold [D-39]
	pol       srcPolicy

	// These fields are for the change from Pipelined to Combined. [SDP 12.4]
	leaving  bool          // the ModeChange is not acknowledged [SDP-12.4-3]
	leaveSeq serial        // MSeq of the ModeChange
	leaveAt  time.Duration // when the ModeChange was sent
	nudgeAck bool          // an empty Data has asked for the acknowledgement [D-45]
}

// zcopy reports whether to send the last n bytes of a write by zero copy in the current mode.
// [SDP-11-1] [SDP-11.2-1] [SDP-11.2-2] [SDP-11.3-1] [SDP-11.3-2]
func (s *sendMode) zcopy(n int) bool {
	// A SrcAvail of one byte would consist only of payload. [D-18]
	return s.current != sdpwire.Buffered && n > max(s.threshold, 1)
}

// set changes the mode.
func (s *sendMode) set(to sdpwire.Mode) {
	s.current = to
	s.pol.changed, s.pol.changedAt = true, s.now
	s.pol.sendSms, s.pol.hints = 0, 0
	s.do(Action{Op: OpMode, Local: true, Msg: sdpwire.Message{Mode: to}})
}

// request makes to the target of the policy.
func (s *sendMode) request(to sdpwire.Mode) { s.pol.target, s.pol.wanted = to, to != s.current }

// leavingPipelined reports whether the policy wants to change from Pipelined to Combined. In that
// case no new transfer may begin.
func (s *sendMode) leavingPipelined() bool {
	return s.current == sdpwire.Pipelined && s.pol.target == sdpwire.Combined && s.pol.wanted
}

// left records that the ModeChange from Pipelined to Combined was sent with number seq.
func (s *sendMode) left(seq serial) {
	s.leaving, s.leaveSeq, s.leaveAt, s.nudgeAck = true, seq, s.now, false
}

// acknowledged records that the peer has acknowledged all messages before acked.
func (s *sendMode) acknowledged(acked serial) {
	if s.leaveSeq.less(acked) { // [SDP-12.4-3] [D-45]
		s.leaving = false
	}
}

// askAck reports whether to send an empty Data that makes the peer acknowledge a ModeChange, because
// another change is wanted. [D-45]
func (s *sendMode) askAck(credit int) bool {
	if !s.leaving || s.nudgeAck || !s.pol.wanted || credit < 2 || s.now < s.leaveAt+s.p.Timers.ModeAck {
		return false
	}
	s.nudgeAck = true
	return true
}

// next returns the next change of the mode to the target of the policy.
func (s *sendMode) next() (to sdpwire.Mode, ok bool) {
	if s.current == s.pol.target { // the mode never changes to the current mode [SDP-12-3]
		s.pol.wanted = false
		return 0, false
	}
	switch s.current {
	case sdpwire.Buffered:
		return 0, false // the peer is master [SDP-12-2]
	case sdpwire.Pipelined: // the change goes through Combined, whatever the target
		return sdpwire.Combined, !s.leaving
	}
	return s.pol.target, !s.leaving // [SDP-12.4-3]
}

// timers adds the times when the policy or askAck act without an event.
func (s *sendMode) timers(a *alarm) {
	t := &s.p.Timers
	if s.leaving && !s.nudgeAck && s.pol.wanted {
		a.at(s.leaveAt + t.ModeAck)
	}
	if s.pol.wanted || s.p.SendPolicy == PinBuffered && s.current != sdpwire.Buffered {
		if h := s.pol.changedAt + t.Hysteresis; h > s.now {
			a.at(h)
		}
	}
}

// recvMode is the mode of the half-connection with this end as Data Sink. Its policy, in policy.go,
// chooses when to end Buffered Mode.
type recvMode struct {
	*common
	current sdpwire.Mode
	pol     snkPolicy
}

// set changes the mode.
func (k *recvMode) set(to sdpwire.Mode) {
	k.current = to
	k.pol.bcopied = 0
	k.pol.changedAt = k.now
	k.do(Action{Op: OpMode, Msg: sdpwire.Message{Mode: to}})
}

// request makes the policy want to end Buffered Mode.
func (k *recvMode) request() { k.pol.wanted = k.current == sdpwire.Buffered }

// change changes the mode from Buffered to Combined, which is all that a policy can want here. It
// reports that it did. [SDP-12.2-1]
func (k *recvMode) change(snd *sender) bool {
	k.pol.wanted = false
	snd.modeChange(sdpwire.Combined, true)
	k.set(sdpwire.Combined)
	return true
}
