package vitcp

import (
	"viaduct/internal/frameio"
	"viaduct/internal/placer"
	"viaduct/internal/regmem"
	"viaduct/internal/wire/vitcpwire"
)

const (
	// Payload is read straight into place before all of it has arrived if the segment has at least
	// directSegment bytes of payload, and directRest bytes are missing.
	directSegment = 32 << 10
	directRest    = 4 << 10

	// watchedLen is the number of bytes at the end of an RDMA Write placed after all others, if the
	// kernel places the others. The kernel's order is unknown, and a program may poll the last
	// bytes to detect that all have arrived. [VIA-4.2-5]
	watchedLen = 8
)

// A receiver receives messages: it judges each segment, puts the payload into place, and completes
// messages. There is no lock, because only the holder of frameio's receive role uses a receiver.
type receiver struct {
	*shared
	placer.Placer
	asm   assembly
	acked vitcpwire.Number // number of this side's last message that the peer has acknowledged
	fresh bool             // a message was received since the last Drained
	kick  bool             // the send role must be woken
	deaf  bool             // a Read was refused: later messages are ignored, and the connection is about to end

	taking
	in inbound
	guess
}

func (x *receiver) init(s *shared) {
	x.shared, x.Wire, x.acked = s, x, vitcpwire.Number(s.p.cfg.FirstMessage)
}

// A taking is the segment being received, or the last segment.
type taking struct {
	t       *messageType
	h       vitcpwire.Header
	r       vitcpwire.RDMA
	payload int    // length of the segment without headers
	all     []byte // memory of the whole message that begins with the segment, if pinned in one piece; otherwise nil
}

// taken returns the number of bytes of the message in place.
func (x *receiver) taken() uint32 { return x.h.Offset + uint32(x.Placed()) }

// length returns the number of bytes of the message up to the end of the segment.
func (x *taking) length() uint32 { return x.h.Offset + uint32(x.payload) }

// drops reports whether further input is dropped: the link is not running, or a Read was refused.
func (x *receiver) drops() bool { return x.deaf || !x.life.Load().running() }

// Receive implements frameio.Protocol.
func (x *receiver) Receive(p []byte, mayPlan bool) (n, missing int, err error) {
	if n, missing, err = x.Placer.Receive(p, mayPlan); err != nil {
		return n, 0, err
	}
	if x.life.Load().running() {
		x.nudge()
	}
	if x.drops() {
		return len(p), 0, nil
	}
	return n, missing, nil
}

// Landed implements frameio.Planner.
func (x *receiver) Landed(p *frameio.Plan, frame, behind int) (taken, missing int, err error) {
	taken, missing, err = x.Placer.Landed(p, frame, behind)
	if err == nil && x.life.Load().running() {
		x.nudge()
	}
	return taken, missing, err
}

// nudge wakes the send role if an acknowledgement or the credits must not wait. [V-12] [V-21]
func (x *receiver) nudge() {
	if x.updates.urgent() {
		x.kick = true
		x.updates.wanted.Store(true)
	}
	if x.kick {
		x.kick = false
		x.c.Kick()
	}
}

// Drained implements frameio.Protocol. It sends acknowledgements. A polling consumer has just
// received messages and is likely to answer, and the answer carries the acknowledgement. Without an
// answer, and if only messages arrive, a NOP carries the acknowledgement after a millisecond.
func (x *receiver) Drained() {
	answers := x.fresh && x.c.Polled()
	x.fresh = false
	switch { // [V-12] [V-21]
	case !x.life.Load().running() || !x.updates.due():
	case answers:
		x.updates.soon()
	default:
		x.updates.now()
	}
}

