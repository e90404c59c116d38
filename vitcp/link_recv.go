package vitcp

import (
	"viaduct/internal/wire/vitcpwire"
	"viaduct/vi"
)

const (
	// directSegment and directRest are from which length of a segment, and
	// of what is missing of it, its payload is read straight into place.
	directSegment = 32 << 10
	directRest    = 4 << 10
)

// rxState belongs to the receive role.
type rxState struct {
	asm   assembly
	acked vitcpwire.Number // of ours, by the peer
	fresh bool             // a message was taken since the last Drained
	kick  bool             // the send role has to look
	deaf  bool             // a read was refused: nothing behind it counts, the end is near

	// The segment being taken.
	h       vitcpwire.Header
	payload int    // its length without headers
	at      uint32 // offset in the message of its next byte to be placed
	missing int    // bytes still to be read straight into place; 0: none
	last    last   // the end of an RDMA Write

	in inbound

	long      uint16      // length of the last long segment that did not end its message
	lastSend  uint32      // length of the last Send of more than one segment
	sendGuess uint32      // that of the one in progress, by guess; 0 if none was made
	ahead     []vi.Memory // pins of memory where what comes is guessed to belong
	held      vi.Memory   // pin that serves every access to its region during one Receive
	refs      []vi.Memory // pinned between Direct and DirectDone
	discard   []byte      // where bytes go that are not wanted
	thrown    bool        // the places of the last Direct are there
}

// A last is the end of an RDMA Write whose other bytes the system puts into place.
// In which order it does that is unknown, and a program may watch the last bytes
// to see that all are there: they are put there afterwards. [VIA-4.2-5]
type last struct {
	b   [8]byte
	n   int // of the bytes that are missing; 0: the segment is not one that ends so
	due int // they come next, and all others are in place; 0: they do not
}

// unfinished reports whether bytes of the segment in hand are still to come. With its
// last segment a message is incomplete until they are there.
func (x *rxState) unfinished() bool { return x.missing > 0 || x.last.due > 0 }

// setLast tells how many of the last n bytes of the segment are put into place
// after all others.
func (l *link) setLast(n int) {
	x := &l.rx
	x.last.n = 0
	if x.h.Type == vitcpwire.Write && x.h.Flags&vitcpwire.EndOfMessage != 0 {
		x.last.n = min(n, len(x.last.b))
	}
}

// placeLast puts the last bytes of the segment into place, and concludes it.
func (l *link) placeLast(p []byte) error {
	l.rx.last.due = 0
	if err := l.place(p); err != nil {
		return err
	}
	return l.segmentDone()
}

// Receive implements frameio.Protocol. No pin outlasts it.
func (l *link) Receive(p []byte, mayDirect bool) (n, direct int, err error) {
	n, direct, err = l.take(p, mayDirect)
	l.hold(vi.Memory{})
	return n, direct, err
}

// take handles the segments in p, as Receive has to, in the order of the stream:
// a message is done before the next begins.
func (l *link) take(p []byte, mayDirect bool) (n, direct int, err error) {
	x := &l.rx
	for l.life.load().running() && !x.deaf {
		rest := p[n:]
		if due := x.last.due; due > 0 {
			if len(rest) < due {
				break
			}
			if err := l.placeLast(rest[:due]); err != nil {
				return n, 0, err
			}
			n += due
			continue
		}
		if len(rest) < vitcpwire.HeaderLen {
			break
		}
		h, _, err := l.dialect.ParseHeader(rest)
		if err != nil {
			return n, 0, &ProtocolError{Reason: "segment header", Err: err} // [V-01] [V-02] [V-07]
		}
		hl := l.dialect.HeaderLen(h.Type)
		payload := int(h.Length) - hl
		if len(rest) < hl {
			break
		}
		body := rest[hl:]
		whole := len(body) >= payload
		if !whole && (!mayDirect || payload < directSegment || payload-len(body) < directRest) {
			break
		}
		var r vitcpwire.RDMA
		if h.Type.HasRDMA() && hl > vitcpwire.HeaderLen {
			r, _, _ = vitcpwire.ParseRDMA(rest[vitcpwire.HeaderLen:])
		}
		if err := l.segment(h, r, payload); err != nil {
			return n, 0, err
		}
		body = body[:min(payload, len(body))]
		if err := l.place(body); err != nil {
			return n, 0, err
		}
		n += hl + len(body) // [VIA-4.4-2] [VIA-4.4-3]
		if !whole {
			x.missing = payload - len(body)
			l.setLast(x.missing)
			if h.Flags&vitcpwire.EndOfMessage == 0 {
				x.long = h.Length
			}
			return n, x.missing, nil
		}
		if err := l.segmentDone(); err != nil {
			return n, 0, err
		}
	}
	if !l.life.load().running() {
		return len(p), 0, nil
	}
	l.nudge()
	if x.deaf {
		n = len(p)
	}
	return n, 0, nil
}

// nudge wakes the send role if what was taken gives it something to do that
// must not wait. [V-12] [V-21]
func (l *link) nudge() {
	if l.level == reception && l.acks.urgent() || l.flow && l.mine.urgent() {
		l.rx.kick = true
		l.nop.Store(true)
	}
	if l.rx.kick {
		l.rx.kick = false
		l.c.Kick()
	}
}

