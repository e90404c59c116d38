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
	begin func(x *receiver, first bool) error

	// target pins the memory for the message's payload at offset at, n bytes at most. It returns
	// the zero Memory if the bytes must be dropped. Memory in the region of the placer's held pin
	// is not pinned again. A type without target ignores its payload.
	target func(x *receiver, at uint32, n int) vi.Memory

	// end handles a message whose bytes are all in place. void means that the sender aborted the
	// message. A type without end is a control segment and not a message. The error is a
	// *ProtocolError.
	end func(x *receiver, void bool) error

	// fail handles a memory fault while payload is placed. A type without target has no fail.
	fail func(x *receiver)
}

// messageTypes has a row for each type. A segment whose type has no row violates the protocol on an
// established connection.
var messageTypes = [32]messageType{
	vitcpwire.NOP:          {begin: func(*receiver, bool) error { return nil }}, // [VIT-3.1-NOP-1]
	vitcpwire.Disconnect:   {begin: (*receiver).beginDisconnect},
	vitcpwire.Send:         {(*receiver).beginSend, (*receiver).sendTarget, (*receiver).endSend, (*receiver).failSend},
	vitcpwire.Write:        {(*receiver).beginWrite, (*receiver).writeTarget, (*receiver).endWrite, (*receiver).faultWrite},
	vitcpwire.ReadRequest:  {begin: (*receiver).beginReadRequest, end: (*receiver).endReadRequest},
	vitcpwire.ReadResponse: {(*receiver).beginResponse, (*receiver).responseTarget, (*receiver).endResponse, (*receiver).failResponse},
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

func (x *receiver) beginDisconnect(bool) error {
	if !x.terms.disconnect {
		return framingf("%v without having been agreed on", vitcpwire.Disconnect)
	}
	x.life.move(lifeDisconnected)
	return nil
}

// beginSend starts to receive a Send, and starts the Send's receive descriptor.
func (x *receiver) beginSend(first bool) error {
	if !first {
		return nil
	}
	x.in = inbound{}
	if !x.flow.mine.consume() { // [V-20]
		return framingf("Send %d without a credit", uint32(x.h.Number))
	}
	x.takeDescriptor(false)
	return nil
}

func (x *receiver) sendTarget(at uint32, n int) vi.Memory {
	in := &x.in
	if in.drop {
		return vi.Memory{}
	}
	if uint64(at)+uint64(n) > uint64(x.terms.mtu) { // [V-14]
		x.failReceive(vi.StatusLengthError, vitcpwire.DescriptorError)
		return vi.Memory{}
	}
	ref, bad := x.scatter(in.d, at, n)
	if bad == 0 && ref.Len() == 0 {
		bad = vi.StatusLengthError // the message is longer than the receive's segments [VIA-4.1-2] [VIA-4.6-5]
	}
	if bad != 0 { // [VIA-4.6-7]
		x.failReceive(bad, vitcpwire.DescriptorError)
	}
	return ref
}

// scatter pins memory of d's segments from offset at on, n bytes at most and within one segment.
// The result is empty if the segments end before at. [VIT-2.2.2.1-3]
func (x *receiver) scatter(d *vi.Descriptor, at uint32, n int) (vi.Memory, vi.Status) {
	var cur vi.Cursor
	cur.Skip(d, uint64(at))
	return x.ep.Scatter(vi.Memory(x.Held()), d, &cur, n)
}

func (x *receiver) failSend() { x.failReceive(vi.StatusProtectionError, vitcpwire.DescriptorError) }

func (x *receiver) endSend(void bool) error {
	in := &x.in
	if in.drop {
		return nil
	}
	if void { // [V-30] [VIT-3.1-6] [VIA-4.6-12]
		x.failReceive(vi.StatusPartialError, vitcpwire.DescriptorError)
		return nil
	}
	n := x.length()
	if x.h.Offset > 0 {
		x.lastSend = n
	}
	d := in.d
	in.d = nil
	x.finishReceive(d, vi.Delivery{Length: n, Immediate: x.h.Flags&vitcpwire.ImmediateValid != 0, Data: x.h.Immediate})
	x.received(n)
	return nil
}

// takeDescriptor starts the next receive descriptor for the current message. It returns false if
// there is none, or a descriptor in error. The message is dropped then, and at the reliable levels
// the connection ends. [V-19]
func (x *receiver) takeDescriptor(remoteWrite bool) bool {
	in := &x.in
	d, seq, held, bad, ok := x.ep.StartRecvHeld()
	if !ok {
		in.drop = true
		op := vi.OpSendReceive
		if remoteWrite {
			op = vi.OpRDMAWrite
		}
		x.ep.AsyncError(vi.ErrorRecvQEmpty, op) // [VIA-4.6-4] [VIA-5.2-4]
		x.refuse(vitcpwire.DescriptorError, errors.New("vitcp: message without a receive descriptor"))
		return false
	}
	in.d, in.seq = d, seq
	if remoteWrite { // an RDMA Write does not access its segments
		held.Release()
	} else {
		x.all = x.Hold(regmem.Ref(held))
	}
	if bad != 0 {
		x.failReceive(bad, vitcpwire.DescriptorError)
		return false
	}
	return true
}

func (x *receiver) finishReceive(d *vi.Descriptor, r vi.Delivery) {
	if x.ep.FinishRecv(d, x.in.seq, r) {
		x.life.die(errors.New("vitcp: a receive descriptor is in error"), nil, nil)
	}
}

// failReceive completes the current receive descriptor with error bits, and refuses the message.
// code is the error code for the peer.
func (x *receiver) failReceive(bad vi.Status, code uint8) {
	in := &x.in
	in.drop = true
	d := in.d
	in.d = nil
	x.ep.FinishRecv(d, in.seq, vi.Delivery{
		Length: x.taken(), Status: bad, RemoteWrite: x.h.Type == vitcpwire.Write,
	})
	x.refuse(code, fmt.Errorf("vitcp: receive descriptor in error: %w", (bad|vi.StatusDone|vi.StatusOpReceive).Err()))
}

// refuse drops the current message. At the reliable levels refuse also ends the connection, and at
// Reliable Reception reports the message to the peer with the given code. [V-13] [V-44]
func (x *receiver) refuse(code uint8, cause error) {
	x.count.droppedMessages.Add(1)
	if x.level != unreliable { // [VIA-4.5-2] [VIA-4.5-3] [VIA-8.3-10]
		x.life.die(cause, &fault{number: x.h.Number, code: code}, nil)
	}
}

// tornMessage completes the descriptors of a message whose end never arrived. It runs after the
// stream has failed, when no role is active. [VIA 4.6]
func (x *receiver) tornMessage() {
	if !x.asm.data.active && (!x.Open() || x.h.Type == vitcpwire.ReadResponse) || x.in.drop {
		return
	}
	switch in := &x.in; {
	case in.d != nil:
		d := in.d
		in.d = nil
		x.ep.FinishRecv(d, in.seq, vi.Delivery{Length: x.taken(), Status: vi.StatusPartialError})
	case x.asm.data.typ == vitcpwire.Write && x.h.Flags&vitcpwire.ImmediateValid == 0:
		x.ep.AsyncError(vi.ErrorRDMAWAbort, vi.OpRDMAWrite)
	case x.asm.data.typ == vitcpwire.Write:
		if d, seq, bad, ok := x.ep.StartRecv(); ok {
			x.ep.FinishRecv(d, seq, vi.Delivery{Length: x.taken(), Status: bad | vi.StatusPartialError,
				RemoteWrite: true})
		}
	}
}
