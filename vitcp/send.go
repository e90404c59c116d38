package vitcp

import (
	"fmt"
	"net"

	deliberate "viaduct/internal/fault"
	"viaduct/internal/frameio"
	"viaduct/internal/wire/vitcpwire"
	"viaduct/vi"
)

// A sender sends messages. Each descriptor becomes one message, of the operation's type. The message
// is divided into segments, sent in order. There is no lock, because only the holder of frameio's
// send role uses a sender. [VIT-2.2.2.2.3-1] [VIT-2.2.2.2.3-2] [VIT-2.2.2.2.3-3] [VIT-3.1-15]
type sender struct {
	*shared
	maxSeg int  // maximum length of a segment in bytes
	single bool // segments are written one by one [V-40]

	numbering
	outgoing
	answered uint32 // number of sent bytes of the response to the oldest Read of the peer
	turn     bool   // the next segment belongs to a response, if there is one
	ended    bool   // fillLast has run, so nothing may be sent any more
	batch    batchWork
}

// defaultMSS is the segment length in bytes if the MSS is unknown. minMSS is the smallest MSS
// accepted as valid.
const (
	defaultMSS = 1400
	minMSS     = 256
)

// init sets up the sender of a connection on nc.
func (t *sender) init(s *shared, nc net.Conn) {
	t.shared, t.maxSeg = s, vitcpwire.MaxSegment
	if s.p.cfg.Segments == SegmentsMSS {
		t.single, t.maxSeg = true, defaultMSS
		if mss := maxSegmentSize(nc); mss >= minMSS {
			t.maxSeg = min(mss, vitcpwire.MaxSegment)
		}
	}
	t.last, t.whole = vitcpwire.Number(s.p.cfg.FirstMessage), vitcpwire.Number(s.p.cfg.FirstMessage)
	s.numbers.publish(&t.numbering)
}

// Fill implements frameio.Protocol.
func (t *sender) Fill(b *frameio.Batch) {
	before := t.count.sentSegments.Load()
	t.fill(b)
	t.batch.held = vi.Memory{}
	if t.count.sentSegments.Load() != before {
		t.publish()
	}
}

// publish shows the receive role the numbers of the begun messages, before the batch is sent,
// because the peer may acknowledge the messages at once.
func (t *sender) publish() {
	if t.level == reception { // other levels ignore acknowledgements
		t.numbers.publish(&t.numbering)
	}
}

func (t *sender) fill(b *frameio.Batch) {
	if s := t.life.Load(); !s.running() {
		if s != lifeLeaving {
			t.fillLast(b)
		}
		return
	}
	t.flow.mine.reach(t.ep.RecvPosted())
	sent := false
	for !b.FullFor(t.isPredictable()) && t.fillSegment(b) {
		sent = true
		if t.single {
			b.LeaveMore()
			break
		}
		if t.life.Load().faulted() {
			break
		}
	}
	if !sent && t.updates.take() {
		t.putBare(b, vitcpwire.NOP, nil)
		t.count.sentNOPs.Add(1)
	}
}

// isPredictable reports whether the peer can predict the next segment. The peer can if the segment
// belongs to a begun message of known length.
func (t *sender) isPredictable() bool {
	return t.active && t.typ == vitcpwire.Write || t.answered > 0
}

// fillSegment appends a segment, or returns false if there is nothing to send. If a response and
// another message both wait, their segments alternate. [V-28]
func (t *sender) fillSegment(b *frameio.Batch) bool {
	job := t.served.Front()
	if job != nil && t.turn {
		t.turn = false
		t.putResponse(b, job)
		return true
	}
	if t.active || t.startMessage(b) {
		t.turn = true
		if t.active {
			t.putData(b)
		}
		return true
	}
	if job != nil {
		t.putResponse(b, job)
		return true
	}
	return false
}

