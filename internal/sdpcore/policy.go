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

// preference returns REQ_PIPE if this end, as Mode Slave, prefers its receiving half to be
// Pipelined, and 0 otherwise. In RdmaRdCompl the flag concerns the half that the message completes,
// and in RdmaWrCompl the opposite half; for this end both are the receiving half. [SDP-6.1.2-9]
// [SDP-6.1.2-10] [SDP-6.1.2-11] [SDP-6.1.2-16] [SDP-6.3.6-3] [SDP-6.3.7-3]
func (k *recvMode) preference() sdpwire.Flags {
	switch k.p.RecvPolicy {
	case PinPipelined:
		return sdpwire.ReqPipe
	case Auto:
		if k.pol.bigReads >= 2 && !k.p.NoSinkAvail {
			return sdpwire.ReqPipe
		}
	}
	return 0
}

// noteHint records the peer's preference, which is only advice. [SDP-6.1.2-15] [SDP-12-4]
// [SDP-12-5] It is ignored in Buffered Mode. [SDP-6.1.2-14]
func (s *sendMode) noteHint(f sdpwire.Flags) {
	switch {
	case s.current == sdpwire.Buffered:
	case f&sdpwire.ReqPipe != 0:
		s.pol.hints++
	default:
		s.pol.hints = 0
	}
}

// noteSendSm counts a SendSm that forced Bcopy. Every third SendSm in a row doubles the threshold,
// unless the policy is pinned. [D-39]
func (s *sendMode) noteSendSm() {
	s.pol.sendSms++
	if s.p.SendPolicy == Auto && s.pol.sendSms%3 == 0 && s.threshold < 1<<30 {
		s.threshold *= 2
	}
}

// noteRdCompl ends a row of SendSms.
func (s *sendMode) noteRdCompl() { s.pol.sendSms = 0 }

func (s *sendMode) noteWrite(n int) {
	p := &s.pol
	if n > s.threshold {
		p.bigAt, p.smalls = s.now, 0
		return
	}
	if p.smalls == 0 {
		p.smallAt = s.now
	}
	p.smalls++
}

func (k *recvMode) noteRead(n int) {
	if n > k.p.RecvThreshold {
		k.pol.bigReads++
	} else {
		k.pol.bigReads = 0
	}
}

// steer decides whether the mode should change.
func (s *sendMode) steer(ws *writes) {
	p := &s.pol
	rested := !p.changed || s.now-p.changedAt >= s.p.Timers.Hysteresis
	switch s.p.SendPolicy {
	case PinBuffered:
		if rested {
			s.want(sdpwire.Buffered)
		}
	case PinCombined:
		s.want(sdpwire.Combined)
	case PinPipelined:
		s.want(sdpwire.Pipelined)
	case Auto:
		if !rested || p.wanted || s.leaving {
			return
		}
		switch s.current {
		case sdpwire.Combined:
			switch {
			case p.hints >= 2 || ws.big() >= 2:
				s.want(sdpwire.Pipelined)
			case p.sendSms >= 4, p.smalls > 0 && s.now-p.bigAt >= time.Second &&
				s.now-p.smallAt >= time.Second && p.hints == 0:
				s.want(sdpwire.Buffered)
			}
		case sdpwire.Pipelined:
			if p.sendSms >= 4 {
				s.want(sdpwire.Combined)
			}
		}
	}
}

// want makes to the target if there is none.
func (s *sendMode) want(to sdpwire.Mode) {
	if s.current != to && !s.pol.wanted {
		s.pol.target, s.pol.wanted = to, true
	}
}

// steer decides whether to change from Buffered to Combined.
func (k *recvMode) steer() {
	if k.current != sdpwire.Buffered || k.pol.wanted {
		return
	}
	switch k.p.RecvPolicy {
	case PinCombined, PinPipelined, Auto:
		if k.pol.bcopied >= 64<<10 && k.pol.bigReads > 0 &&
			k.now-k.pol.changedAt >= k.p.Timers.Hysteresis && !k.p.NoRead {
			k.pol.wanted = true
		}
	}
}
