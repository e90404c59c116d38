package fcvi

import (
	"sync/atomic"

	"viaduct/internal/regmem"
	"viaduct/internal/wire/iu"
	"viaduct/vi"
)

// A viConsumer implements consumer with a VI. The station's lock guards a viConsumer. Memory stays
// pinned, and completions are collected, until the lock is released. The reason is that frames are
// handled in batches, and a pin or a check of a work queue for each frame would cost as much as the
// frame.
type viConsumer struct {
	s       *station
	ep      *vi.Endpoint
	waiting atomic.Bool // a message waits for a receive descriptor
	recv    *vi.Descriptor
	recvSeq uint64
	cur     vi.Cursor
	pos     uint32
	ahead   vi.Cursor          // used by at, which must not allocate a cursor
	end     func(orderly bool) // breaks the connection, in another goroutine

	listed            bool   // v is in station.open, so settle runs before the lock is released
	first, last       uint64 // sends from first to last-1 are finished and not yet reported
	src, dst, landing piece  // memory of the current send, receive and RDMA Read
	target            target
}

// A piece is a pinned, contiguous part of a descriptor's memory. d is nil if nothing is pinned.
type piece struct {
	d    *vi.Descriptor
	from uint32 // offset of the piece in the message
	ref  vi.Memory
}

func (p *piece) drop() {
	p.ref.Release()
	*p = piece{}
}

// A target is pinned memory the peer named, from address va on.
type target struct {
	handle uint32
	va     uint64
	write  bool
	ref    vi.Memory
}

func (t *target) drop() {
	t.ref.Release()
	*t = target{}
}

var _ consumer = (*viConsumer)(nil)

func (v *viConsumer) peek() (vi.Control, bool) {
	d := v.ep.NextSend()
	if d == nil {
		return 0, false
	}
	return d.Control, true
}

// list ensures that settle runs before the lock is released.
func (v *viConsumer) list() {
	if !v.listed {
		v.listed = true
		v.s.open = append(v.s.open, v)
	}
}

// settle releases all pins and publishes finished sends.
func (v *viConsumer) settle() {
	v.listed = false
	v.src.drop()
	v.dst.drop()
	v.landing.drop()
	v.target.drop()
	v.publish()
}

// publish completes the sends from first to last-1.
func (v *viConsumer) publish() {
	if v.first != v.last {
		v.ep.FinishSends(v.first, v.last)
		v.first = v.last
	}
}

func (v *viConsumer) next(w *work) {
	d, seq, bad := v.ep.StartSend()
	w.d, w.seq, w.bad, w.n = d, seq, bad, d.Length
	w.cur, w.pos = vi.Cursor{}, 0
	w.va, w.mh = d.Remote.Address, uint32(d.Remote.Handle)
	w.imm, w.data = d.Control&vi.Immediate != 0, d.ImmediateData
	switch d.Control.Op() {
	case vi.OpRDMAWrite:
		w.op = iu.WriteRqst
	case vi.OpRDMARead:
		w.op = iu.ReadRqst
	default:
		w.op = iu.SendRqst
	}
	v.src.drop()
}

// at returns the contiguous memory of d from offset off on, pinned in p. It returns nil if the
// memory may not be accessed. cur is at offset pos, where the search for off begins.
func (v *viConsumer) at(p *piece, d *vi.Descriptor, cur *vi.Cursor, pos *uint32, off, rest uint32, write bool) []byte {
	if p.d == d && off >= p.from && int(off-p.from) < p.ref.Len() {
		return p.ref.B()[off-p.from:]
	}
	p.drop()
	get := v.ep.Gather
	if write {
		get = v.ep.Scatter
	}
	if off < *pos {
		*cur, *pos = vi.Cursor{}, 0
	}
	for *pos < off {
		ref, bad := get(vi.Memory{}, d, cur, int(off-*pos))
		if bad != 0 || ref.Len() == 0 {
			return nil
		}
		*pos += uint32(ref.Len())
		ref.Release()
	}
	v.ahead = *cur // so that cur stays at the beginning of the piece
	ref, bad := get(vi.Memory{}, d, &v.ahead, int(rest))
	if bad != 0 || ref.Len() == 0 {
		return nil
	}
	*p = piece{d, off, ref}
	v.list()
	return ref.B()
}

// copyPinned copies src to dst, where either src or dst is memory pinned by m. The result is an
// error if an access to the pinned memory faults.
func copyPinned(dst, src []byte, m vi.Memory) error { return regmem.Copy(dst, src, m.Guarded()) }

