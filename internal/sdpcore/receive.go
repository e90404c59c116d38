package sdpcore

import (
	"viaduct/internal/wire/sdpwire"
)

// Receive takes the next message from the peer: its headers as Parse gave them,
// and the STag that the Send invalidated, if it did. Messages must come in the
// order in which iWARP delivered them. [SDP-10.1-2]
func (m *Machine) Receive(now Time, msg *sdpwire.Message, inv uint32, invalidated bool, out []Action) []Action {
	m.begin(now, out)
	if m.life == lifeDead || m.life == lifeSuspended {
		return m.end()
	}
	if m.head(msg, invalidated) {
		m.body(msg, inv, invalidated)
	}
	return m.end()
}

// ReceiveBad takes a message that Parse refused: the connection ends. [SDP-8.2.2-6]
func (m *Machine) ReceiveBad(now Time, mid sdpwire.MID, err error, out []Action) []Action {
	m.begin(now, out)
	if m.life != lifeDead {
		m.stats.Violations++
		m.abort(wireViolation(mid, err))
	}
	return m.end()
}

// head deals with what every message carries. It reports whether to go on.
func (m *Machine) head(msg *sdpwire.Message, invalidated bool) bool {
	c, s := &m.cr, &m.src
	switch {
	case m.sus.peerDone && msg.MID != sdpwire.SuspCommAck && msg.MID != sdpwire.AbortConn && !isCreditUpdate(msg):
		m.violation("SDP-13.1.1-5", msg.MID, "after the peer had suspended")
		return false
	case serial(msg.MSeq) != c.expect: // [SDP-10.1-2] [D-06]
		m.violation("SDP-6.1.5-2", msg.MID, "MSeq %d where %d was due", msg.MSeq, uint32(c.expect))
		return false
	case c.free < 0: // the spare is gone as well
		m.violation("SDP-10.5-5", msg.MID, "no credit for it")
		return false
	case int64(msg.Len) > int64(m.p.RecvSize): // up to that all is taken [SDP-10-1] [SDP-5-2]
		m.violation("SDP-10-4", msg.MID, "%d bytes for buffers of %d", msg.Len, m.p.RecvSize)
		return false
	case !c.received(int(msg.Bufs), serial(msg.MSeqAck)):
		m.violation("D-09", msg.MID, "MSeqAck %d outside what is unacknowledged", msg.MSeqAck)
		return false
	case invalidated && msg.MID != sdpwire.RdmaRdCompl && msg.MID != sdpwire.RdmaWrCompl: // [D-41]
		m.violation("D-41", msg.MID, "invalidates an STag")
		return false
	}
	c.expect++
	c.free--
	n := msg.PayloadLen()
	if n == 0 {
		c.free++ // posted again at once
		if msg.MID == sdpwire.Data {
			c.empties++
		}
	}
	m.stats.RecvMessages++
	if s.leaveSeq.less(c.acked) { // [SDP-12.4-3] [D-45]
		s.leaving = false
	}
	if msg.Flags&sdpwire.OOBPend != 0 { // in any type, with the byte or before it [SDP-6.1.2-7] [SDP-6.1.2-8] [D-74]
		m.snk.announced++
		m.do(Action{Op: OpUrgentPending}) // [SDP-9.5.3-9]
	}
	return true
}

func isCreditUpdate(msg *sdpwire.Message) bool {
	return msg.MID == sdpwire.Data && msg.PayloadLen() == 0
}

// body deals with what the types differ in.
func (m *Machine) body(msg *sdpwire.Message, inv uint32, invalidated bool) {
	n := msg.PayloadLen()
	if m.life == lifeFinished && msg.MID != sdpwire.AbortConn {
		if n > 0 || msg.MID == sdpwire.SrcAvail {
			m.violation("SDP-8.2.1-8", msg.MID, "after DisConn")
		}
		return
	}
	switch msg.MID {
	case sdpwire.Data:
		if n == 0 {
			return // a credit update [SDP-6.3.1-3]
		}
		if m.receiveData(msg, n) {
			m.stats.RecvBytesBcopy += uint64(n)
		}
	case sdpwire.SrcAvail:
		m.handleSrcAvail(msg, n)
	case sdpwire.SinkAvail:
		if n > 0 && !m.accept(msg.MID, n, false) { // payload first, fresh or not [SDP-9.5.1-10]
			return
		}
		m.stats.RecvBytesTransact += uint64(n)
		if msg.VA+uint64(msg.Size) < msg.VA {
			m.violation("SDP-6.3.3.1-1", msg.MID, "buffer beyond the address space")
			return
		}
		m.handleSinkAvail(msg)
	case sdpwire.RdmaRdCompl:
		m.handleRdmaRdCompl(msg, inv, invalidated)
		m.noteHint(msg.Flags) // here and below only [SDP-6.1.2-12]
	case sdpwire.RdmaWrCompl:
		m.handleRdmaWrCompl(msg, inv, invalidated)
		m.noteHint(msg.Flags) // [SDP-6.1.2-13]
	case sdpwire.SendSm:
		m.handleSendSm(msg)
	case sdpwire.SrcAvailCancel:
		m.handleSrcAvailCancel(msg)
	case sdpwire.SinkAvailCancel:
		m.handleSinkAvailCancel()
	case sdpwire.SinkCancelAck:
		m.handleSinkCancelAck(msg)
	case sdpwire.ModeChange:
		m.handleModeChange(msg)
	case sdpwire.ChRcvBuf:
		m.handleChRcvBuf(msg)
	case sdpwire.ChRcvBufAck:
		m.handleChRcvBufAck(msg)
	case sdpwire.DisConn:
		m.handleDisConn(msg)
	case sdpwire.AbortConn:
		m.abortRemote() // [SDP-6.2.4-3] [SDP-8.2.1-22]
	case sdpwire.SuspComm:
		m.handleSuspComm(msg)
	case sdpwire.SuspCommAck:
		m.handleSuspCommAck(msg)
	default: // Hello, HelloAck, and what Parse lets no one see [D-75]
		m.violation("SDP-6.1.1-3", msg.MID, "has no place on a running connection")
	}
}

// receiveData takes n bytes of a Data message, the last of which may be urgent.
// [SDP-6.1.2-6]
func (m *Machine) receiveData(msg *sdpwire.Message, n int) bool {
	s := &m.snk
	urgent := msg.Flags&sdpwire.OOBPres != 0
	apart := urgent && m.p.UrgentApart
	if urgent {
		if s.announced > 0 {
			s.announced--
		} else {
			m.do(Action{Op: OpUrgentPending}) // the byte announces itself [D-29]
		}
		m.stats.UrgentRecv++
		m.do(Action{Op: OpUrgent, Pos: s.pos + uint64(n) - 1, Local: apart})
	}
	return m.accept(msg.MID, n, apart)
}
