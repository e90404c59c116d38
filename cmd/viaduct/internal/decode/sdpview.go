package decode

import (
	"fmt"

	"viaduct/internal/wire/sdpwire"
)

// An sdpView is an SDP connection as seen by one of the peers. An observer can reconstruct the view
// exactly: the MSeqAck of a message is the number of the last message the sender had received
// [SDP-6.1.6-1], so the observer knows the order of sent and received messages at each peer. A
// message is checked against the sender's view, where crossing messages do not look like
// violations.
//
// sdpState discards both views if either may be wrong: after missing bytes, after any violation,
// and while a SrcAvailCancel holds MSeqAck back.
type sdpView struct {
	connecting bool
	adverts    int               // advertisements that the other peer accepts at a time
	inbox      []sdpwire.Message // messages to this peer that are not acknowledged
	source     sdpHalf           // the half in which this peer is Data Source
	sink       sdpHalf           // the half in which this peer is Data Sink

	resizing bool   // this peer's ChRcvBuf is not acknowledged
	owesSize bool   // this peer has to acknowledge the other peer's ChRcvBuf
	wish     uint32 // the size requested by the other peer's ChRcvBuf
	size     uint32 // bytes of each of this peer's receive Private Buffers
}

// An sdpHalf is a half-connection as seen by one peer.
type sdpHalf struct {
	mode  sdpwire.Mode
	srcs  []srcOpen  // SrcAvails that are not Processed, in order
	sinks []sinkOpen // SinkAvails that are fresh and not finished, in order
	owed  uint64     // bytes that a SendSm has requested as Data
	count uint32     // messages with payload that used up no SinkAvail [SDP-9.5.1-7] [SDP-6.3.3.4-3]

	cancel, sinkCancel       bool // a SrcAvailCancel or SinkAvailCancel is open
	cancelSeq, sinkCancelSeq uint32

	leaving  bool   // the Data Source's change from Pipelined to Combined is not acknowledged [SDP-12.4-3]
	leaveSeq uint32 // MSeq of that ModeChange
	count0   uint32 // count at the time of that ModeChange [D-26]
	closed   bool   // DisConn was sent
}

type srcOpen struct {
	stag   uint32
	left   uint32
	zeroes int
	seq    uint32
}

type sinkOpen struct{ stag, size uint32 }

// A broken is a violated rule; the zero value means none.
type broken struct{ id, text string }

func breaks(id, format string, a ...any) broken { return broken{id, fmt.Sprintf(format, a...)} }

// maxInbox limits the number of messages kept until acknowledged.
const maxInbox = 1 << 16

// hear applies the messages received by the sender of x before sending x. sure is false if the
// received messages are not known for certain.
func (v *sdpView) hear(x *sdpwire.Message) (sure bool) {
	if x.MSeqAck == 0 && len(v.inbox) > 0 && v.inbox[0].MSeq == 0 { // message 0 was received, or none [D-08]
		switch v.inbox[0].MID {
		case sdpwire.SinkAvail:
			if x.MID != sdpwire.RdmaWrCompl {
				return false
			}
		case sdpwire.ChRcvBuf:
			if x.MID != sdpwire.ChRcvBufAck {
				return false
			}
		} // for other messages it makes no difference
	}
	n := 0
	for n < len(v.inbox) && int32(v.inbox[n].MSeq-x.MSeqAck) <= 0 {
		v.receive(&v.inbox[n])
		n++
	}
	v.inbox = v.inbox[:copy(v.inbox, v.inbox[n:])]
	if len(v.inbox) > 1 && v.inbox[0].MID == sdpwire.SrcAvailCancel &&
		len(v.sink.srcs) > 0 { // delays MSeqAck [SDP-9.5.4-5]
		for i := range v.inbox[1:] {
			if y := &v.inbox[1+i]; y.MID != sdpwire.Data || y.PayloadLen() > 0 {
				return false
			}
		}
	}
	return true
}

