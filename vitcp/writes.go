package vitcp

import (
	"fmt"

	"viaduct/internal/regmem"
	"viaduct/internal/wire/vitcpwire"
	"viaduct/vi"
)

// beginWrite starts to receive an RDMA Write, and checks the whole range before the first byte is
// placed. A failed check drops the Write. [V-42] [VIT-2.2.2.2.2-6]
func (x *receiver) beginWrite(first bool) error {
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
	case in.rdma.Length > x.terms.mtu: // [V-14]
		x.failWrite(vi.StatusLengthError, vi.ErrorRDMAWAbort, vitcpwire.DescriptorError)
	case in.rdma.Length == 0:
	case x.payload == int(in.rdma.Length):
		x.all = x.Hold(regmem.Ref(x.writeTarget(0, x.payload)))
	case !x.ep.CheckTarget(vi.MemHandle(in.rdma.Handle), in.rdma.Address, uint64(in.rdma.Length), true):
		x.faultWrite()
	}
	return nil
}

func (x *receiver) writeTarget(at uint32, n int) vi.Memory {
	if x.in.drop {
		return vi.Memory{}
	}
	ref, ok := x.writeRange(at, n)
	if !ok { // the region was deregistered in the meantime [V-42]
		x.faultWrite()
	}
	return ref
}

// writeRange pins n bytes at offset at of the current Write's target. [VIT-2.2.2.1-3] [VIA-4.2-1]
func (x *receiver) writeRange(at uint32, n int) (vi.Memory, bool) {
	m := &x.in.rdma
	return x.ep.Target(vi.Memory(x.Held()), vi.MemHandle(m.Handle), m.Address+uint64(at), uint64(n), true)
}

func (x *receiver) faultWrite() {
	x.failWrite(vi.StatusRDMAProtection, vi.ErrorRDMAWProt, vitcpwire.ProtectionError)
}

// endWrite completes an RDMA Write. With immediate data the Write consumes a receive descriptor
// without access to the descriptor's segments. The last segment decides whether there is immediate
// data. [V-29]
func (x *receiver) endWrite(void bool) error {
	in := &x.in
	if !void && x.length() != in.rdma.Length { // [V-24]
		return framingf("RDMA Write %d ends after %d of %d bytes", uint32(x.h.Number), x.length(), in.rdma.Length)
	}
	if in.drop {
		if in.bad != 0 {
			x.failWrite(in.bad, asyncOf(in.bad), 0)
		}
		return nil
	}
	if void {
		x.failWrite(vi.StatusPartialError, vi.ErrorRDMAWAbort, vitcpwire.DescriptorError) // [VIA-4.6-11] [VIA-5.2-7]
		return nil
	}
	if x.h.Flags&vitcpwire.ImmediateValid != 0 { // [VIA-4.2-2]
		if !x.flow.mine.consume() { // [V-20]
			return framingf("RDMA Write %d without a credit", uint32(x.h.Number))
		}
		if !x.takeDescriptor(true) { // [VIA-4.6-18]
			return nil
		}
		d := in.d
		in.d = nil
		x.finishReceive(d, vi.Delivery{Length: in.rdma.Length, Immediate: true, Data: x.h.Immediate, RemoteWrite: true}) // [VIA-4.2-3] [VIA-4.2-4]
	}
	x.received(x.length())
	return nil
}

// failWrite drops the rest of the current RDMA Write. If the Write has immediate data, the error
// goes into a receive descriptor; otherwise it is asynchronous. At Unreliable Delivery only the
// last segment shows whether there is immediate data; until then the error waits in the field bad.
func (x *receiver) failWrite(bad vi.Status, async vi.ErrorCode, code uint8) {
	in := &x.in
	in.drop = true
	if x.level == unreliable {
		in.bad = bad
		if x.h.Flags&vitcpwire.EndOfMessage == 0 {
			return
		}
	}
	if x.h.Flags&vitcpwire.ImmediateValid != 0 {
		if !x.flow.mine.consume() {
			x.life.violated(framingf("RDMA Write %d without a credit", uint32(x.h.Number)))
			return
		}
		in.bad = 0
		if x.takeDescriptor(true) {
			x.failReceive(bad, code) // [VIA-4.6-9] [VIA-5.2-10]
		}
		return
	}
	in.bad = 0
	x.ep.AsyncError(async, vi.OpRDMAWrite) // [VIA-4.6-8] [VIA-5.2-6]
	x.refuse(code, fmt.Errorf("vitcp: RDMA Write %d of the peer: %v", uint32(x.h.Number), async))
}

// asyncOf returns the asynchronous error for status bad of an RDMA Write without immediate data.
func asyncOf(bad vi.Status) vi.ErrorCode {
	if bad == vi.StatusRDMAProtection {
		return vi.ErrorRDMAWProt
	}
	return vi.ErrorRDMAWAbort
}