// startMessage begins the message of the next send descriptor. It returns false if there is no
// descriptor, or if the descriptor must wait. An RDMA Read is sent whole, because a Read has a
// single source range.
func (t *sender) startMessage(b *frameio.Batch) bool {
	for !t.life.Load().faulted() {
		d := t.ep.NextSend()
		if d == nil || !t.maySend(d) {
			return false
		}
		if !t.started(t.ep.StartSend()) {
			continue
		}
		if !t.active {
			t.putReadRequest(b) // [V-25]
		}
		return true
	}
	return false
}

// started makes d the active message, unless d is an RDMA Read. It returns false if d failed the
// check; d is complete then.
func (t *sender) started(d *vi.Descriptor, seq uint64, bad vi.Status) bool {
	op := d.Control.Op()
	if bad == 0 && op == vi.OpRDMARead && t.reads.limit == 0 {
		bad = vi.StatusRDMAProtection // the peer serves no reads [V-26]
	}
	if bad != 0 {
		t.finishSend(d, seq, bad)
		return false
	}
	t.numbering.begin(seq)
	t.count.sentMessages.Add(1)
	t.outgoing.begin(d, seq)
	if t.active && t.flow.needs(d) {
		t.flow.credits.take()
	}
	return true
}

// maySend reports whether d may be sent now. A Send, or an RDMA Write with immediate data, waits
// for a receive descriptor of the peer. An RDMA Read waits for the window. All later descriptors
// wait for d. [VIT-3.1-17] [V-20] [V-27]
func (t *sender) maySend(d *vi.Descriptor) bool {
	if t.ready(d) {
		return true
	}
	t.flow.blocked.Store(true)
	return t.ready(d) // checked again, because the receive role may have read blocked before it was set
}

func (t *sender) ready(d *vi.Descriptor) bool {
	if d.Control.Op() == vi.OpRDMARead {
		return t.reads.limit == 0 || !t.reads.full()
	}
	return !t.flow.needs(d) || t.flow.credits.available() > 0 || deliberate.On("vitcp-credit")
}

// header sets the fields common to all segments, and counts the segment.
func (t *sender) header(h vitcpwire.Header) vitcpwire.Header {
	h.Posted = t.flow.mine.advertise()
	if t.level != unreliable { // [V-10]
		h.Ack = t.acks.acknowledge()
	}
	t.count.sentSegments.Add(1)
	return h
}

// encode writes the headers of a segment into head, with the fields common to all segments.
func (t *sender) encode(head []byte, h vitcpwire.Header, r vitcpwire.RDMA) {
	t.write(head, t.header(h), r)
}

// write writes the headers of a segment into head.
func (t *sender) write(head []byte, h vitcpwire.Header, r vitcpwire.RDMA) {
	out := t.dialect.AppendHeader(head[:0], h)
	if len(head) > vitcpwire.HeaderLen { // every segment has the RDMA header [V-24]
		r.Append(out)
	}
}

// finishSend completes a locally failed descriptor with status bad. At the reliable levels the
// failure breaks the connection.
func (t *sender) finishSend(d *vi.Descriptor, seq uint64, bad vi.Status) {
	if t.ep.FinishSend(d, seq, bad) {
		t.life.die(fmt.Errorf("vitcp: send descriptor in error: %w", (bad|vi.StatusDone).Err()), nil, nil)
	}
}

// Sent implements frameio.Protocol. The kernel has the batch, so the Sends and RDMA Writes
// complete, except at Reliable Reception.
func (t *sender) Sent() {
	w := &t.batch
	w.uncopied()
	if len(w.done) == 0 {
		return
	}
	broken := false
	if !t.life.Load().stopped() {
		for _, r := range w.done {
			broken = t.ep.FinishSends(r.first, r.end) // [V-10] [VIT-2.2.2.2.5-1]
		}
	}
	w.done = w.done[:0]
	if broken {
		t.life.die(fmt.Errorf("vitcp: a send descriptor is in error"), nil, nil)
	}
}
