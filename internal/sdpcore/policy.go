package sdpcore

import (
	"time"

	"viaduct/internal/wire/sdpwire"
)

// srcPolicy holds the state for the decisions of the sending half's policy. [D-42]
type srcPolicy struct {
	target    sdpwire.Mode // mode to reach if wanted is set
	wanted    bool         // whether target must be reached
	changed   bool         // the mode was changed at changedAt
	changedAt time.Duration
	sendSms   int           // number of SendSms in a row
	hints     int           // number of completions with REQ_PIPE in a row
	bigAt     time.Duration // time of the last write longer than the threshold
	smallAt   time.Duration // time of the first shorter write after bigAt
	smalls    int           // number of shorter writes after bigAt
}

// snkPolicy holds the state for the decisions of the receiving half's policy.
type snkPolicy struct {
	wanted    bool // whether to change from Buffered to Combined
	bcopied   int  // bytes received by Bcopy since the mode changed
	changedAt time.Duration
	bigReads  int // number of reads that accept zero copy, posted in a row
}

// RequestSendMode requests a mode of the sending half, once; a pinned policy may change it again.
// The mode is reached as soon as the rules allow. Only the peer can end Buffered Mode.
func (m *Machine) RequestSendMode(now Time, to sdpwire.Mode, out []Action) []Action {
	m.begin(now, out)
	m.src.pol.target, m.src.pol.wanted = to, to != m.src.mode
	return m.end()
}

// RequestRecvMode requests to change the receiving half from Buffered to Combined. It has no effect
// in another mode.
func (m *Machine) RequestRecvMode(now Time, out []Action) []Action {
	m.begin(now, out)
	m.snk.pol.wanted = m.snk.mode == sdpwire.Buffered
	return m.end()
}

// SetPolicy changes the policy of the sending half to send, and of the receiving half to recv.
func (m *Machine) SetPolicy(now Time, send, recv Policy, out []Action) []Action {
	m.begin(now, out)
	m.p.SendPolicy, m.p.RecvPolicy = send, recv
	return m.end()
}

// SetThresholds changes Params.SendThreshold and RecvThreshold, in bytes. [SDP-9-1]
func (m *Machine) SetThresholds(now Time, send, recv int, out []Action) []Action {
	m.begin(now, out)
	m.p.SendThreshold, m.src.threshold = send, send
	m.p.RecvThreshold = max(recv, m.p.RecvSize)
	return m.end()
}

// preference returns REQ_PIPE if this end, as Mode Slave, prefers its receiving half to be
// Pipelined, and 0 otherwise. In RdmaRdCompl the flag concerns the half that the message completes,
// and in RdmaWrCompl the opposite half; for this end both are the receiving half. [SDP-6.1.2-9]
// [SDP-6.1.2-10] [SDP-6.1.2-11] [SDP-6.1.2-16] [SDP-6.3.6-3] [SDP-6.3.7-3]
func (m *Machine) preference() sdpwire.Flags {
	switch m.p.RecvPolicy {
	case PinPipelined:
		return sdpwire.ReqPipe
	case Auto:
		if m.snk.pol.bigReads >= 2 && !m.p.NoSinkAvail {
			return sdpwire.ReqPipe
		}
	}
	return 0
}

// noteHint records the peer's preference, which is only advice. [SDP-6.1.2-15] [SDP-12-4]
// [SDP-12-5] It is ignored in Buffered Mode. [SDP-6.1.2-14]
func (m *Machine) noteHint(f sdpwire.Flags) {
	p := &m.src.pol
	switch {
	case m.src.mode == sdpwire.Buffered:
	case f&sdpwire.ReqPipe != 0:
		p.hints++
	default:
		p.hints = 0
	}
}

// noteSendSm counts a SendSm that forced Bcopy. Every third SendSm in a row doubles the threshold,
// unless the policy is pinned. [D-39]
func (m *Machine) noteSendSm() {
	p := &m.src.pol
	p.sendSms++
	if m.p.SendPolicy == Auto && p.sendSms%3 == 0 && m.src.threshold < 1<<30 {
		m.src.threshold *= 2
	}
}

func (m *Machine) noteWrite(n int) {
	p := &m.src.pol
	if n > m.src.threshold {
		p.bigAt, p.smalls = m.now, 0
		return
	}
	if p.smalls == 0 {
		p.smallAt = m.now
	}
	p.smalls++
}

func (m *Machine) noteRead(n int) {
	p := &m.snk.pol
	if n > m.p.RecvThreshold {
		p.bigReads++
	} else {
		p.bigReads = 0
	}
}

// steer decides whether the modes should change. The master may change a mode at any time for its
// own reasons. [SDP-12.5-1] [D-42]
func (m *Machine) steer() {
	m.steerSend()
	m.steerRecv()
}

func (m *Machine) steerSend() {
	s := &m.src
	p := &s.pol
	rested := !p.changed || m.now-p.changedAt >= m.p.Timers.Hysteresis
	want := func(to sdpwire.Mode) {
		if s.mode != to && !p.wanted {
			p.target, p.wanted = to, true
		}
	}
	switch m.p.SendPolicy {
	case PinBuffered:
		if rested {
			want(sdpwire.Buffered)
		}
	case PinCombined:
		want(sdpwire.Combined)
	case PinPipelined:
		want(sdpwire.Pipelined)
	case Auto:
		if !rested || p.wanted || s.leaving {
			return
		}
		switch s.mode {
		case sdpwire.Combined:
			switch {
			case p.hints >= 2 || m.bigWrites() >= 2:
				want(sdpwire.Pipelined)
			case p.sendSms >= 4, p.smalls > 0 && m.now-p.bigAt >= time.Second &&
				m.now-p.smallAt >= time.Second && p.hints == 0:
				want(sdpwire.Buffered)
			}
		case sdpwire.Pipelined:
			if p.sendSms >= 4 {
				want(sdpwire.Combined)
			}
		}
	}
}

// bigWrites returns the number of queued writes suitable for zero copy, at most two.
func (m *Machine) bigWrites() (n int) {
	s := &m.src
	for i := 0; i < s.writes.len() && i < 8 && n < 2; i++ {
		if w := s.writes.at(i); !w.bcopy && !w.urgent && w.n-w.off > s.threshold {
			n++
		}
	}
	return n
}

func (m *Machine) steerRecv() {
	k := &m.snk
	if k.mode != sdpwire.Buffered || k.pol.wanted {
		return
	}
	switch m.p.RecvPolicy {
	case PinCombined, PinPipelined, Auto:
		if k.pol.bcopied >= 64<<10 && k.pol.bigReads > 0 &&
			m.now-k.pol.changedAt >= m.p.Timers.Hysteresis && !m.p.NoRead {
			k.pol.wanted = true
		}
	}
}
