package vitcp

import (
	"errors"
	"fmt"

	"viaduct/internal/regmem"
	"viaduct/internal/wire/vitcpwire"
	"viaduct/vi"
)

// A messageType has the steps to handle messages of a type. The steps are the same for a segment
// staged whole, read into place in pieces, or predicted.
type messageType struct {
	// begin checks a segment before its first byte is placed. first means that the segment begins a
	// message. The error is a *ProtocolError.
	begin func(l *link, first bool) error

	// target pins the memory for the message's payload at offset at, n bytes at most. It returns
	// the zero Memory if the bytes must be dropped. Memory in the region pinned by held is not
	// pinned again. A type without target ignores its payload.
	target func(l *link, held vi.Memory, at uint32, n int) vi.Memory

	// end handles a message whose bytes are all in place. void means that the sender aborted the
	// message. A type without end is a control segment and not a message. The error is a
	// *ProtocolError.
	end func(l *link, void bool) error

	// fail handles a memory fault while payload is placed. A type without target has no fail.
	fail func(l *link)
}

// messageTypes has a row for each type. A segment whose type has no row violates the protocol on an
// established connection.
var messageTypes = [32]messageType{
	vitcpwire.NOP:          {begin: func(*link, bool) error { return nil }}, // [VIT-3.1-NOP-1]
	vitcpwire.Disconnect:   {begin: (*link).beginDisconnect},
	vitcpwire.Send:         {(*link).beginSend, (*link).sendTarget, (*link).endSend, (*link).failSend},
	vitcpwire.Write:        {(*link).beginWrite, (*link).writeTarget, (*link).endWrite, (*link).faultWrite},
	vitcpwire.ReadRequest:  {begin: (*link).beginReadRequest, end: (*link).endReadRequest},
	vitcpwire.ReadResponse: {(*link).beginResponse, (*link).responseTarget, (*link).endResponse, (*link).failResponse},
}

// An inbound is the current incoming Send or RDMA Write.
type inbound struct {
	d    *vi.Descriptor // receive descriptor that was started; nil if none was
	seq  uint64
	rdma vitcpwire.RDMA
	drop bool // the rest of the message is dropped

	// bad is the error of an RDMA Write at Unreliable Delivery, or 0. Only the last segment shows
	// whether the error goes into a receive descriptor or to the error handler.
	bad vi.Status
}

func (l *link) beginDisconnect(bool) error {
	if !l.terms.disconnect {
		return framingf("%v without having been agreed on", vitcpwire.Disconnect)
	}
	lifeTable.Move(&l.life, lifeDisconnected)
	return nil
}

// beginSend starts to receive a Send, and starts the Send's receive descriptor.
func (l *link) beginSend(first bool) error {
	if !first {
		return nil
	}
	l.rx.in = inbound{}
	if l.flow && !l.mine.consume() { // [V-20]
		return framingf("Send %d without a credit", uint32(l.rx.h.Number))
	}
	l.takeDescriptor(false)
	return nil
}

func (l *link) sendTarget(held vi.Memory, at uint32, n int) vi.Memory {
	in := &l.rx.in
	if in.drop {
		return vi.Memory{}
	}
	if uint64(at)+uint64(n) > uint64(l.terms.mtu) { // [V-14]
		l.failReceive(vi.StatusLengthError, vitcpwire.DescriptorError)
		return vi.Memory{}
	}
	ref, bad := l.scatter(held, in.d, at, n)
	if bad == 0 && ref.Len() == 0 {
		bad = vi.StatusLengthError // the message is longer than the receive's segments [VIA-4.1-2] [VIA-4.6-5]
	}
	if bad != 0 { // [VIA-4.6-7]
		l.failReceive(bad, vitcpwire.DescriptorError)
	}
	return ref
}

// scatter pins memory of d's segments from offset at on, n bytes at most and within one segment.
// The result is empty if the segments end before at. [VIT-2.2.2.1-3]
func (l *link) scatter(held vi.Memory, d *vi.Descriptor, at uint32, n int) (vi.Memory, vi.Status) {
	var cur vi.Cursor
	cur.Skip(d, uint64(at))
	return l.ep.Scatter(held, d, &cur, n)
}

