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

// messageTypes is indexed by MID. Its functions pass the message to the part that the type concerns.
var messageTypes = [256]messageType{
	sdpwire.Data: {
		target: func(m *Machine, msg *inbound) error { return m.snk.takeData(msg) },
		end: func(m *Machine, msg *inbound) error {
			m.stats.RecvBytesBcopy += uint64(msg.n)
			return nil
		},
	},
	sdpwire.SrcAvail: {
		begin:  func(m *Machine, msg *inbound) error { return m.snk.beginSrcAvail(msg, m.src.room.len()) },
		target: takePayload,
		end:    func(m *Machine, msg *inbound) error { return m.snk.endSrcAvail(msg) },
	},
	sdpwire.SinkAvail: {
		target: takePayload,
		end:    func(m *Machine, msg *inbound) error { return m.src.endSinkAvail(msg, m.snk.fetch.adverts.len()) },
	},
	sdpwire.RdmaRdCompl: {
		begin:       func(m *Machine, msg *inbound) error { return m.src.advs.beginRdmaRdCompl(msg) },
		end:         func(m *Machine, msg *inbound) error { return m.src.advs.endRdmaRdCompl(msg) },
		invalidates: true,
	},
	sdpwire.RdmaWrCompl: {
		begin:       func(m *Machine, msg *inbound) error { return m.snk.offer.beginRdmaWrCompl(msg) },
		end:         (*Machine).endRdmaWrCompl,
		invalidates: true,
	},
	sdpwire.SendSm: {
		begin: func(m *Machine, msg *inbound) error { return m.src.advs.beginSendSm(msg) },
		end:   func(m *Machine, msg *inbound) error { return m.src.advs.endSendSm(msg) },
	},
	sdpwire.SrcAvailCancel: {
		begin: func(m *Machine, msg *inbound) error { return m.snk.fetch.beginSrcAvailCancel(msg) },
		end:   func(m *Machine, msg *inbound) error { return m.snk.fetch.endSrcAvailCancel(msg) },
	},
	sdpwire.SinkAvailCancel: {end: func(m *Machine, msg *inbound) error { return m.src.room.endSinkAvailCancel() }},
	sdpwire.SinkCancelAck:   {end: func(m *Machine, msg *inbound) error { return m.snk.offer.endSinkCancelAck(msg) }},
	sdpwire.ModeChange:      {begin: (*Machine).beginModeChange, end: (*Machine).endModeChange},
	sdpwire.ChRcvBuf: {
		begin: func(m *Machine, msg *inbound) error { return m.rsz.beginChRcvBuf(msg) },
		end:   func(m *Machine, msg *inbound) error { return m.rsz.endChRcvBuf(msg) },
	},
	sdpwire.ChRcvBufAck: {
		begin: func(m *Machine, msg *inbound) error { return m.rsz.beginChRcvBufAck(msg) },
		end:   func(m *Machine, msg *inbound) error { return m.rsz.endChRcvBufAck(msg) },
	},
	sdpwire.DisConn: {
		begin: func(m *Machine, msg *inbound) error { return m.snk.beginDisConn(msg) },
		end:   (*Machine).endDisConn,
	},
	sdpwire.AbortConn: {end: (*Machine).endAbortConn},
	sdpwire.SuspComm:  {end: func(m *Machine, msg *inbound) error { return m.susp.endSuspComm(msg) }},
	sdpwire.SuspCommAck: {
		begin: func(m *Machine, msg *inbound) error { return m.susp.beginSuspCommAck(msg) },
		end:   (*Machine).endSuspCommAck,
	},
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

// takePayload accepts the payload of an advertisement.
func takePayload(m *Machine, msg *inbound) error { return m.snk.accept(msg.MID, msg.n, false) }

// endRdmaWrCompl passes the written bytes to the sink, and the peer's preference to the source.
// [SDP-6.1.2-13]
func (m *Machine) endRdmaWrCompl(msg *inbound) error {
	m.snk.endRdmaWrCompl(msg)
	m.src.mode.noteHint(msg.Flags)
	return nil
}

// beginModeChange checks a ModeChange.
func (m *Machine) beginModeChange(msg *inbound) error {
	if msg.S {
		return checkModeChange(msg, "sending", dataSink, m.src.mode.current)
	}
	if err := checkModeChange(msg, "receiving", dataSource, m.snk.mode.current); err != nil {
		return err
	}
	if msg.Mode == sdpwire.Buffered && m.snk.fetch.adverts.len() > 0 {
		return violation("SDP-12.1-2", msg.MID, "to Buffered with a SrcAvail open")
	}
	return nil
}

// endModeChange follows the master of a half-connection, which has changed its mode. [SDP-6.3.8-3]
// [SDP-12-9]
func (m *Machine) endModeChange(msg *inbound) error {
	m.stats.ModeChangesRecv++
	if msg.S {
		m.src.mode.set(msg.Mode)
		return nil
	}
	m.snk.offer.void() // only Pipelined Mode has SinkAvails, as in Figure 29 [SDP-12.4-9] [SDP-12.4-4]
	m.snk.mode.set(msg.Mode)
	return nil
}
