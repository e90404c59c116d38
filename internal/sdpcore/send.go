package sdpcore

import "viaduct/internal/wire/sdpwire"

// A sender sends messages. It takes their numbers from the credits, and announces urgent bytes.
type sender struct {
	*common
	cr  *credits
	urg *urgent
}

// send appends the OpSend of the next message, complete except for the extended header and the
// payload, and returns its index in out. Messages enter the send queue in the order of their
// numbers. It panics without credit. [SDP-10.1-1] [SDP-6.1.5-1] [SDP-6.1.5-2] [SDP-6.1.5-3]
func (s *sender) send(mid sdpwire.MID, flags sdpwire.Flags) int {
	if s.cr.credit() == 0 {
		panic("sdpcore: no credit for " + mid.String())
	}
	if s.urg.any() {
		flags |= s.urg.announce()
	}
	s.do(Action{Op: OpSend, Solicited: sdpwire.Solicited(mid, flags), Msg: s.header(mid, flags)})
	return len(s.out) - 1
}

// header returns the header of the next message, for a message without payload, and counts the
// message as sent.
func (s *sender) header(mid sdpwire.MID, flags sdpwire.Flags) sdpwire.Message {
	c := s.cr
	h := sdpwire.Message{
		MID: mid, Flags: flags, Bufs: uint16(c.announce()), Len: uint32(mid.HeaderLen()), // [SDP-6.1.4-1]
		MSeq: uint32(c.next), MSeqAck: uint32(c.ack()),
	}
	c.announced()
	c.next++
	if mid != sdpwire.Data {
		c.lastReal = c.next
	}
	s.stats.SentMessages++
	return h
}
