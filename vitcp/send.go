package vitcp

import (
	"fmt"
	"sync"

	deliberate "viaduct/internal/fault"
	"viaduct/internal/frameio"
	"viaduct/internal/regmem"
	"viaduct/internal/wire/vitcpwire"
	"viaduct/vi"
)

// A sender is the state of the send role. Each descriptor becomes one message, of the operation's
// type. The message is divided into segments, sent in order. [VIT-2.2.2.2.3-1] [VIT-2.2.2.2.3-2]
// [VIT-2.2.2.2.3-3] [VIT-3.1-15]
type sender struct {
	last  vitcpwire.Number // number of the message that began last
	turn  bool             // the next segment belongs to a response, if there is one
	ended bool             // fillLast has run, so nothing may be sent any more

	outgoing
	jobOffset uint32 // number of bytes of the current response that were sent

	runs []run // descriptors that complete when the kernel has the current batch

	// held is the last pin the current Fill gave to the batch. Further bytes of the same region
	// need no further pin.
	held vi.Memory

	copied []*copiedSegment // copies of memory that may fault, made for the current batch

	unpublished
}

// An outgoing is the message in progress, if active is set. The segments are consecutive, except
// for Read Responses in between. [VIT-2.2.2.2.3-5]
type outgoing struct {
	active bool
	typ    vitcpwire.Type
	flags  vitcpwire.Flags
	d      *vi.Descriptor
	seq    uint64
	cur    vi.Cursor
	offset uint32
	rdma   vitcpwire.RDMA
}

// unpublished holds counters Fill updates per message and publishes once per batch.
type unpublished struct {
	whole  vitcpwire.Number
	seqOff uint64
}

// A run is a range of sequence numbers of send descriptors without an RDMA Read.
type run struct{ first, end uint64 }

// Fill implements frameio.Protocol.
func (l *link) Fill(b *frameio.Batch) {
	before := l.count.sentSegments.Load()
	l.fill(b)
	l.tx.held = vi.Memory{}
	if l.count.sentSegments.Load() != before {
		l.publish()
	}
}

// publish shows the receive role the numbers of the begun messages, before the batch is sent,
// because the peer may acknowledge the messages at once.
func (l *link) publish() {
	if l.level == reception { // other levels ignore acknowledgements
		t := &l.tx
		l.seqOff.Store(t.seqOff)
		l.begun.Store(uint32(t.last))
		l.whole.Store(uint32(t.whole))
	}
}

func (l *link) fill(b *frameio.Batch) {
	if s := l.life.Load(); !s.running() {
		// The receive role may still record a message for acknowledgement until Stop has waited for
		// the role. The consumer may have the message already. The last segment must acknowledge the
		// message, because the peer's send would be flushed otherwise.
		if s != lifeLeaving || l.quiesced.Load() {
			l.fillLast(b)
		}
		return
	}
	l.mine.reach(l.ep.RecvPosted())
	sent := false
	for !b.FullFor(l.isPredictable()) && l.fillSegment(b) {
		sent = true
		if l.single {
			b.LeaveMore()
			break
		}
		if l.life.Load().faulted() {
			break
		}
	}
	if !sent && l.nop.Swap(false) && (l.hasUpdate() || l.mine.unadvertised()) {
		l.putBare(b, vitcpwire.NOP, nil)
		l.count.sentNOPs.Add(1)
	}
}

// isPredictable reports whether the peer can predict the next segment. The peer can if the segment
// belongs to a begun message of known length.
func (l *link) isPredictable() bool {
	t := &l.tx
	return t.active && t.typ == vitcpwire.Write || t.jobOffset > 0
}

// hasUpdate reports whether a NOP would carry a count the peer may wait for. Without flow control
// the peer does not wait for counts of receive descriptors. [V-12]
func (l *link) hasUpdate() bool {
	return l.level == reception && l.acks.pending() || l.flow && l.mine.unadvertised()
}

// fillSegment appends a segment, or returns false if there is nothing to send. If a response and
// another message both wait, their segments alternate. [V-28]
func (l *link) fillSegment(b *frameio.Batch) bool {
	t := &l.tx
	job := l.jobs.Front()
	if job != nil && t.turn {
		t.turn = false
		l.putResponse(b, job)
		return true
	}
	if t.active || l.startMessage(b) {
		t.turn = true
		if t.active {
			l.putData(b)
		}
		return true
	}
	if job != nil {
		l.putResponse(b, job)
		return true
	}
	return false
}

// startMessage begins the message of the next send descriptor. It returns false if there is no
// descriptor, or if the descriptor must wait. An RDMA Read is sent whole, because a Read has a
// single source range.
func (l *link) startMessage(b *frameio.Batch) bool {
	for !l.life.Load().faulted() {
		d := l.ep.NextSend()
		if d == nil || !l.maySend(d) {
			return false
		}
		if !l.started(l.ep.StartSend()) {
			continue
		}
		if !l.tx.active {
			l.putReadRequest(b) // [V-25]
		}
		return true
	}
	return false
}

