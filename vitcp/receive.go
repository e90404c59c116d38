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

	taking

	in inbound

	long      uint16      // length of the last long segment that did not end its message
	lastSend  uint32      // length of the last Send of more than one segment
	sendGuess uint32      // that of the one in progress, by guess; 0 if none was made
	ahead     []vi.Memory // pins of memory where what comes is predicted to belong
	held      vi.Memory   // pin that serves every access to its region during one Receive
	place     []byte      // what held pins, if that is all memory of the receive descriptor taken last
	refs      []vi.Memory // pinned between Plan and Landed
	look      vi.Cursor   // scratch: where payload goes that is not in place yet
	discard   []byte      // where bytes go that are not wanted
	thrown    bool        // the places of the last Plan are there
}

// A taking is the segment being taken.
type taking struct {
	h       vitcpwire.Header
	r       vitcpwire.RDMA
	payload int    // its length without headers
	at      uint32 // offset in the message of its next byte to be placed
	missing int    // bytes still to be read straight into place; 0: none
	last    last   // the end of an RDMA Write
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
	l.place(p)
	return l.end()
}

// Receive implements frameio.Protocol. No pin outlasts it.
func (l *link) Receive(p []byte, mayPlan bool) (n, missing int, err error) {
	n, missing, err = l.take(p, mayPlan)
	l.hold(vi.Memory{})
	return n, missing, err
}

// take handles the segments in p, as Receive has to, in the order of the stream:
// a message is done before the next begins.
func (l *link) take(p []byte, mayPlan bool) (n, missing int, err error) {
	x := &l.rx
	for l.life.Load().running() && !x.deaf {
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
		if !whole && (!mayPlan || payload < directSegment || payload-len(body) < directRest) {
			break
		}
		if err := l.begin(h, rest[vitcpwire.HeaderLen:hl], payload); err != nil {
			return n, 0, err
		}
		body = body[:min(payload, len(body))]
		l.place(body)
		n += hl + len(body) // [VIA-4.4-2] [VIA-4.4-3]
		if !whole {
			x.missing = payload - len(body)
			l.setLast(x.missing)
			if h.Flags&vitcpwire.EndOfMessage == 0 {
				x.long = h.Length
			}
			return n, x.missing, nil
		}
		if err := l.end(); err != nil {
			return n, 0, err
		}
	}
	if !l.life.Load().running() {
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
// and the acknowledgement rides on that. If it does not, and nothing else than a
// message comes, it goes by itself after a millisecond.
func (l *link) Drained() {
	x := &l.rx
	if !l.life.Load().running() {
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

// begin begins to take a segment: everything its headers say is checked here, before
// the first byte is placed. more is what follows the header proper. The error is a
// *ProtocolError.
func (l *link) begin(h vitcpwire.Header, more []byte, payload int) error {
	x := &l.rx
	x.h, x.payload, x.at = h, payload, h.Offset
	if x.r = (vitcpwire.RDMA{}); h.Type.HasRDMA() && len(more) > 0 {
		x.r, _, _ = vitcpwire.ParseRDMA(more)
	}
	l.count.receivedSegments.Add(1)
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
	if l.life.Load().faulted() {
		return nil
	}
	t := &messageTypes[h.Type]
	if t.begin == nil {
		return framingf("%v on an established connection", h.Type)
	}
	first := true
	if t.end != nil {
		var awaited vitcpwire.Number
		read := l.reads.Front()
		if read != nil {
			awaited = read.number
		}
		var err error
		if first, err = x.asm.segment(&x.h, payload, awaited, read != nil); err != nil {
			return err
		}
	}
	return t.begin(l, first)
}

// end takes a segment all of whose bytes are in place, and with its last one the
// message.
func (l *link) end() error {
	x := &l.rx
	l.count.receivedBytes.Add(uint64(x.payload))
	t := &messageTypes[x.h.Type]
	if x.h.Flags&vitcpwire.EndOfMessage == 0 || t.end == nil || l.life.Load().faulted() {
		return nil
	}
	return t.end(l, x.h.Flags&vitcpwire.TransmitError != 0)
}

// wake has the send role look at what it was waiting with.
func (l *link) wake() {
	l.blocked.Store(false)
	l.rx.kick = true
}

// received notes that a message was taken in full: acknowledged only now that
// its bytes are in place and its completion made.
func (l *link) received(payload uint32) {
	if l.life.Load().faulted() {
		return
	}
	l.rx.fresh = true
	l.count.receivedMessages.Add(1)
	l.acks.received(l.rx.h.Number, int(payload)) // [VIT-3.1-ACK-2] [VIA-4.5-4]
}