// Drained implements frameio.Protocol: the moment for acknowledgements. A
// consumer that polls has just been given what came; it is likely to answer,
// and the acknowledgement rides on that. If it does not, its next poll finds
// nothing, or a millisecond passes, and then it goes by itself.
func (l *link) Drained() {
	x := &l.rx
	if !l.life.load().running() {
		return
	}
	if x.fresh && l.c.Polled() { // [V-12]
		x.fresh = false
		if l.hasNews() {
			l.tellSoon()
		}
		return
	}
	x.fresh = false
	if l.hasNews() { // [V-12] [V-21]
		l.tell()
	}
}

// segment begins to take a segment: everything its headers say is checked
// here, before the first byte is placed. The error is a *ProtocolError.
func (l *link) segment(h vitcpwire.Header, r vitcpwire.RDMA, payload int) error {
	x := &l.rx
	x.h, x.payload, x.at = h, payload, h.Offset
	bump(&l.count.receivedSegments, 1)
	if l.flow {
		if !l.credits.told(h.Posted) {
			return framingf("count of receive descriptors %d after %d", h.Posted, l.credits.posted.Load())
		}
		if l.blocked.Load() && l.credits.available() > 0 {
			l.wake()
		}
	}
	if l.level == reception { // elsewhere it means nothing [VIT-3.1-ACK-7] [VIT-3.1-ERR-5]
		l.acknowledged()
	}
	if l.life.load().faulted() {
		return nil
	}
	switch h.Type {
	case vitcpwire.NOP: // [VIT-3.1-NOP-1]
		return nil
	case vitcpwire.Disconnect:
		if !l.terms.disconnect {
			return framingf("%v without having been agreed on", h.Type)
		}
		l.life.move(lifeDisconnected)
		return nil
	case vitcpwire.Send, vitcpwire.Write, vitcpwire.ReadRequest, vitcpwire.ReadResponse:
	default:
		return framingf("%v on an established connection", h.Type)
	}
	read := l.reads.Front()
	var awaited vitcpwire.Number
	if read != nil {
		awaited = read.number
	}
	first, err := x.asm.segment(&x.h, payload, awaited, read != nil)
	if err != nil {
		return err
	}
	end := uint64(h.Offset) + uint64(payload)
	switch h.Type {
	case vitcpwire.Send:
		if first {
			return l.openSend()
		}
	case vitcpwire.Write:
		if first {
			x.in = inbound{rdma: r}
		} else if r != x.in.rdma { // [V-24]
			return framingf("RDMA header of message %d changes", uint32(h.Number))
		}
		if end > uint64(r.Length) {
			return framingf("RDMA Write %d has more than its %d bytes", uint32(h.Number), r.Length)
		}
		if first {
			return l.openWrite()
		}
	case vitcpwire.ReadRequest:
		if h.Flags&vitcpwire.EndOfMessage == 0 || payload != 0 { // [V-09]
			return framingf("RDMA Read Request %d of more than one segment, or with payload", uint32(h.Number))
		}
		return l.openRead(r)
	case vitcpwire.ReadResponse:
		if end > uint64(read.d.Length) {
			return framingf("RDMA Read Response %d has more than the %d bytes asked for", uint32(h.Number), read.d.Length)
		}
	}
	return nil
}

// wake has the send role look at what it was waiting with.
func (l *link) wake() {
	l.blocked.Store(false)
	l.rx.kick = true
}

// segmentDone concludes a segment all of whose bytes are in place, and with
// its last one the message.
func (l *link) segmentDone() error {
	x := &l.rx
	bump(&l.count.receivedBytes, uint64(x.payload))
	if x.h.Flags&vitcpwire.EndOfMessage == 0 || l.life.load().faulted() {
		return nil
	}
	void := x.h.Flags&vitcpwire.TransmitError != 0
	switch x.h.Type {
	case vitcpwire.Send:
		l.endSend(void)
	case vitcpwire.Write:
		if !void && x.at != x.in.rdma.Length {
			return framingf("RDMA Write %d ends after %d of %d bytes", uint32(x.h.Number), x.at, x.in.rdma.Length)
		}
		if err := l.endWrite(void); err != nil {
			return err
		}
	case vitcpwire.ReadRequest:
		if !x.deaf {
			l.received(0)
		}
	case vitcpwire.ReadResponse:
		read := l.reads.Front()
		if void { // [V-30]
			l.failRead(vi.StatusRDMAProtection)
			return nil
		}
		if x.at != read.d.Length {
			return framingf("RDMA Read Response %d ends after %d of %d bytes", uint32(x.h.Number), x.at, read.d.Length)
		}
		l.endRead()
	}
	return nil
}

// received notes that a message was taken in full: acknowledged only now that
// its bytes are in place and its completion made.
func (l *link) received(payload uint32) {
	if l.life.load().faulted() {
		return
	}
	l.rx.fresh = true
	bump(&l.count.receivedMessages, 1)
	l.acks.received(l.rx.h.Number, int(payload)) // [VIT-3.1-ACK-2] [VIA-4.5-4]
}
