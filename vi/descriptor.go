package vi

import (
	"sync/atomic"
)

// A MemHandle names a registered region. 0 is never a valid handle.
type MemHandle uint32

// A Segment is a range of local registered memory.
type Segment struct { // [VIA 3.1]
	Address uint64    // virtual address of the first byte
	Handle  MemHandle // handle of the region that contains the whole segment
	Length  uint32    // bytes
}

// A RemoteSegment is the start of a range of the peer's memory. It is the address segment of an
// RDMA descriptor.
type RemoteSegment struct { // [VIA 3.1]
	Address uint64    // virtual address of the first byte, in the peer's address space
	Handle  MemHandle // handle of the peer's region
}

// A Descriptor describes a data transfer. The consumer fills the exported fields and posts the
// descriptor. A posted descriptor belongs to the NIC until the NIC returns it, and must not be
// copied.
type Descriptor struct { // [VIA-3.1-1]
	// Control is the operation with the flags.
	Control Control

	// ImmediateData travels with a Send or RDMA Write with the Immediate flag, as a number. In a
	// completed receive it holds the received data if the status has StatusImmediate, and 0
	// otherwise.
	ImmediateData uint32

	// Length is the number of bytes to transfer: the sum of the segments' lengths. In a completed
	// receive Length is the number of bytes received.
	Length uint32

	// Remote is the start of the peer's memory for an RDMA. Other operations ignore Remote.
	Remote RemoteSegment

	// Segments is the local memory to gather from or to scatter to, in
	// order. A segment of length 0 needs no valid handle.
	Segments []Segment

	// Context is for the consumer's use. The engine ignores Context.
	Context any

	// OnDone, if set, is called when the descriptor completes, before it can be dequeued, under a
	// lock of the engine. OnDone may read Status and store the result elsewhere. OnDone must
	// neither call the package nor wait for a goroutine inside a call of the package, because
	// memory may still be pinned.
	OnDone func(*Descriptor)

	status atomic.Uint32 // the Status; with statusPosted until the descriptor is reaped
	result Status        // owned by the NIC while posted; becomes the status
	fatal  bool          // owned by the NIC while posted; the error in result ends the connection

	// Length [VIA 3.5] [VIA-3.5-3] [VIA-3.5-5], Segments [VIA 3.4].
}

// Status returns the descriptor's status. While the descriptor is posted, StatusDone is clear. A
// caller seeing StatusDone also sees all effects of the completion.
func (d *Descriptor) Status() Status { return Status(d.status.Load() &^ statusPosted) }

// NewSend returns a Send of the bytes of segs.
func NewSend(segs ...Segment) *Descriptor { return newDescriptor(OpSendReceive, segs) }

// NewRecv returns a Receive into segs.
func NewRecv(segs ...Segment) *Descriptor { return newDescriptor(OpSendReceive, segs) }

// NewRDMAWrite returns an RDMA Write of segs to remote.
func NewRDMAWrite(remote RemoteSegment, segs ...Segment) *Descriptor {
	d := newDescriptor(OpRDMAWrite, segs)
	d.Remote = remote
	return d
}

// NewRDMARead returns an RDMA Read from remote into segs.
func NewRDMARead(remote RemoteSegment, segs ...Segment) *Descriptor {
	d := newDescriptor(OpRDMARead, segs)
	d.Remote = remote
	return d
}

func newDescriptor(c Control, segs []Segment) *Descriptor {
	d := &Descriptor{Control: c, Segments: segs}
	for _, s := range segs {
		d.Length += s.Length
	}
	return d
}

// WithImmediate sets the immediate data and the flag, and returns d.
func (d *Descriptor) WithImmediate(v uint32) *Descriptor {
	d.Control |= Immediate
	d.ImmediateData = v
	return d
}

// WithFence sets the queue fence, and returns d.
func (d *Descriptor) WithFence() *Descriptor {
	d.Control |= QueueFence
	return d
}

// Capacity returns the sum of the segments' lengths: the capacity of a receive.
func (d *Descriptor) Capacity() uint64 { // [VIA-3.5-4]
	var n uint64
	for i := range d.Segments {
		n += uint64(d.Segments[i].Length)
	}
	return n
}

// statusPosted marks a descriptor owned by the NIC, from the post until the reap. It is none of
// VIPL's bits.
const statusPosted = 1 << 31

// take marks d as posted and clears its status. It returns false if d is posted already.
// [VIA-3.3-5]
func (d *Descriptor) take() bool {
	old := d.status.Load()
	return old&statusPosted == 0 && d.status.CompareAndSwap(old, statusPosted)
}

// giveBack undoes take for an unposted descriptor.
func (d *Descriptor) giveBack() { d.status.Store(0) }

// publish makes result the status of the descriptor, and calls OnDone. The caller holds the queue's
// lock.
func (d *Descriptor) publish() {
	d.status.Store(uint32(d.result|StatusDone) | statusPosted) // [VIA-3.3-4]
	if d.OnDone != nil {
		d.OnDone(d)
	}
}

// sendOp returns the operation bits of the status for a descriptor of the send queue. [VIA-3.3-2]
func (c Control) sendOp() Status {
	switch c.Op() {
	case OpRDMAWrite:
		return StatusOpRDMAWrite
	case OpRDMARead:
		return StatusOpRDMARead
	}
	return StatusOpSend
}