func (l *link) failSend() { l.failReceive(vi.StatusProtectionError, vitcpwire.DescriptorError) }

func (l *link) endSend(void bool) error {
	x := &l.rx
	in := &x.in
	if in.drop {
		return nil
	}
	if void { // [V-30] [VIT-3.1-6] [VIA-4.6-12]
		l.failReceive(vi.StatusPartialError, vitcpwire.DescriptorError)
		return nil
	}
	n := x.length()
	if x.h.Offset > 0 {
		x.lastSend = n
	}
	d := in.d
	in.d = nil
	l.finishReceive(d, vi.Delivery{Length: n, Immediate: x.h.Flags&vitcpwire.ImmediateValid != 0, Data: x.h.Immediate})
	l.received(n)
	return nil
}

// beginWrite starts to receive an RDMA Write, and checks the whole range before the first byte is
// placed. A failed check drops the Write. [V-42] [VIT-2.2.2.2.2-6]
func (l *link) beginWrite(first bool) error {
	x := &l.rx
	in := &x.in
	if first {
		*in = inbound{rdma: x.r}
	} else if x.r != in.rdma { // [V-24]
		return framingf("RDMA header of message %d changes", uint32(x.h.Number))
	}
	switch {
	case uint64(x.h.Offset)+uint64(x.payload) > uint64(in.rdma.Length):
		return framingf("RDMA Write %d has more than its %d bytes", uint32(x.h.Number), in.rdma.Length)
	case !first:
	case in.rdma.Length > l.terms.mtu: // [V-14]
		l.failWrite(vi.StatusLengthError, vi.ErrorRDMAWAbort, vitcpwire.DescriptorError)
	case in.rdma.Length == 0:
	case x.payload == int(in.rdma.Length):
		l.hold(regmem.Ref(l.writeTarget(vi.Memory(x.Held()), 0, x.payload)))
	case !l.ep.CheckTarget(vi.MemHandle(in.rdma.Handle), in.rdma.Address, uint64(in.rdma.Length), true):
		l.faultWrite()
	}
	return nil
}

// hold records m, the memory of the whole new message, and passes the pin to the placer. If the
// placer cannot keep the pin, hold releases it and records nothing.
func (l *link) hold(m regmem.Ref) {
	if x := &l.rx; !m.Pins() || x.Hold(m) {
		x.all = m.B()
	} else {
		m.Release()
	}
}

func (l *link) writeTarget(held vi.Memory, at uint32, n int) vi.Memory {
	in := &l.rx.in
	if in.drop {
		return vi.Memory{}
	}
	ref, ok := l.ep.Target(held, vi.MemHandle(in.rdma.Handle), in.rdma.Address+uint64(at), uint64(n), true) // [VIT-2.2.2.1-3] [VIA-4.2-1]
	if !ok {                                                                                                // the region was deregistered in the meantime [V-42]
		l.faultWrite()
	}
	return ref
}

func (l *link) faultWrite() {
	l.failWrite(vi.StatusRDMAProtection, vi.ErrorRDMAWProt, vitcpwire.ProtectionError)
}

// endWrite completes an RDMA Write. With immediate data the Write consumes a receive descriptor
// without access to the descriptor's segments. The last segment decides whether there is immediate
// data. [V-29]
func (l *link) endWrite(void bool) error {
	x := &l.rx
	in := &x.in
	if !void && x.length() != in.rdma.Length { // [V-24]
		return framingf("RDMA Write %d ends after %d of %d bytes", uint32(x.h.Number), x.length(), in.rdma.Length)
	}
	if in.drop {
		if in.bad != 0 {
			l.failWrite(in.bad, asyncOf(in.bad), 0)
		}
		return nil
	}
	if void {
		l.failWrite(vi.StatusPartialError, vi.ErrorRDMAWAbort, vitcpwire.DescriptorError) // [VIA-4.6-11] [VIA-5.2-7]
		return nil
	}
	if x.h.Flags&vitcpwire.ImmediateValid != 0 { // [VIA-4.2-2]
		if l.flow && !l.mine.consume() { // [V-20]
			return framingf("RDMA Write %d without a credit", uint32(x.h.Number))
		}
		if !l.takeDescriptor(true) { // [VIA-4.6-18]
			return nil
		}
		d := in.d
		in.d = nil
		l.finishReceive(d, vi.Delivery{Length: in.rdma.Length, Immediate: true, Data: x.h.Immediate, RemoteWrite: true}) // [VIA-4.2-3] [VIA-4.2-4]
	}
	l.received(x.length())
	return nil
}

