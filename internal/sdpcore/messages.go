package sdpcore

import "viaduct/internal/wire/sdpwire"

// A messageType has the functions for messages of one type, which run after the common header was
// handled. Each returns the reason to end the connection, such as a violation, or nil. A message
// arrives completely, so no function handles partial messages.
type messageType struct {
	// begin checks a message before it has any effect. It returns errVoid for a message without
	// effect. nil means that the message is always allowed.
	begin func(m *Machine, msg *inbound) error

	// target accepts the payload, which is in a Private Buffer or in the memory of a waiting read.
	// nil means that the type has no payload.
	target func(m *Machine, msg *inbound) error

	// end performs the message. nil means that the type is not allowed on a running connection.
	end func(m *Machine, msg *inbound) error

	invalidates bool // whether the type's Send may invalidate an STag [D-41]
}

// messageTypes is indexed by MID.
var messageTypes = [256]messageType{
	sdpwire.Data: {target: (*Machine).takeData, end: (*Machine).endData},
	sdpwire.SrcAvail: {begin: (*Machine).beginSrcAvail, target: (*Machine).takePayload,
		end: (*Machine).endSrcAvail},
	sdpwire.SinkAvail:       {target: (*Machine).takePayload, end: (*Machine).endSinkAvail},
	sdpwire.RdmaRdCompl:     {begin: (*Machine).beginRdmaRdCompl, end: (*Machine).endRdmaRdCompl, invalidates: true},
	sdpwire.RdmaWrCompl:     {begin: (*Machine).beginRdmaWrCompl, end: (*Machine).endRdmaWrCompl, invalidates: true},
	sdpwire.SendSm:          {begin: (*Machine).beginSendSm, end: (*Machine).endSendSm},
	sdpwire.SrcAvailCancel:  {begin: (*Machine).beginSrcAvailCancel, end: (*Machine).endSrcAvailCancel},
	sdpwire.SinkAvailCancel: {end: (*Machine).endSinkAvailCancel},
	sdpwire.SinkCancelAck:   {end: (*Machine).endSinkCancelAck},
	sdpwire.ModeChange:      {begin: (*Machine).beginModeChange, end: (*Machine).endModeChange},
	sdpwire.ChRcvBuf:        {begin: (*Machine).beginChRcvBuf, end: (*Machine).endChRcvBuf},
	sdpwire.ChRcvBufAck:     {begin: (*Machine).beginChRcvBufAck, end: (*Machine).endChRcvBufAck},
	sdpwire.DisConn:         {begin: (*Machine).beginDisConn, end: (*Machine).endDisConn},
	sdpwire.AbortConn:       {end: (*Machine).endAbortConn},
	sdpwire.SuspComm:        {end: (*Machine).endSuspComm},
	sdpwire.SuspCommAck:     {begin: (*Machine).beginSuspCommAck, end: (*Machine).endSuspCommAck},
}

// An inbound is a message that is being received.
type inbound struct {
	sdpwire.Message
	n           int    // bytes of payload
	inv         uint32 // STag that the Send of this message has invalidated
	invalidated bool   // whether that Send has invalidated an STag
}

// isCreditUpdate reports whether the message carries only the numbers of its header. [SDP-6.3.1-3]
func (msg *inbound) isCreditUpdate() bool { return msg.MID == sdpwire.Data && msg.n == 0 }

// takeData accepts the payload of a Data message, whose last byte may be urgent. [SDP-6.1.2-6]
func (m *Machine) takeData(msg *inbound) error {
	s := &m.snk
	urgent := msg.Flags&sdpwire.OOBPres != 0
	apart := urgent && m.p.UrgentApart
	if urgent {
		if s.announced > 0 {
			s.announced--
		} else {
			m.do(Action{Op: OpUrgentPending}) // the byte needs no earlier announcement [D-29]
		}
		m.stats.UrgentRecv++
		m.do(Action{Op: OpUrgent, Pos: s.pos + uint64(msg.n) - 1, Local: apart})
	}
	return m.accept(msg.MID, msg.n, apart)
}

// takePayload accepts the payload of an advertisement.
func (m *Machine) takePayload(msg *inbound) error { return m.accept(msg.MID, msg.n, false) }

func (m *Machine) endData(msg *inbound) error {
	m.stats.RecvBytesBcopy += uint64(msg.n)
	return nil
}
