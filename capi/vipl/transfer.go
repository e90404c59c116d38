//go:build libvipl

package main

// #include "engine.h"
import "C"

import (
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"viaduct/internal/regmem"
	"viaduct/vi"
)

// A descriptor is a posted descriptor of a program: the engine's, and where the
// program's lies.
type descriptor struct {
	d    vi.Descriptor
	at   unsafe.Pointer // C memory: a VIP_DESCRIPTOR
	recv bool
	e    *endpoint
	segs [4]vi.Segment // what most descriptors need
}

// spare has descriptors that are not posted.
var spare = sync.Pool{New: func() any {
	c := new(descriptor)
	c.d.Context, c.d.OnDone = c, complete
	return c
}}

func (c *descriptor) release() {
	c.e, c.at, c.d.Segments = nil, nil, nil
	spare.Put(c)
}

// A controlSegment is a VIP_CONTROL_SEGMENT in Go's words, and a segment any
// other.
type controlSegment struct {
	next       uint64
	nextHandle uint32
	segCount   uint16
	control    uint16
	reserved   uint32
	immediate  uint32
	length     uint32
	status     atomic.Uint32
}

type segment struct {
	data   uint64
	handle uint32
	length uint32 // reserved in an address segment
}

const segmentSize = 16

// read fills c from the program's descriptor at c.at. It is false if the memory
// of that is not as it has to be. [VIA 5.3]
func (c *descriptor) read(mem vi.MemHandle) bool {
	addr := uint64(uintptr(c.at))
	if addr%C.VIP_DESCRIPTOR_ALIGNMENT != 0 || !c.e.v.MayUse(mem, addr, uint64(unsafe.Sizeof(controlSegment{}))) {
		return false
	}
	ok := true
	err := regmem.Guard(func() { ok = c.copy(mem) })
	return ok && err == nil
}

func (c *descriptor) copy(mem vi.MemHandle) bool {
	cs := (*controlSegment)(c.at)
	n := int(cs.segCount)
	if n > 0 && !c.e.v.MayUse(mem, uint64(uintptr(c.at)), uint64(unsafe.Sizeof(*cs))+uint64(n)*segmentSize) {
		return false
	}
	d := &c.d
	d.Control, d.ImmediateData, d.Length = vi.Control(cs.control), cs.immediate, cs.length
	from := unsafe.Slice((*segment)(unsafe.Add(c.at, unsafe.Sizeof(*cs))), n)
	d.Remote = vi.RemoteSegment{}
	if op := d.Control.Op(); !c.recv && (op == vi.OpRDMAWrite || op == vi.OpRDMARead) {
		if n == 0 {
			// Without an address segment it has no form. The engine's has one
			// always, but knows of bits that must be 0. [VIA 3.4] [VIA-3.4-2]
			d.Control |= C.VIP_CONTROL_RESERVED
		} else {
			d.Remote = vi.RemoteSegment{Address: from[0].data, Handle: vi.MemHandle(from[0].handle)}
			from = from[1:]
		}
	}
	d.Segments = slices.Grow(c.segs[:0], len(from))[:len(from)]
	for i, s := range from {
		d.Segments[i] = vi.Segment{Address: s.data, Handle: vi.MemHandle(s.handle), Length: s.length}
	}
	cs.status.Store(0) // who polls it does not see an earlier end
	return true
}

// complete writes the end of a descriptor to where the program sees it, the
// status last. It runs under the queue's lock, before the descriptor can be
// taken. [VIA 3.3]
func complete(d *vi.Descriptor) {
	c := d.Context.(*descriptor)
	err := regmem.Guard(func() {
		cs := (*controlSegment)(c.at)
		if c.recv {
			cs.immediate, cs.length = d.ImmediateData, d.Length
		}
		cs.status.Store(uint32(d.Status()))
	})
	if err != nil {
		e := c.e
		lost := &descriptor{at: c.at, e: e}
		lost.d.Context, lost.d.Control = lost, d.Control
		go e.v.ReportCompletionError(&lost.d)
	}
}

// vipl_go_post posts n descriptors in order. The C half calls it for one queue
// at a time.
//
//export vipl_go_post
func vipl_go_post(h C.uintptr_t, recv C.int, posts *C.struct_vipl_post, n C.int) C.int {
	headroom()
	e := vis.get(handle(h))
	if e == nil {
		return C.VIP_INVALID_PARAMETER
	}
	var ready [16]*vi.Descriptor
	batch := ready[:0]
	for _, p := range unsafe.Slice(posts, n) {
		c := spare.Get().(*descriptor)
		c.at, c.e, c.recv = unsafe.Pointer(p.d), e, recv != 0
		if !c.read(vi.MemHandle(p.handle)) {
			e.post(batch, c.recv)
			batch = ready[:0]
			e.v.ReportPostError(&c.d) // told with it, so it is not used again
			continue
		}
		if batch = append(batch, &c.d); len(batch) == cap(batch) {
			e.post(batch, c.recv)
			batch = ready[:0]
		}
	}
	return e.post(batch, recv != 0)
}

// post hands descriptors to the engine. One that finds the queue full was told
// of as an asynchronous error. [VIA 5.3]
func (e *endpoint) post(ds []*vi.Descriptor, recv bool) C.int {
	for len(ds) > 0 {
		var n int
		var err error
		if recv {
			n, err = e.v.PostRecvs(ds)
		} else {
			n, err = e.v.PostSends(ds)
		}
		if ds = ds[n:]; err != nil {
			if vi.CodeOf(err) != vi.Success {
				return code(err)
			}
			ds = ds[1:]
		}
	}
	return C.VIP_SUCCESS
}

// vipl_go_done takes up to max completed descriptors from a queue. If there is
// none, *n is 0 and the result says why.
//
//export vipl_go_done
func vipl_go_done(h C.uintptr_t, recv C.int, out *C.struct_vipl_ready, max C.int, n *C.int) C.int {
	headroom()
	*n = 0
	e := vis.get(handle(h))
	if e == nil {
		return C.VIP_INVALID_PARAMETER
	}
	var ds [32]*vi.Descriptor
	var got int
	var err error
	if recv != 0 {
		got, err = e.v.RecvDoneN(ds[:max])
	} else {
		got, err = e.v.SendDoneN(ds[:max])
	}
	to := unsafe.Slice(out, got)
	for i, d := range ds[:got] {
		hand(&to[i], d)
	}
	*n = C.int(got)
	if got == 0 {
		return code(err)
	}
	return C.VIP_SUCCESS
}

// hand gives a descriptor that was taken from its queue to the C half.
func hand(out *C.struct_vipl_ready, d *vi.Descriptor) {
	c := d.Context.(*descriptor)
	out.d = (*C.VIP_DESCRIPTOR)(c.at)
	out.code = C.VIP_SUCCESS
	if d.Status().Failed() {
		out.code = C.VIP_DESCRIPTOR_ERROR
	}
	c.release()
}

// vipl_go_wait waits for the descriptor at the head of a queue.
//
//export vipl_go_wait
func vipl_go_wait(h C.uintptr_t, recv C.int, timeout C.VIP_ULONG, out *C.struct_vipl_ready) C.int {
	headroom()
	e := vis.get(handle(h))
	if e == nil {
		return C.VIP_INVALID_PARAMETER
	}
	ctx, cancel := until(timeout)
	defer cancel()
	var d *vi.Descriptor
	var err error
	if recv != 0 {
		d, err = e.v.RecvWait(ctx)
	} else {
		d, err = e.v.SendWait(ctx)
	}
	if d == nil {
		return code(err)
	}
	hand(out, d)
	return out.code
}