// Next implements placer.Wire. Each message is finished before the next begins. [VIA-4.4-2]
// [VIA-4.4-3]
func (x *receiver) Next(p []byte, early bool, f *placer.Frame) (n int, body []byte, ok bool, err error) {
	if len(p) < vitcpwire.HeaderLen || x.drops() {
		return 0, nil, false, nil
	}
	h, _, err := x.dialect.ParseHeader(p)
	if err != nil {
		return 0, nil, false, &ProtocolError{Reason: "segment header", Err: err} // [V-01] [V-02] [V-07]
	}
	hl := x.dialect.HeaderLen(h.Type)
	payload := int(h.Length) - hl
	come := len(p) - hl
	if come < payload && (!early || payload < directSegment || payload-come < directRest) || come < 0 {
		return 0, nil, false, nil
	}
	last := 0
	if come < payload {
		if last = watched(h.Type, ends(&h)); !ends(&h) {
			x.long = h.Length
		}
	}
	n = hl + min(payload, come)
	if err := x.begin(h, p[vitcpwire.HeaderLen:hl], payload, last, f); err != nil {
		return 0, nil, false, err
	}
	if f.Size <= len(x.all) && uint32(payload) <= x.terms.mtu {
		f.At = x.all[:f.Size]
	}
	return n, p[hl:n], true, nil
}

// ends reports whether a segment is the last of its message.
func ends(h *vitcpwire.Header) bool { return h.Flags&vitcpwire.EndOfMessage != 0 }

// watched returns the number of bytes at the end of a segment placed after all others: watchedLen
// for the last segment of an RDMA Write, and otherwise 0.
func watched(t vitcpwire.Type, last bool) int {
	if t == vitcpwire.Write && last {
		return watchedLen
	}
	return 0
}

// begin starts a segment as frame f. All header fields are checked here, before the first byte is
// placed. more holds the RDMA header, or nothing if the segment has none. The last bytes of the
// payload have not arrived, and are placed after all others. The error is a *ProtocolError.
func (x *receiver) begin(h vitcpwire.Header, more []byte, payload, last int, f *placer.Frame) error {
	f.Begin(payload-last, last, nil)
	f.Watched = h.Type == vitcpwire.Write
	x.t, x.h, x.payload, x.all = &messageTypes[h.Type], h, payload, nil
	if x.r = (vitcpwire.RDMA{}); h.Type.HasRDMA() && len(more) > 0 {
		x.r, _, _ = vitcpwire.ParseRDMA(more)
	}
	x.count.receivedSegments.Add(1)
	if x.flow.on {
		if !x.flow.credits.update(h.Posted) {
			return framingf("count of receive descriptors %d after %d", h.Posted, x.flow.credits.posted.Load())
		}
		if x.flow.blocked.Load() && x.flow.credits.available() > 0 {
			x.wake()
		}
	}
	if x.level == reception { // at other levels the field has no meaning [VIT-3.1-ACK-7] [VIT-3.1-ERR-5]
		x.acknowledged()
	}
	if x.life.Load().faulted() {
		return nil
	}
	if x.t.begin == nil {
		return framingf("%v on an established connection", h.Type)
	}
	first := true
	if x.t.end != nil {
		var err error
		if first, err = x.asm.segment(&x.h, payload, x.reads.Front()); err != nil {
			return err
		}
	}
	return x.t.begin(x, first)
}

// Target implements placer.Wire.
func (x *receiver) Target(off, n int) regmem.Ref {
	if x.t.target == nil || !x.life.Load().running() {
		return regmem.Ref{}
	}
	return regmem.Ref(x.t.target(x, x.h.Offset+uint32(off), n))
}

// Lost implements placer.Wire for a memory fault while payload is placed.
func (x *receiver) Lost(error) { x.t.fail(x) }

// End implements placer.Wire. It finishes a segment whose bytes are all in place. With the last
// segment End also finishes the message.
func (x *receiver) End(last []byte) error {
	if len(last) > 0 {
		x.Place(last) // [VIA-4.2-5]
	}
	x.count.receivedBytes.Add(uint64(x.payload))
	if !ends(&x.h) || x.t.end == nil || !x.life.Load().running() {
		return nil
	}
	return x.t.end(x, x.h.Flags&vitcpwire.TransmitError != 0)
}

// wake makes the send role retry the descriptor waiting for a credit or for the read window.
func (x *receiver) wake() {
	x.flow.blocked.Store(false)
	x.kick = true
}

// received records a completely received message. The message may be acknowledged from now on,
// because the bytes are in place and the completion is published.
func (x *receiver) received(payload uint32) {
	if x.life.Load().faulted() {
		return
	}
	x.fresh = true
	x.count.receivedMessages.Add(1)
	x.acks.received(x.h.Number, int(payload)) // [VIT-3.1-ACK-2] [VIA-4.5-4]
}