// receive applies a message of the other peer to the view.
func (v *sdpView) receive(x *sdpwire.Message) {
	s, k := &v.source, &v.sink
	if s.leaving && int32(x.MSeqAck-s.leaveSeq) >= 0 {
		s.leaving = false
	}
	if n := x.PayloadLen(); n > 0 {
		k.pay(n)
	}
	switch x.MID {
	case sdpwire.SrcAvail:
		if len(k.sinks) == 0 { // otherwise Write Zcopy takes precedence [SDP-11.3-16]
			k.offer(x)
		}
	case sdpwire.SinkAvail:
		s.take(x)
	case sdpwire.RdmaRdCompl:
		s.read(x.Size)
	case sdpwire.RdmaWrCompl:
		k.sinks = tail(k.sinks)
	case sdpwire.SendSm:
		s.sendSm(s.cancel && int32(x.MSeqAck-s.cancelSeq) >= 0)
	case sdpwire.SrcAvailCancel:
		k.cancel = len(k.srcs) > 0
	case sdpwire.SinkCancelAck:
		if k.sinkCancel && int32(x.MSeqAck-k.sinkCancelSeq) >= 0 { // others end a finished cancel [D-34]
			k.sinks, k.sinkCancel = nil, false
		}
	case sdpwire.ModeChange:
		if x.S {
			s.mode = x.Mode
			return
		}
		k.mode, k.sinks = x.Mode, nil
	case sdpwire.ChRcvBuf:
		if v.resizing && !v.connecting { // ignored [SDP-10.6.1-1]
			return
		}
		v.resizing, v.owesSize, v.wish = false, true, x.Size // the peer's own request is withdrawn [D-47]
	case sdpwire.ChRcvBufAck:
		v.resizing = false
	case sdpwire.DisConn:
		k.sinks = nil
	}
}

// send checks a message of this peer and applies it to the view. The message invalidates the STag
// inv if invalidates is set.
func (v *sdpView) send(x *sdpwire.Message, inv uint32, invalidates bool) (b broken) {
	s, k := &v.source, &v.sink
	n := x.PayloadLen()
	if invalidates && x.MID != sdpwire.RdmaRdCompl && x.MID != sdpwire.RdmaWrCompl {
		return breaks("D-41", "%v invalidates STag %#x", x.MID, inv)
	}
	if n > 0 && x.MID != sdpwire.SrcAvail {
		if b := s.mayPay(x.MID, n); b.id != "" {
			return b
		}
		s.pay(n)
	}
	switch x.MID {
	case sdpwire.SrcAvail:
		return v.sendSrcAvail(x, n)
	case sdpwire.SinkAvail:
		switch {
		case int32(x.NonDiscards-k.count) > 0:
			return breaks("D-24", "NonDiscards %d, but its sender took %d messages with payload",
				x.NonDiscards, k.count)
		case x.NonDiscards != k.count:
			return breaks("SDP-6.3.3.4-1", "NonDiscards %d, but its sender took %d messages with payload",
				x.NonDiscards, k.count)
		case x.VA+uint64(x.Size) < x.VA:
			return breaks("SDP-6.3.3.1-1", "%d bytes at %#x pass the end of the address space", x.Size, x.VA)
		case v.open() >= v.adverts:
			return breaks("SDP-11.3-18", "%d advertisements are open, and the other peer takes %d", v.open(), v.adverts)
		}
		k.sinks = append(k.sinks, sinkOpen{x.STag, x.Size})
	case sdpwire.RdmaRdCompl:
		if b := k.mayRead(x, inv, invalidates); b.id != "" {
			return b
		}
		k.read(x.Size)
	case sdpwire.RdmaWrCompl:
		switch {
		case len(s.sinks) == 0:
			return breaks("SDP-9.3-13", "no SinkAvail is open")
		case x.Size > s.sinks[0].size:
			return breaks("D-20", "%d bytes in a buffer of %d", x.Size, s.sinks[0].size)
		case invalidates && inv != s.sinks[0].stag:
			return breaks("SDP-9.3-10", "invalidates STag %#x, the oldest SinkAvail has %#x", inv, s.sinks[0].stag)
		}
		s.sinks = tail(s.sinks)
	case sdpwire.SendSm:
		if len(k.srcs) == 0 {
			return breaks("SDP-9.2-16", "no SrcAvail is open")
		}
		k.sendSm(k.cancel)
	case sdpwire.SrcAvailCancel:
		if s.cancel {
			return breaks("SDP-9.5.4-10", "a SrcAvailCancel is open already")
		}
		s.cancel, s.cancelSeq = len(s.srcs) > 0, x.MSeq
	case sdpwire.SinkAvailCancel:
		k.sinkCancel, k.sinkCancelSeq = len(k.sinks) > 0, x.MSeq
	case sdpwire.SinkCancelAck:
		s.sinks = nil
	case sdpwire.ModeChange:
		if x.S {
			k.mode = x.Mode
			return b
		}
		if x.Mode == sdpwire.Buffered && len(s.srcs) > 0 {
			return breaks("SDP-12.1-2", "to Buffered with a SrcAvail open")
		}
		if s.mode == sdpwire.Pipelined {
			s.leaving, s.leaveSeq, s.count0 = true, x.MSeq, s.count
		}
		s.mode, s.sinks = x.Mode, nil
	case sdpwire.ChRcvBuf:
		switch {
		case v.resizing:
			return breaks("SDP-10.6-19", "the last one is not acknowledged")
		case v.owesSize:
			return breaks("D-47", "its sender owes a ChRcvBufAck")
		}
		v.resizing = true
	case sdpwire.ChRcvBufAck:
		up := v.wish > v.size
		switch {
		case !v.owesSize:
			return breaks("D-47", "nothing was asked")
		case up && x.Size < v.size, !up && (x.Size > v.size || x.Size < v.wish):
			return breaks("D-47", "%d bytes when asked to go from %d to %d", x.Size, v.size, v.wish)
		}
		v.owesSize, v.size = false, x.Size
	case sdpwire.DisConn:
		switch {
		case s.closed:
			return breaks("SDP-8.2.1-6", "a second time")
		case len(s.srcs) > 0 || s.owed > 0:
			return breaks("SDP-8.2.1-4", "%d SrcAvails are open, and %d bytes are owed by Data", len(s.srcs), s.owed)
		}
		s.closed = true
	}
	return b
}