// started makes d the active message, unless d is an RDMA Read. It returns false if d failed the
// check; d is complete then.
func (l *link) started(d *vi.Descriptor, seq uint64, bad vi.Status) bool {
	op := d.Control.Op()
	if bad == 0 && op == vi.OpRDMARead && l.asked.limit == 0 {
		bad = vi.StatusRDMAProtection // the peer serves no reads [V-26]
	}
	if bad != 0 {
		l.finishSend(d, seq, bad)
		return false
	}
	t := &l.tx
	t.last = t.last.Add(1) // [VIT-3.1-10]
	t.seqOff = seq - uint64(uint32(t.last))
	l.count.sentMessages.Add(1)
	t.typ, t.flags = vitcpwire.Send, 0
	t.d, t.seq, t.cur, t.offset = d, seq, vi.Cursor{}, 0
	if op != vi.OpSendReceive {
		t.typ = vitcpwire.Write
		t.rdma = vitcpwire.RDMA{Address: d.Remote.Address, Handle: uint32(d.Remote.Handle), Length: d.Length} // [V-24] [V-25]
	}
	if d.Control&vi.Immediate != 0 {
		t.flags = vitcpwire.ImmediateValid
	}
	if t.active = op != vi.OpRDMARead; t.active && l.flow && (op == vi.OpSendReceive || d.Control&vi.Immediate != 0) {
		l.credits.take()
	}
	return true
}

// maySend reports whether d may be sent now. A Send, or an RDMA Write with immediate data, waits
// for a receive descriptor of the peer. An RDMA Read waits for the window. All later descriptors
// wait for d. [VIT-3.1-17] [V-20] [V-27]
func (l *link) maySend(d *vi.Descriptor) bool {
	if l.ready(d) {
		return true
	}
	l.blocked.Store(true)
	return l.ready(d) // checked again, because the receive role may have read blocked before it was set
}

func (l *link) ready(d *vi.Descriptor) bool {
	switch op := d.Control.Op(); {
	case op == vi.OpRDMARead:
		return l.asked.limit == 0 || l.asked.outstanding() < int(l.asked.limit)
	case l.flow && (op == vi.OpSendReceive || d.Control&vi.Immediate != 0):
		return l.credits.available() > 0 || deliberate.On("vitcp-credit")
	}
	return true
}

// header sets the fields common to all segments, and counts the segment.
func (l *link) header(h vitcpwire.Header) vitcpwire.Header {
	h.Posted = l.mine.advertise()
	if l.level != unreliable { // [V-10]
		h.Ack = l.acks.acknowledge()
	}
	l.count.sentSegments.Add(1)
	return h
}

// putData appends the next segment of the active message.
func (l *link) putData(b *frameio.Batch) {
	t := &l.tx
	d := t.d
	hl := l.dialect.HeaderLen(t.typ)
	want := int(min(uint32(l.maxSeg-hl), d.Length-t.offset))
	// The header is written last, when the length is known. The batch reserves the room.
	head := b.Header(hl)
	n, bad := 0, vi.Status(0)
	for pieces := b.Pieces(); n < want && pieces > 0; pieces-- {
		m, st := l.ep.Gather(t.held, d, &t.cur, want-n)
		if st != 0 {
			bad = st
			break
		}
		if m.Len() == 0 {
			bad = vi.StatusFormatError // the program has changed the descriptor while it was posted
			break
		}
		ref, st := l.steady(b, regmem.Ref(m))
		if st != 0 {
			bad = st
			break
		}
		n += ref.Len()
		l.put(b, ref)
	}
	l.endSegment(head, n, bad)
}

// endSegment writes the header of the active message's next segment, with n bytes of payload. If
// bad is not 0, the segment ends the message as void.
func (l *link) endSegment(head []byte, n int, bad vi.Status) {
	t := &l.tx
	d := t.d
	h := vitcpwire.Header{Type: t.typ, Flags: t.flags, Length: uint16(len(head) + n), Offset: t.offset, Number: t.last}
	if t.flags&vitcpwire.ImmediateValid != 0 { // the immediate data is in all segments [V-29]
		h.Immediate = d.ImmediateData
	}
	t.offset += uint32(n)
	l.count.sentBytes.Add(uint64(n))
	switch {
	case bad != 0:
		h.Flags |= vitcpwire.EndOfMessage | vitcpwire.TransmitError // [V-30] [VIT-2.2.2.2.5-5]
	case t.offset == d.Length:
		h.Flags |= vitcpwire.EndOfMessage
	}
	l.encode(head, h, t.rdma)
	if h.Flags&vitcpwire.EndOfMessage == 0 {
		return
	}
	t.active, t.d = false, nil
	if bad != 0 {
		l.finishSend(d, t.seq, bad)
		return
	}
	t.whole = t.last
	if l.level != reception {
		l.runs(t.seq)
	}
}