func (v *viConsumer) gather(w *work, off uint32, n int, scratch []byte) ([]byte, vi.Status) {
	b := v.at(&v.src, w.d, &w.cur, &w.pos, off, w.n-off, false)
	if len(b) >= min(n, len(scratch)) && !v.src.ref.Guarded() {
		return b[:min(n, len(b))], 0
	}
	n = min(n, len(scratch))
	for got := 0; ; {
		if b == nil {
			return nil, vi.StatusProtectionError
		}
		b = b[:min(len(b), n-got)]
		if err := copyPinned(scratch[got:], b, v.src.ref); err != nil {
			return nil, vi.StatusProtectionError
		}
		if got += len(b); got == n {
			return scratch[:n], 0
		}
		b = v.at(&v.src, w.d, &w.cur, &w.pos, off+uint32(got), w.n-off-uint32(got), false)
	}
}

// spread copies b into the memory of d at offset off, piece by piece.
func (v *viConsumer) spread(p *piece, d *vi.Descriptor, cur *vi.Cursor, pos *uint32, off, rest uint32, b []byte) vi.Status {
	for len(b) > 0 {
		to := v.at(p, d, cur, pos, off, rest, true)
		if to == nil {
			return vi.StatusProtectionError
		}
		n := min(len(to), len(b))
		if err := copyPinned(to, b[:n], p.ref); err != nil {
			return vi.StatusProtectionError
		}
		b = b[n:]
		off, rest = off+uint32(n), rest-uint32(n)
	}
	return 0
}

func (v *viConsumer) scatterRead(w *work, off uint32, b []byte) vi.Status {
	return v.spread(&v.landing, w.d, &w.cur, &w.pos, off, w.n-off, b)
}

func (v *viConsumer) finish(w *work, bad vi.Status) {
	if v.src.d == w.d {
		v.src.drop()
	}
	if v.landing.d == w.d {
		v.landing.drop()
	}
	if bad == 0 && w.op != iu.ReadRqst {
		if v.last != w.seq {
			v.publish()
			v.first = w.seq
		}
		v.last = w.seq + 1
		v.list()
		return
	}
	v.publish()
	v.ep.FinishSend(w.d, w.seq, bad)
}

func (v *viConsumer) takeRecv() (uint64, vi.Status, bool) {
	v.waiting.Store(true)
	d, seq, bad, ok := v.ep.StartRecv()
	if !ok {
		return 0, 0, false
	}
	v.waiting.Store(false)
	v.dst.drop()
	v.recv, v.recvSeq, v.cur, v.pos = d, seq, vi.Cursor{}, 0
	return d.Capacity(), bad, true
}

func (v *viConsumer) scatter(off uint32, b []byte) vi.Status {
	rest := min(v.recv.Capacity(), 1<<32-1) - uint64(off)
	return v.spread(&v.dst, v.recv, &v.cur, &v.pos, off, uint32(rest), b)
}

func (v *viConsumer) finishRecv(d vi.Delivery) {
	r := v.recv
	v.recv = nil
	v.dst.drop()
	v.ep.FinishRecv(r, v.recvSeq, d)
}

func (v *viConsumer) check(handle uint32, va uint64, n uint32, write bool) bool {
	return v.ep.CheckTarget(vi.MemHandle(handle), va, uint64(n), write)
}

// named returns the memory the peer names, from va+off to va+total, pinned until settle. ok is
// false if the peer may not access the memory.
func (v *viConsumer) named(handle uint32, va uint64, total, off uint32, write bool) (b []byte, ok bool) {
	t := &v.target
	if t.ref.Len() > 0 && t.handle == handle && t.write == write {
		if at := va + uint64(off) - t.va; at < uint64(t.ref.Len()) && uint64(t.ref.Len())-at >= uint64(total-off) {
			return t.ref.B()[at : at+uint64(total-off)], true
		}
	}
	t.drop()
	ref, ok := v.ep.Target(vi.Memory{}, vi.MemHandle(handle), va+uint64(off), uint64(total-off), write)
	if !ok {
		return nil, false
	}
	*t = target{handle, va + uint64(off), write, ref}
	v.list()
	return ref.B(), true
}

func (v *viConsumer) place(handle uint32, va uint64, total, off uint32, b []byte) bool {
	to, ok := v.named(handle, va, total, off, true)
	return ok && regmem.CopyLast(to, b, v.target.ref.Guarded()) == nil // [VIA-4.2-5]
}

func (v *viConsumer) fetch(handle uint32, va uint64, total, off uint32, n int, scratch []byte) (b []byte, ok bool) {
	from, ok := v.named(handle, va, total, off, false)
	if !ok {
		return nil, false
	}
	if !v.target.ref.Guarded() {
		return from[:n], true
	}
	n = min(n, len(scratch))
	if copyPinned(scratch[:n], from[:n], v.target.ref) != nil {
		return nil, false
	}
	return scratch[:n], true
}

func (v *viConsumer) async(code vi.ErrorCode, op vi.Control) { v.ep.AsyncError(code, op) }
func (v *viConsumer) broken(orderly bool)                    { v.end(orderly) }