// open returns the number of this peer's open advertisements. [D-15]
func (v *sdpView) open() int { return len(v.source.srcs) + len(v.sink.sinks) }

func (v *sdpView) sendSrcAvail(x *sdpwire.Message, n int) broken {
	s := &v.source
	switch {
	case s.cancel:
		return breaks("SDP-9.5.4-10", "the SrcAvailCancel before is not Processed")
	case s.mode == sdpwire.Combined && len(s.srcs) > 0:
		return breaks("SDP-11.2-4", "another is open in Combined Mode")
	case n > 0 && s.owed > 0:
		return breaks("SDP-11.2-4", "with payload while %d bytes are owed by Data", s.owed)
	case uint64(n) > uint64(x.Size):
		return breaks("D-18", "%d bytes of payload from a buffer of %d", n, x.Size)
	case x.VA+uint64(x.Size) < x.VA:
		return breaks("SDP-6.3.2.1-1", "%d bytes at %#x pass the end of the address space", x.Size, x.VA)
	case v.open() >= v.adverts:
		return breaks("SDP-11.3-18", "%d advertisements are open, and the other peer takes %d", v.open(), v.adverts)
	}
	if n > 0 {
		s.pay(n)
	}
	s.offer(x)
	return broken{}
}

// mayPay checks payload in a message other than SrcAvail.
func (h *sdpHalf) mayPay(mid sdpwire.MID, n int) broken {
	switch {
	case h.owed > 0 && mid != sdpwire.Data:
		return breaks("SDP-11.3-6", "payload while %d bytes are owed by Data", h.owed)
	case len(h.srcs) > 0 && h.owed == 0 && h.mode == sdpwire.Pipelined:
		return breaks("SDP-11.3-5", "payload while a SrcAvail is open")
	case len(h.srcs) > 0 && h.owed == 0:
		return breaks("SDP-11.2-4", "payload while a SrcAvail is open")
	case len(h.srcs) > 0 && uint64(n) > h.owed:
		return breaks("SDP-11.3-6", "%d bytes where %d were owed", n, h.owed)
	}
	return broken{}
}