// put appends pinned bytes to the batch; the batch takes the pin over. A pin of unguarded memory
// stays with the batch even if the bytes are copied at once, because the pin also serves further
// bytes of the same region.
func (l *link) put(b *frameio.Batch, ref regmem.Ref) {
	if ref.Pins() && !ref.Guarded() {
		b.Pin(ref)
		l.tx.held = vi.Memory(ref)
		ref = ref.Unpinned()
	}
	b.Data(ref) // fails only for short guarded memory, and steady leaves none
}

// A copiedSegment holds the payload of a segment whose source memory may fault.
type copiedSegment [vitcpwire.MaxSegment]byte

var copiedSegments = sync.Pool{New: func() any { return new(copiedSegment) }}

// steady returns the pinned memory of ref in a form that cannot fault. Memory that may fault is
// copied before the header announces the bytes. Otherwise a fault in the write would leave a part
// of the segment sent, and the stream could not continue. If the consumer has set FaultBreaks, the
// memory is not copied, and only memory with an earlier fault is an error here. [V-30]
func (l *link) steady(b *frameio.Batch, ref regmem.Ref) (regmem.Ref, vi.Status) {
	if !ref.Guarded() {
		return ref, 0
	}
	n := ref.Len()
	if n > frameio.CopyLimit && ref.FaultBreaks() && l.level != unreliable && l.c.InPlace() {
		if ref.Probe() != nil {
			ref.Release()
			return regmem.Ref{}, vi.StatusProtectionError
		}
		return ref, 0
	}
	defer ref.Release()
	p := b.Short()
	if !b.Copies(n) {
		c := copiedSegments.Get().(*copiedSegment)
		l.tx.copied = append(l.tx.copied, c)
		p = c[:]
	}
	p = p[:n]
	if ref.CopyTo(p) != nil {
		return regmem.Ref{}, vi.StatusProtectionError
	}
	return regmem.Of(p), 0
}

// uncopied releases the copies steady has made for a sent batch.
func (t *sender) uncopied() {
	for i, c := range t.copied {
		copiedSegments.Put(c)
		t.copied[i] = nil
	}
	t.copied = t.copied[:0]
}

// runs records descriptor seq, to be completed when the kernel has the batch.
func (l *link) runs(seq uint64) {
	t := &l.tx
	if n := len(t.runs); n > 0 && t.runs[n-1].end == seq {
		t.runs[n-1].end++
		return
	}
	t.runs = append(t.runs, run{seq, seq + 1})
}

// encode writes the headers of a segment into head.
func (l *link) encode(head []byte, h vitcpwire.Header, r vitcpwire.RDMA) {
	out := l.dialect.AppendHeader(head[:0], l.header(h))
	if len(head) > vitcpwire.HeaderLen { // every segment has the RDMA header [V-24]
		r.Append(out)
	}
}

// putReadRequest appends the only segment of an RDMA Read.
func (l *link) putReadRequest(b *frameio.Batch) {
	t := &l.tx
	l.reads.Push(readOut{d: t.d, seq: t.seq, number: t.last})
	l.asked.take()
	t.d = nil
	head := b.Header(l.dialect.HeaderLen(vitcpwire.ReadRequest))
	l.encode(head, vitcpwire.Header{
		Type: vitcpwire.ReadRequest, Flags: vitcpwire.EndOfMessage, Length: uint16(len(head)), Number: t.last,
	}, t.rdma)
	t.whole = t.last
}

// putResponse appends the next segment of the response to a peer's RDMA Read. The memory is checked
// again for each segment, and pinned until the kernel has the bytes.
func (l *link) putResponse(b *frameio.Batch, job *readJob) {
	t := &l.tx
	hl := l.dialect.HeaderLen(vitcpwire.ReadResponse)
	n := min(uint32(l.maxSeg-hl), job.r.Length-t.jobOffset)
	h := vitcpwire.Header{Type: vitcpwire.ReadResponse, Offset: t.jobOffset, Number: job.number} // [VIT-3.1-12]
	bad := job.refused
	head := b.Header(hl)
	var ref regmem.Ref
	if !bad && n > 0 {
		var st vi.Status
		m, ok := l.ep.Target(t.held, vi.MemHandle(job.r.Handle), job.r.Address+uint64(t.jobOffset), uint64(n), false) // [VIT-2.2.2.2.6-1] [V-42]
		if ok {
			ref, st = l.steady(b, regmem.Ref(m))
		}
		if bad = !ok || st != 0; bad {
			l.ep.AsyncError(vi.ErrorRDMARProt, vi.OpRDMARead)
		}
	}
	if bad {
		l.refuseRead(head, h, job)
		return
	}
	if n > 0 {
		l.put(b, ref) // [VIT-2.2.2.2.6-1]
	}
	t.jobOffset += n
	l.count.sentBytes.Add(uint64(n))
	h.Length = uint16(hl + int(n))
	if t.jobOffset == job.r.Length {
		h.Flags = vitcpwire.EndOfMessage
		t.jobOffset = 0
	}
	l.encode(head, h, job.r) // [V-23]
	if h.Flags != 0 {
		// The peer may send the next Read Request as soon as it has received the segment.
		l.jobs.Pop()
		l.served.done()
		l.count.servedReads.Add(1)
	}
}