// failWrite drops the rest of the current RDMA Write. If the Write has immediate data, the error
// goes into a receive descriptor; otherwise it is asynchronous. At Unreliable Delivery only the
// last segment shows whether there is immediate data; until then the error waits in the field bad.
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
			l.failReceive(bad, code) // [VIA-4.6-9] [VIA-5.2-10]
		}
		return
	}
	in.bad = 0
	l.ep.AsyncError(async, vi.OpRDMAWrite) // [VIA-4.6-8] [VIA-5.2-6]
	l.refuse(code, fmt.Errorf("vitcp: RDMA Write %d of the peer: %v", uint32(l.rx.h.Number), async))
}

// asyncOf returns the asynchronous error for status bad of an RDMA Write without immediate data.
func asyncOf(bad vi.Status) vi.ErrorCode {
	if bad == vi.StatusRDMAProtection {
		return vi.ErrorRDMAWProt
	}
	return vi.ErrorRDMAWAbort
}

// takeDescriptor starts the next receive descriptor for the current message. It returns false if
// there is none, or a descriptor in error. The message is dropped then, and at the reliable levels
// the connection ends. [V-19]
func (l *link) takeDescriptor(remoteWrite bool) bool {
	in := &l.rx.in
	d, seq, held, bad, ok := l.ep.StartRecvHeld()
	if !ok {
		in.drop = true
		op := vi.OpSendReceive
		if remoteWrite {
			op = vi.OpRDMAWrite
		}
		l.ep.AsyncError(vi.ErrorRecvQEmpty, op) // [VIA-4.6-4] [VIA-5.2-4]
		l.refuse(vitcpwire.DescriptorError, errors.New("vitcp: message without a receive descriptor"))
		return false
	}
	in.d, in.seq = d, seq
	if remoteWrite { // an RDMA Write does not access its segments
		held.Release()
	} else {
		l.hold(regmem.Ref(held))
	}
	if bad != 0 {
		l.failReceive(bad, vitcpwire.DescriptorError)
		return false
	}
	return true
}

func (l *link) finishReceive(d *vi.Descriptor, r vi.Delivery) {
	if l.ep.FinishRecv(d, l.rx.in.seq, r) {
		l.die(errors.New("vitcp: a receive descriptor is in error"), nil, nil)
	}
}

// failReceive completes the current receive descriptor with error bits, and refuses the message.
// code is the error code for the peer.
func (l *link) failReceive(bad vi.Status, code uint8) {
	x := &l.rx
	in := &x.in
	in.drop = true
	d := in.d
	in.d = nil
	l.ep.FinishRecv(d, in.seq, vi.Delivery{
		Length: x.taken(), Status: bad, RemoteWrite: x.h.Type == vitcpwire.Write,
	})
	l.refuse(code, fmt.Errorf("vitcp: receive descriptor in error: %w", (bad|vi.StatusDone|vi.StatusOpReceive).Err()))
}

// refuse drops the current message. At the reliable levels refuse also ends the connection, and at
// Reliable Reception reports the message to the peer with the given code. [V-13] [V-44]
func (l *link) refuse(code uint8, cause error) {
	l.count.droppedMessages.Add(1)
	if l.level != unreliable { // [VIA-4.5-2] [VIA-4.5-3] [VIA-8.3-10]
		l.die(cause, &fault{number: l.rx.h.Number, code: code}, nil)
	}
}

