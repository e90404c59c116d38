package vitcp

import (
	"errors"
	"fmt"

	"viaduct/internal/regmem"
	"viaduct/vi"
	"viaduct/vitcp/vitcpwire"
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

	in inbound

	refs    []regmem.Ref // pinned between Direct and DirectDone
	discard []byte       // where bytes go that nobody wants
}

// inbound is the Send or RDMA Write being taken.
type inbound struct {
	d    *vi.Descriptor // receive descriptor that was started; nil if none was
	seq  uint64
	cur  vi.Cursor
	rdma vitcpwire.RDMA
	drop bool // the message's bytes are not wanted any more

	// bad is the error of an RDMA Write at Unreliable Delivery, whose
	// consequence depends on its last segment.
	bad vi.Status
}

// Receive implements frameio.Protocol.
func (l *link) Receive(p []byte, mayDirect bool) (n, direct int, err error) {
	x := &l.rx
	for !l.dying.Load() && !l.stopped.Load() && !x.deaf {
		rest := p[n:]
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
		n += hl + len(body)
		if !whole {
			x.missing = payload - len(body)
			return n, x.missing, nil
		}
		if err := l.segmentDone(); err != nil {
			return n, 0, err
		}
	}
	if l.dying.Load() || l.stopped.Load() {
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
// nothing, or a millisecond passes, and then it goes by itself. [V-12] [V-21]
func (l *link) Drained() {
	x := &l.rx
	if l.dying.Load() || l.stopped.Load() {
		return
	}
	if x.fresh && l.c.Polled() {
		x.fresh = false
		if l.hasNews() {
			l.tellSoon()
		}
		return
	}
	x.fresh = false
	if l.hasNews() {
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
	if l.dying.Load() {
		return nil
	}
	switch h.Type {
	case vitcpwire.NOP: // [VIT-3.1-NOP-1]
		return nil
	case vitcpwire.Disconnect:
		if !l.terms.disconnect {
			return framingf("%v without having been agreed on", h.Type)
		}
		l.left.Store(true)
		return nil
	case vitcpwire.Send, vitcpwire.Write, vitcpwire.ReadRequest, vitcpwire.ReadResponse:
	default:
		return framingf("%v on an established connection", h.Type)
	}
	read := l.reads.front()
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

// acknowledged takes Message ACK and Remote Error Code. An acknowledgement
// covers all messages up to its number; one outside of what was sent is no
// news. [VIT-3.1-ACK-4] [VIT-3.1-ERR-4] [V-11]
func (l *link) acknowledged() {
	x := &l.rx
	n, code := x.h.Ack, x.h.Error.VI()
	good := n
	if code != vitcpwire.NoError {
		good = n.Add(-1) // those before the one in error
	}
	if x.acked.Less(good) && !vitcpwire.Number(l.whole.Load()).Less(good) {
		l.complete(good)
	}
	if code == vitcpwire.NoError || !x.acked.Less(n) || vitcpwire.Number(l.begun.Load()).Less(n) {
		return
	}
	st := vi.StatusRDMAProtection
	if code != vitcpwire.ProtectionError {
		st = vi.StatusRemoteDescriptor
	}
	l.p.count.remoteErrors.Add(1)
	seq := l.sequence(n)
	l.die(&RemoteError{Code: x.h.Error, Number: uint32(n)}, nil, func() { l.ep.FailSend(seq, st) })
}

// sequence is the number of the send descriptor of message n: both rise by
// one, at a reliable level.
func (l *link) sequence(n vitcpwire.Number) uint64 {
	off := l.seqOff.Load()
	// Message numbers wrap, sequence numbers do not: n is the one that is
	// at most 2^31 behind the message begun last.
	last := vitcpwire.Number(l.begun.Load())
	return off + uint64(uint32(last)) - uint64(last.Sub(n))
}

// complete completes the Sends and RDMA Writes up to message n. RDMA Reads
// among them wait for their responses. [VIT-3.1-ACK-5]
func (l *link) complete(n vitcpwire.Number) {
	x := &l.rx
	first, end := l.sequence(x.acked.Add(1)), l.sequence(n)+1
	x.acked = n
	broken := false
	for i := range l.reads.len() {
		if r := l.reads.at(i); r.seq >= first && r.seq < end {
			if r.seq > first {
				broken = l.ep.FinishSends(first, r.seq)
			}
			first = r.seq + 1
		}
	}
	if first < end {
		broken = l.ep.FinishSends(first, end)
	}
	if broken {
		l.die(errors.New("vitcp: a send descriptor is in error"), nil, nil)
	}
}

// openSend begins to take a Send: it uses a receive descriptor.
func (l *link) openSend() error {
	l.rx.in = inbound{}
	if l.flow && !l.mine.consume() { // [V-20]
		return framingf("Send %d without a credit", uint32(l.rx.h.Number))
	}
	l.takeDescriptor(false)
	return nil
}

// takeDescriptor starts the next receive descriptor for the message being
// taken. If there is none, or it is in error, the message is dropped and at
// the reliable levels the connection ends. [V-19]
func (l *link) takeDescriptor(remoteWrite bool) bool {
	in := &l.rx.in
	d, seq, bad, ok := l.ep.StartRecv()
	if !ok {
		in.drop = true
		op := vi.OpSendReceive
		if remoteWrite {
			op = vi.OpRDMAWrite
		}
		l.ep.AsyncError(vi.ErrorRecvQEmpty, op)
		l.refuse(vitcpwire.DescriptorError, errors.New("vitcp: message without a receive descriptor"))
		return false
	}
	in.d, in.seq = d, seq
	if bad != 0 {
		l.failReceive(bad, vitcpwire.DescriptorError)
		return false
	}
	return true
}

// failReceive completes the receive descriptor in use with error bits; what
// else comes of its message is dropped.
func (l *link) failReceive(bad vi.Status, code uint8) {
	x := &l.rx
	in := &x.in
	in.drop = true
	d := in.d
	in.d = nil
	l.ep.FinishRecv(d, in.seq, vi.Delivery{
		Length: x.at, Status: bad, RemoteWrite: x.h.Type == vitcpwire.Write,
	})
	l.refuse(code, fmt.Errorf("vitcp: receive descriptor in error: %w", (bad|vi.StatusDone|vi.StatusOpReceive).Err()))
}

// refuse ends the connection at the reliable levels, after a report on the
// message being taken. At Unreliable Delivery the message is dropped and
// nothing else happens. [V-13] [V-44]
func (l *link) refuse(code uint8, cause error) {
	bump(&l.count.droppedMessages, 1)
	if l.level != unreliable {
		l.die(cause, &fault{number: l.rx.h.Number, code: code}, nil)
	}
}

// openWrite begins to take an RDMA Write: the whole of its range is checked
// before the first byte is placed. [V-42] [VIT-2.2.2.2.2-6]
func (l *link) openWrite() error {
	in := &l.rx.in
	if in.rdma.Length > l.terms.mtu { // [V-14]
		l.failWrite(vi.StatusLengthError, vi.ErrorRDMAWAbort, vitcpwire.DescriptorError)
	} else if in.rdma.Length > 0 && l.ep.CheckTarget(vi.MemHandle(in.rdma.Handle), in.rdma.Address, uint64(in.rdma.Length), true) != regmem.OK {
		l.failWrite(vi.StatusRDMAProtection, vi.ErrorRDMAWProt, vitcpwire.ProtectionError)
	}
	return nil
}

// failWrite drops the RDMA Write being taken. If it has immediate data the
// error goes into a receive descriptor, else it is an asynchronous one. At
// Unreliable Delivery that is known with the last segment only.
func (l *link) failWrite(bad vi.Status, async vi.ErrorCode, code uint8) {
	in := &l.rx.in
	in.drop = true
	if l.level == unreliable {
		in.bad = bad
		if l.rx.h.Flags&vitcpwire.EndOfMessage == 0 {
			return
		}
	}
	if l.rx.h.Flags&vitcpwire.ImmediateValid != 0 {
		if l.flow && !l.mine.consume() {
			l.violated(framingf("RDMA Write %d without a credit", uint32(l.rx.h.Number)))
			return
		}
		in.bad = 0
		if l.takeDescriptor(true) {
			l.failReceive(bad, code)
		}
		return
	}
	in.bad = 0
	l.ep.AsyncError(async, vi.OpRDMAWrite)
	l.refuse(code, fmt.Errorf("vitcp: RDMA Write %d of the peer: %v", uint32(l.rx.h.Number), async))
}

// openRead takes an RDMA Read Request. [V-26] [V-42]
func (l *link) openRead(r vitcpwire.RDMA) error {
	if !l.served.take() {
		return framingf("RDMA Read Request %d beyond the window of %d", uint32(l.rx.h.Number), l.served.limit)
	}
	job := readJob{r: r, number: l.rx.h.Number}
	if r.Length > l.terms.mtu ||
		r.Length > 0 && l.ep.CheckTarget(vi.MemHandle(r.Handle), r.Address, uint64(r.Length), false) != regmem.OK {
		l.ep.AsyncError(vi.ErrorRDMARProt, vi.OpRDMARead)
		// The reads before it are answered first; the send role ends the
		// connection when it comes to this one.
		job.refused = true
		l.rx.deaf = true
	}
	l.jobs.push(job)
	l.rx.kick = true
	return nil
}

// place puts the next payload bytes of the segment where they belong.
func (l *link) place(p []byte) error {
	x := &l.rx
	for len(p) > 0 && !l.dying.Load() {
		ref, err := l.target(len(p), &x.in.cur, x.at)
		if err != nil {
			return err
		}
		if len(ref.B) == 0 {
			break // nobody wants them
		}
		n := len(ref.B)
		err = regmem.Copy(ref.B, p[:n], ref.Guarded())
		ref.Release()
		if err != nil {
			l.faulted()
			break
		}
		p = p[n:]
		x.at += uint32(n)
	}
	x.at += uint32(len(p))
	return nil
}

// target pins, by handle and address, where the next bytes of the message go:
// registered memory or nothing [VIT-2.2.2.1-3]; at most n bytes at
// offset at. An empty Ref means that they are not wanted. cur is that of a
// Send; a response has its own.
func (l *link) target(n int, cur *vi.Cursor, at uint32) (regmem.Ref, error) {
	x := &l.rx
	in := &x.in
	switch x.h.Type {
	case vitcpwire.Send:
		if in.drop {
			return regmem.Ref{}, nil
		}
		if uint64(at)+uint64(n) > uint64(l.terms.mtu) { // [V-14]
			l.failReceive(vi.StatusLengthError, vitcpwire.DescriptorError)
			return regmem.Ref{}, nil
		}
		ref, bad := l.ep.Scatter(in.d, cur, n)
		if bad == 0 && len(ref.B) == 0 {
			bad = vi.StatusLengthError // longer than the buffers
		}
		if bad != 0 {
			l.failReceive(bad, vitcpwire.DescriptorError)
		}
		return ref, nil
	case vitcpwire.Write:
		if in.drop {
			return regmem.Ref{}, nil
		}
		ref, out := l.ep.Target(vi.MemHandle(in.rdma.Handle), in.rdma.Address+uint64(at), uint64(n), true)
		if out != regmem.OK { // deregistered since
			l.failWrite(vi.StatusRDMAProtection, vi.ErrorRDMAWProt, vitcpwire.ProtectionError)
		}
		return ref, nil
	case vitcpwire.ReadResponse:
		read := l.reads.front()
		if cur == &in.cur {
			cur = &read.cur
		}
		ref, bad := l.ep.Scatter(read.d, cur, n)
		if bad == 0 && len(ref.B) == 0 {
			bad = vi.StatusFormatError // the descriptor was changed under us
		}
		if bad != 0 {
			l.failRead(bad)
		}
		return ref, nil
	}
	return regmem.Ref{}, nil // payload that means nothing
}

// faulted is what a memory fault amounts to for the message being taken.
func (l *link) faulted() {
	switch l.rx.h.Type {
	case vitcpwire.Send:
		l.failReceive(vi.StatusProtectionError, vitcpwire.DescriptorError)
	case vitcpwire.Write:
		l.failWrite(vi.StatusRDMAProtection, vi.ErrorRDMAWProt, vitcpwire.ProtectionError)
	case vitcpwire.ReadResponse:
		l.failRead(vi.StatusProtectionError)
	}
}

// failRead completes the oldest RDMA Read in error, which breaks the
// connection.
func (l *link) failRead(bad vi.Status) {
	r := *l.reads.front()
	l.reads.pop()
	l.asked.done()
	l.ep.FinishSend(r.d, r.seq, bad)
	l.die(fmt.Errorf("vitcp: RDMA Read %d: %w", uint32(r.number), (bad|vi.StatusDone|vi.StatusOpRDMARead).Err()), nil, nil)
}

// segmentDone concludes a segment all of whose bytes are in place, and with
// its last one the message.
func (l *link) segmentDone() error {
	x := &l.rx
	bump(&l.count.receivedBytes, uint64(x.payload))
	if x.h.Flags&vitcpwire.EndOfMessage == 0 || l.dying.Load() {
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
		read := l.reads.front()
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
// its bytes are in place and its completion made. [VIT-3.1-ACK-2]
func (l *link) received(payload uint32) {
	if l.dying.Load() {
		return
	}
	l.rx.fresh = true
	bump(&l.count.receivedMessages, 1)
	l.acks.received(l.rx.h.Number, int(payload))
}

func (l *link) endSend(void bool) {
	x := &l.rx
	in := &x.in
	if in.drop {
		return
	}
	if void { // [V-30] [VIT-3.1-6]
		l.failReceive(vi.StatusPartialError, vitcpwire.DescriptorError)
		return
	}
	d := in.d
	in.d = nil
	r := vi.Delivery{Length: x.at, Immediate: x.h.Flags&vitcpwire.ImmediateValid != 0, Data: x.h.Immediate}
	l.finishReceive(d, r)
	l.received(x.at)
}

func (l *link) finishReceive(d *vi.Descriptor, r vi.Delivery) {
	if l.ep.FinishRecv(d, l.rx.in.seq, r) {
		l.die(errors.New("vitcp: a receive descriptor is in error"), nil, nil)
	}
}

// endWrite completes an RDMA Write; with immediate data that uses a receive
// descriptor, whose segments stay untouched. The last segment decides.
// [V-29]
func (l *link) endWrite(void bool) error {
	x := &l.rx
	in := &x.in
	if in.drop {
		if in.bad != 0 {
			l.failWrite(in.bad, asyncOf(in.bad), 0)
		}
		return nil
	}
	if void {
		l.failWrite(vi.StatusPartialError, vi.ErrorRDMAWAbort, vitcpwire.DescriptorError)
		return nil
	}
	if x.h.Flags&vitcpwire.ImmediateValid != 0 {
		if l.flow && !l.mine.consume() { // [V-20]
			return framingf("RDMA Write %d without a credit", uint32(x.h.Number))
		}
		if !l.takeDescriptor(true) {
			return nil
		}
		d := in.d
		in.d = nil
		l.finishReceive(d, vi.Delivery{Length: in.rdma.Length, Immediate: true, Data: x.h.Immediate, RemoteWrite: true})
	}
	l.received(x.at)
	return nil
}

// asyncOf is the asynchronous error for an RDMA Write without immediate data.
func asyncOf(bad vi.Status) vi.ErrorCode {
	if bad == vi.StatusRDMAProtection {
		return vi.ErrorRDMAWProt
	}
	return vi.ErrorRDMAWAbort
}

// endRead completes the oldest RDMA Read.
func (l *link) endRead() {
	r := *l.reads.front()
	l.reads.pop()
	l.asked.done()
	l.rx.fresh = true
	if l.ep.FinishSend(r.d, r.seq, 0) {
		l.die(errors.New("vitcp: a send descriptor is in error"), nil, nil)
		return
	}
	if l.blocked.Load() || l.ep.Fenced() {
		l.wake()
	}
}

// Direct implements frameio.Protocol.
func (l *link) Direct(iov [][]byte) ([][]byte, error) {
	x := &l.rx
	n := x.missing
	cur := x.in.cur
	if !l.wanted() {
		return l.throwAway(iov), nil
	}
	if x.h.Type == vitcpwire.ReadResponse {
		cur = l.reads.front().cur
	}
	at := x.at
	for n > 0 {
		ref, err := l.target(n, &cur, at)
		if err != nil || len(ref.B) == 0 {
			// Not wanted any more: from here on to the bin.
			l.releaseDirect()
			return l.throwAway(iov[:0]), err
		}
		x.refs = append(x.refs, ref)
		iov = append(iov, ref.B)
		n -= len(ref.B)
		at += uint32(len(ref.B))
	}
	return iov, nil
}

// wanted reports whether the bytes of the segment have a place.
func (l *link) wanted() bool {
	if l.dying.Load() || l.stopped.Load() {
		return false
	}
	switch l.rx.h.Type {
	case vitcpwire.Send, vitcpwire.Write:
		return !l.rx.in.drop
	case vitcpwire.ReadResponse:
		return true
	}
	return false
}

// throwAway gives the missing bytes of a segment a place where they harm
// nobody.
func (l *link) throwAway(iov [][]byte) [][]byte {
	x := &l.rx
	if x.discard == nil {
		x.discard = make([]byte, vitcpwire.MaxSegment)
	}
	return append(iov, x.discard[:x.missing])
}

func (l *link) releaseDirect() {
	x := &l.rx
	for i := range x.refs {
		x.refs[i].Release()
		x.refs[i] = regmem.Ref{}
	}
	x.refs = x.refs[:0]
}

// DirectDone implements frameio.Protocol.
func (l *link) DirectDone(n int) error {
	x := &l.rx
	thrown := len(x.refs) == 0
	l.releaseDirect()
	x.missing -= n
	if l.dying.Load() || l.stopped.Load() {
		return nil
	}
	if thrown {
		x.at += uint32(n)
	} else {
		l.skip(n)
	}
	if x.missing > 0 {
		return nil
	}
	x.discard = nil
	if err := l.segmentDone(); err != nil {
		return err
	}
	l.nudge()
	return nil
}

// skip moves the place of the next byte n bytes on.
func (l *link) skip(n int) {
	x := &l.rx
	if x.h.Type == vitcpwire.Write {
		x.at += uint32(n)
		return
	}
	for n > 0 && !l.dying.Load() {
		ref, err := l.target(n, &x.in.cur, x.at)
		if err != nil || len(ref.B) == 0 {
			return
		}
		n -= len(ref.B)
		x.at += uint32(len(ref.B))
		ref.Release()
	}
}

// tornMessage completes what a message that never ended leaves behind. It
// runs after the stream has failed, when no role is active. [VIA 4.6]
func (l *link) tornMessage() {
	x := &l.rx
	if !x.asm.data.active || x.in.drop {
		return
	}
	switch in := &x.in; {
	case in.d != nil:
		d := in.d
		in.d = nil
		l.ep.FinishRecv(d, in.seq, vi.Delivery{Length: x.at, Status: vi.StatusPartialError})
	case x.asm.data.typ == vitcpwire.Write && x.h.Flags&vitcpwire.ImmediateValid == 0:
		l.ep.AsyncError(vi.ErrorRDMAWAbort, vi.OpRDMAWrite)
	case x.asm.data.typ == vitcpwire.Write:
		if d, seq, bad, ok := l.ep.StartRecv(); ok {
			l.ep.FinishRecv(d, seq, vi.Delivery{Length: x.at, Status: bad | vi.StatusPartialError, RemoteWrite: true})
		}
	}
}