// pay counts a message with n bytes of payload: the message uses up a SinkAvail, or raises the
// count. [SDP-9.5.1-4] [D-23]
func (h *sdpHalf) pay(n int) {
	h.owed -= min(h.owed, uint64(n))
	if len(h.sinks) > 0 {
		h.sinks = tail(h.sinks)
	} else {
		h.count++
	}
}

func (h *sdpHalf) offer(x *sdpwire.Message) {
	h.srcs = append(h.srcs, srcOpen{stag: x.STag, left: x.Size - min(x.Size, uint32(x.PayloadLen())), seq: x.MSeq})
}

// mayRead checks an RdmaRdCompl.
func (h *sdpHalf) mayRead(x *sdpwire.Message, inv uint32, invalidates bool) broken {
	if len(h.srcs) == 0 {
		return breaks("SDP-9.2-13", "no SrcAvail is open")
	}
	a := &h.srcs[0]
	switch {
	case h.owed > 0:
		return breaks("SDP-9.2-27", "%d bytes of an earlier SrcAvail are still to come by Data", h.owed)
	case x.Size > a.left:
		return breaks("SDP-9.2-17", "%d bytes of the %d that were left", x.Size, a.left)
	case invalidates && inv != a.stag:
		return breaks("SDP-9.2-22", "invalidates STag %#x, the oldest SrcAvail has %#x", inv, a.stag)
	case invalidates && x.Size < a.left:
		return breaks("SDP-9.2-22", "invalidates STag %#x with %d bytes left", inv, a.left-x.Size)
	case x.Size == 0 && a.left > 0 && a.zeroes >= 16:
		return breaks("D-19", "no progress %d times", a.zeroes+1)
	}
	return broken{}
}

// read counts n bytes of the oldest SrcAvail as read.
func (h *sdpHalf) read(n uint32) {
	if len(h.srcs) == 0 {
		return
	}
	a := &h.srcs[0]
	if a.zeroes++; n > 0 {
		a.zeroes = 0
	}
	if a.left -= min(n, a.left); a.left == 0 {
		h.srcs = tail(h.srcs)
		h.cancel = h.cancel && len(h.srcs) > 0 // [SDP-9.5.4-11]
	}
}

// sendSm applies a SendSm. A SendSm answers a SrcAvailCancel, which ends all SrcAvails, or
// otherwise forces the oldest SrcAvail to Bcopy.
func (h *sdpHalf) sendSm(cancelled bool) {
	switch {
	case cancelled:
		h.srcs, h.cancel = nil, false
	case len(h.srcs) > 0:
		h.owed += uint64(h.srcs[0].left)
		h.srcs = tail(h.srcs)
		h.cancel = h.cancel && len(h.srcs) > 0
	}
}

// take applies a SinkAvail, received by this peer, to the half with this peer as Data Source.
// [SDP-9.5.1-9] [SDP-11.3-12] [D-26]
func (h *sdpHalf) take(x *sdpwire.Message) {
	switch {
	case h.closed:
	case h.mode != sdpwire.Pipelined && !h.leaving:
	case h.mode != sdpwire.Pipelined && x.NonDiscards != h.count0:
		h.count0--
		h.count--
	case h.mode != sdpwire.Pipelined:
		if len(h.srcs) > 0 && int32(h.srcs[0].seq-h.leaveSeq) < 0 {
			h.srcs, h.cancel = nil, false
		}
	case x.NonDiscards != h.count: // stale
		h.count--
	default:
		h.sinks = append(h.sinks, sinkOpen{x.STag, x.Size})
		h.srcs, h.cancel = nil, false
	}
}

func tail[T any](list []T) []T {
	if len(list) <= 1 {
		return nil
	}
	return list[1:]
}
