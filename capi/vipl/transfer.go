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
	"viaduct/internal/viplcode"
	"viaduct/vi"
)

// A descriptor is a posted descriptor of a program. It contains the engine's descriptor and the
// address of the program's descriptor.
type descriptor struct {
	d    vi.Descriptor
	at   unsafe.Pointer // C memory: a VIP_DESCRIPTOR
	recv bool
	e    *endpoint
	segs [4]vi.Segment // enough for most descriptors
}

// A stock is a pool of unposted descriptors of a queue. Descriptors are taken and returned in
// batches.
type stock struct {
	mu   sync.Mutex
	free []*descriptor // guarded by mu
}

// maxStock is the largest number of descriptors in a stock.
const maxStock = 256

// take fills ds with descriptors of e from the stock. It makes new descriptors if the stock has too
// few.
func (s *stock) take(ds []*descriptor, e *endpoint, recv bool) {
	s.mu.Lock()
	n := min(len(ds), len(s.free))
	at := len(s.free) - n
	copy(ds, s.free[at:])
	clear(s.free[at:])
	s.free = s.free[:at]
	s.mu.Unlock()
	for i := n; i < len(ds); i++ {
		c := &descriptor{e: e, recv: recv}
		c.d.Context, c.d.OnDone = c, complete
		ds[i] = c
	}
}

// put returns reaped descriptors to the stock, up to maxStock.
func (s *stock) put(ds []*vi.Descriptor) {
	if len(ds) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range ds {
		if len(s.free) < maxStock {
			c := d.Context.(*descriptor)
			c.at, c.d.Segments = nil, nil
			s.free = append(s.free, c)
		}
	}
}

// stockOf returns the stock of the receive queue of e if recv is true, otherwise the stock of the
// send queue.
func (e *endpoint) stockOf(recv bool) *stock {
	if recv {
		return &e.stocks[1]
	}
	return &e.stocks[0]
}

// A controlSegment has the layout of a VIP_CONTROL_SEGMENT, and a segment the layout of any other
// segment.
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

// descriptorSize is the size of a VIP_DESCRIPTOR, enough for most descriptors.
const descriptorSize = uint64(unsafe.Sizeof(controlSegment{})) + 2*segmentSize

// read fills c from the program's descriptor at c.at. It returns false if the descriptor is
// misaligned or not within the region mem. The caller guards the call, because reading the memory
// may fault. [VIA 5.3]
func (c *descriptor) read(mem vi.MemHandle) bool {
	addr := uint64(uintptr(c.at))
	if addr%C.VIP_DESCRIPTOR_ALIGNMENT != 0 {
		return false
	}
	size := descriptorSize
	if !c.e.v.MayUse(mem, addr, size) {
		if size = uint64(unsafe.Sizeof(controlSegment{})); !c.e.v.MayUse(mem, addr, size) {
			return false
		}
	}
	cs := (*controlSegment)(c.at)
	n := int(cs.segCount)
	if want := uint64(unsafe.Sizeof(*cs)) + uint64(n)*segmentSize; want > size && !c.e.v.MayUse(mem, addr, want) {
		return false
	}
	c.fill(cs, n)
	return true
}