// refuseRead ends a response with the Transmit Error flag, so that a peer at Reliable Delivery
// learns of the failed Read. At Reliable Reception the error code reports the failure as well. In
// both cases the connection breaks. [V-30] [V-42]
func (l *link) refuseRead(head []byte, h vitcpwire.Header, job *readJob) {
	h.Length = uint16(len(head))
	h.Flags = vitcpwire.EndOfMessage | vitcpwire.TransmitError
	h = l.header(h)
	if l.level == reception {
		h.Ack, h.Error = job.number, vitcpwire.MakeRemoteError(vitcpwire.ProtectionError, 0)
	}
	out := l.dialect.AppendHeader(head[:0], h)
	if len(head) > vitcpwire.HeaderLen {
		job.r.Append(out)
	}
	l.die(fmt.Errorf("vitcp: RDMA Read %d of the peer: memory is not to be read", uint32(job.number)), nil, nil)
}

// putBare appends a separate message, a segment without payload. The message consumes no descriptor
// of the peer. [V-22] An error code always comes with the number of the failed message.
// [VIT-3.1-ERR-2]
func (l *link) putBare(b *frameio.Batch, typ vitcpwire.Type, f *fault) {
	h := f.report(l.header(vitcpwire.Header{Type: typ, Flags: vitcpwire.EndOfMessage,
		Length: vitcpwire.HeaderLen, Number: l.tx.last}))
	l.dialect.AppendHeader(b.Header(vitcpwire.HeaderLen)[:0], h)
}

// finishSend completes a locally failed descriptor with status bad. At the reliable levels the
// failure breaks the connection.
func (l *link) finishSend(d *vi.Descriptor, seq uint64, bad vi.Status) {
	if l.ep.FinishSend(d, seq, bad) {
		l.die(fmt.Errorf("vitcp: send descriptor in error: %w", (bad|vi.StatusDone).Err()), nil, nil)
	}
}

// fillLast appends the last segments of an ending connection, once. It ends a begun message as
// void, reports the local error or Disconnect to the peer, and then ends the sending direction. The
// consumer's memory is not accessed. Only the send role may end the direction. If another goroutine
// ended the direction between the role's last search for work and last check, the report would be
// lost.
func (l *link) fillLast(b *frameio.Batch) {
	t := &l.tx
	if t.ended {
		return
	}
	t.ended = true
	defer l.c.Shutdown()
	f := l.fault.Load()
	torn := t.active && t.offset > 0
	if torn {
		// No other message may come between the segments of the begun message, so its last segment
		// carries the report. [V-30]
		head := b.Header(l.dialect.HeaderLen(t.typ))
		h := f.report(l.header(vitcpwire.Header{
			Type: t.typ, Flags: vitcpwire.EndOfMessage | vitcpwire.TransmitError,
			Length: uint16(len(head)), Offset: t.offset, Number: t.last,
		}))
		out := l.dialect.AppendHeader(head[:0], h)
		if len(head) > vitcpwire.HeaderLen {
			t.rdma.Append(out)
		}
		return
	}
	switch {
	case f != nil:
		l.putBare(b, vitcpwire.NOP, f)
	case l.terms.disconnect && l.life.Load() == lifeLeaving:
		l.putBare(b, vitcpwire.Disconnect, nil) // [V-17]
	case l.level == reception && l.acks.pending():
		l.putBare(b, vitcpwire.NOP, nil)
	}
}

// Sent implements frameio.Protocol. The kernel has the batch, so the Sends and RDMA Writes
// complete, except at Reliable Reception.
func (l *link) Sent() {
	t := &l.tx
	t.uncopied()
	if len(t.runs) == 0 {
		return
	}
	broken := false
	if !l.life.Load().stopped() {
		for _, r := range t.runs {
			broken = l.ep.FinishSends(r.first, r.end) // [V-10] [VIT-2.2.2.2.5-1]
		}
	}
	t.runs = t.runs[:0]
	if broken {
		l.die(fmt.Errorf("vitcp: a send descriptor is in error"), nil, nil)
	}
}