// beginReadRequest queues an RDMA Read of the peer for the send role. A Read of memory that the
// peer may not read, or beyond the MTU, is queued as refused; see readJob. [V-26] [V-42]
func (l *link) beginReadRequest(bool) error {
	x := &l.rx
	if x.h.Flags&vitcpwire.EndOfMessage == 0 || x.payload != 0 { // [V-09]
		return framingf("RDMA Read Request %d of more than one segment, or with payload", uint32(x.h.Number))
	}
	if !l.served.take() {
		return framingf("RDMA Read Request %d beyond the window of %d", uint32(x.h.Number), l.served.limit)
	}
	r := x.r
	job := readJob{r: r, number: x.h.Number}
	if r.Length > l.terms.mtu ||
		r.Length > 0 && !l.ep.CheckTarget(vi.MemHandle(r.Handle), r.Address, uint64(r.Length), false) {
		l.ep.AsyncError(vi.ErrorRDMARProt, vi.OpRDMARead) // [VIA-4.6-14] [VIA-5.2-8]
		// Earlier Reads are answered before the refused Read. The send role ends the connection
		// when it reaches the refused Read.
		job.refused = true
		x.deaf = true
	}
	l.jobs.Push(job)
	x.kick = true
	return nil
}

func (l *link) endReadRequest(bool) error {
	if !l.rx.deaf {
		l.received(0)
	}
	return nil
}

func (l *link) beginResponse(bool) error {
	x := &l.rx
	if n := l.reads.Front().d.Length; uint64(x.h.Offset)+uint64(x.payload) > uint64(n) {
		return framingf("RDMA Read Response %d has more than the %d bytes asked for", uint32(x.h.Number), n)
	}
	return nil
}

func (l *link) responseTarget(held vi.Memory, at uint32, n int) vi.Memory {
	ref, bad := l.scatter(held, l.reads.Front().d, at, n)
	if bad == 0 && ref.Len() == 0 {
		bad = vi.StatusFormatError // the program has changed the descriptor while it was posted
	}
	if bad != 0 { // [VIA-4.6-15]
		l.failRead(bad)
	}
	return ref
}

func (l *link) failResponse() { l.failRead(vi.StatusProtectionError) }

func (l *link) endResponse(void bool) error {
	x := &l.rx
	if void { // [V-30]
		l.failRead(vi.StatusRDMAProtection)
		return nil
	}
	if n := l.reads.Front().d.Length; x.length() != n {
		return framingf("RDMA Read Response %d ends after %d of %d bytes", uint32(x.h.Number), x.length(), n)
	}
	l.endRead()
	return nil
}

// endRead completes the oldest RDMA Read. All bytes are in place.
func (l *link) endRead() {
	r := *l.reads.Front()
	l.reads.Pop()
	l.asked.done()
	l.rx.fresh = true
	if l.ep.FinishSend(r.d, r.seq, 0) { // [VIA-4.5-5]
		l.die(errors.New("vitcp: a send descriptor is in error"), nil, nil)
		return
	}
	if l.blocked.Load() || l.ep.Fenced() {
		l.wake()
	}
}

// failRead completes the oldest RDMA Read with an error, and thereby breaks the connection.
func (l *link) failRead(bad vi.Status) {
	r := *l.reads.Front()
	l.reads.Pop()
	l.asked.done()
	l.ep.FinishSend(r.d, r.seq, bad)
	l.die(fmt.Errorf("vitcp: RDMA Read %d: %w", uint32(r.number), (bad|vi.StatusDone|vi.StatusOpRDMARead).Err()),
		nil, nil)
}

// tornMessage completes the descriptors of a message whose end never arrived. It runs after the
// stream has failed, when no role is active. [VIA 4.6]
func (l *link) tornMessage() {
	x := &l.rx
	if !x.asm.data.active && (!x.Open() || x.h.Type == vitcpwire.ReadResponse) || x.in.drop {
		return
	}
	switch in := &x.in; {
	case in.d != nil:
		d := in.d
		in.d = nil
		l.ep.FinishRecv(d, in.seq, vi.Delivery{Length: x.taken(), Status: vi.StatusPartialError})
	case x.asm.data.typ == vitcpwire.Write && x.h.Flags&vitcpwire.ImmediateValid == 0:
		l.ep.AsyncError(vi.ErrorRDMAWAbort, vi.OpRDMAWrite)
	case x.asm.data.typ == vitcpwire.Write:
		if d, seq, bad, ok := l.ep.StartRecv(); ok {
			l.ep.FinishRecv(d, seq, vi.Delivery{Length: x.taken(), Status: bad | vi.StatusPartialError,
				RemoteWrite: true})
		}
	}
}