// fill copies the fields the program has set, with n segments.
func (c *descriptor) fill(cs *controlSegment, n int) {
	d := &c.d
	d.Control, d.ImmediateData, d.Length = vi.Control(cs.control), cs.immediate, cs.length
	from := unsafe.Slice((*segment)(unsafe.Add(c.at, unsafe.Sizeof(*cs))), n)
	d.Remote = vi.RemoteSegment{}
	if op := d.Control.Op(); !c.recv && (op == vi.OpRDMAWrite || op == vi.OpRDMARead) {
		if n == 0 {
			// A descriptor without an address segment is malformed. The engine's descriptor always
			// has an address segment, so mark the error by a reserved bit; the engine refuses
			// reserved bits. [VIA 3.4] [VIA-3.4-2]
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
	cs.status.Store(0) // so that a polling program does not see the end of an earlier use
}

// complete writes the result into the program's descriptor, the status last. It runs under the
// queue's lock, before the descriptor can be taken. If the program has unmapped the descriptor,
// complete starts a goroutine to report the error. [VIA 3.3]
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

// vipl_go_post posts n descriptors in order. It also reaps up to max already complete descriptors
// of a send queue, and returns their number in *ended. *isLong is set if a posted descriptor is
// long. The C half never makes two calls for a queue at the same time.
//
//export vipl_go_post
func vipl_go_post(h C.uintptr_t, recv C.int, posts *C.struct_vipl_post, n C.int, out *C.struct_vipl_ready, max C.int, ended, isLong *C.int) C.int {
	headroom()
	e := vis.get(handle(h))
	if e == nil {
		return C.VIP_INVALID_PARAMETER
	}
	var room [16]*descriptor // as many as the C half gathers at most
	r := C.int(C.VIP_SUCCESS)
	for ps := unsafe.Slice(posts, n); len(ps) > 0; {
		k := min(len(ps), len(room))
		e.stockOf(recv != 0).take(room[:k], e, recv != 0)
		for i, p := range ps[:k] {
			room[i].at = unsafe.Pointer(p.d)
		}
		r = e.postAll(room[:k], ps[:k], isLong)
		ps = ps[k:]
	}
	// Reap only if a descriptor is complete: a failing attempt would also receive from the
	// connection.
	if max > 0 && room[0].d.Status()&vi.StatusDone != 0 {
		got, _ := e.take(false, unsafe.Slice(out, max))
		*ended = C.int(got)
	}
	return r
}

// longSend is the least length in bytes of a long send, whose cost is dominated by the copy.
const longSend = 64 << 10

// postAll reads and posts the descriptors cs. A descriptor refused by read is reported as an
// asynchronous error, and the others are posted.
func (e *endpoint) postAll(cs []*descriptor, ps []C.struct_vipl_post, isLong *C.int) C.int {
	var batch [16]*vi.Descriptor
	for {
		good := 0
		err := regmem.Guard(func() {
			for good < len(cs) && cs[good].read(vi.MemHandle(ps[good].handle)) {
				batch[good] = &cs[good].d
				good++
			}
		})
		for _, d := range batch[:good] {
			if d.Length >= longSend {
				*isLong = 1
			}
		}
		r := e.post(batch[:good], cs[0].recv)
		if err == nil && good == len(cs) {
			return r
		}
		e.v.ReportPostError(&cs[good].d) // reported with the error, so it is not reused [VIA-3.1-3] [VIA-8.3-21]
		if cs, ps = cs[good+1:], ps[good+1:]; len(cs) == 0 {
			return r
		}
	}
}

// post posts descriptors to the engine. The engine reports a descriptor beyond a full queue as an
// asynchronous error. [VIA 5.3]
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
			if viplcode.Of(err) != viplcode.Success {
				return code(err)
			}
			ds = ds[1:]
		}
	}
	return C.VIP_SUCCESS
}

// vipl_go_done reaps up to max completed descriptors of a queue. It polls several times before it
// reports none. Then *n is 0 and the result is the reason.
//
//export vipl_go_done
func vipl_go_done(h C.uintptr_t, recv, looks C.int, out *C.struct_vipl_ready, max C.int, n *C.int) C.int {
	headroom()
	*n = 0
	e := vis.get(handle(h))
	if e == nil {
		return C.VIP_INVALID_PARAMETER
	}
	var got int
	var err error
	for err = vi.ErrNotDone; got == 0 && err == vi.ErrNotDone && looks > 0; looks-- {
		got, err = e.take(recv != 0, unsafe.Slice(out, max))
	}
	*n = C.int(got)
	switch {
	case got > 0:
		return C.VIP_SUCCESS
	case err == vi.ErrNotDone: // the most frequent result of a polling program
		return C.VIP_NOT_DONE
	}
	return code(err)
}

// take reaps completed descriptors of a queue into out and returns their number. If there is none,
// the error is the reason.
func (e *endpoint) take(recv bool, out []C.struct_vipl_ready) (int, error) {
	var ds [32]*vi.Descriptor
	buf := ds[:min(len(ds), len(out))]
	var n int
	var err error
	if recv {
		n, err = e.v.RecvDoneN(buf)
	} else {
		n, err = e.v.SendDoneN(buf)
	}
	for i, d := range buf[:n] {
		hand(&out[i], d)
	}
	e.stockOf(recv).put(buf[:n])
	return n, err
}

// hand describes a reaped descriptor to the C half, in *out.
func hand(out *C.struct_vipl_ready, d *vi.Descriptor) {
	c := d.Context.(*descriptor)
	out.d = (*C.VIP_DESCRIPTOR)(c.at)
	out.code = C.VIP_SUCCESS
	if d.Status().Failed() {
		out.code = C.VIP_DESCRIPTOR_ERROR
	}
}

// vipl_go_wait waits until the descriptor at the head of a queue is complete, and reaps it.
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
	e.stockOf(recv != 0).put([]*vi.Descriptor{d})
	return out.code
}
