package fcvi

import (
	"sync/atomic"

	"viaduct/fcvi/iu"
	"viaduct/internal/regmem"
	"viaduct/vi"
)

// A viConsumer is a VI as the machines see it. It runs under the port's lock.
type viConsumer struct {
	ep      *vi.Endpoint
	waiting atomic.Bool // a message waits for a receive descriptor
	recv    *vi.Descriptor
	recvSeq uint64
	cur     vi.Cursor
	pos     uint32
	end     func(orderly bool) // breaks the connection, elsewhere
}

var _ consumer = (*viConsumer)(nil)

func (v *viConsumer) peek() (vi.Control, bool) {
	d := v.ep.NextSend()
	if d == nil {
		return 0, false
	}
	return d.Control, true
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
}

func (v *viConsumer) gather(w *work, n int, scratch []byte) ([]byte, regmem.Ref, vi.Status) {
	w.pos += uint32(n)
	ref, bad := v.ep.Gather(w.d, &w.cur, n)
	if bad != 0 {
		return nil, regmem.Ref{}, bad
	}
	if len(ref.B) == n && !ref.Guarded() {
		return ref.B, ref, 0
	}
	got := 0
	for {
		if err := regmem.Copy(scratch[got:], ref.B, ref.Guarded()); err != nil {
			ref.Release()
			return nil, regmem.Ref{}, vi.StatusProtectionError
		}
		got += len(ref.B)
		ref.Release()
		if got == n {
			return scratch[:n], regmem.Ref{}, 0
		}
		if ref, bad = v.ep.Gather(w.d, &w.cur, n-got); bad != 0 || len(ref.B) == 0 {
			return nil, regmem.Ref{}, vi.StatusProtectionError
		}
	}
}

// spread copies b into the memory of d at offset off; cur stands at pos.
func (v *viConsumer) spread(d *vi.Descriptor, cur *vi.Cursor, pos *uint32, off uint32, b []byte) vi.Status {
	if off < *pos {
		*cur, *pos = vi.Cursor{}, 0
	}
	for *pos < off { // frames came out of order: find the place
		ref, bad := v.ep.Scatter(d, cur, int(off-*pos))
		if bad != 0 || len(ref.B) == 0 {
			return vi.StatusProtectionError
		}
		*pos += uint32(len(ref.B))
		ref.Release()
	}
	for len(b) > 0 {
		ref, bad := v.ep.Scatter(d, cur, len(b))
		if bad != 0 || len(ref.B) == 0 {
			return vi.StatusProtectionError
		}
		err := regmem.Copy(ref.B, b[:len(ref.B)], ref.Guarded())
		n := len(ref.B)
		ref.Release()
		if err != nil {
			return vi.StatusProtectionError
		}
		b = b[n:]
		*pos += uint32(n)
	}
	return 0
}

func (v *viConsumer) scatterRead(w *work, off uint32, b []byte) vi.Status {
	return v.spread(w.d, &w.cur, &w.pos, off, b)
}

func (v *viConsumer) finish(w *work, bad vi.Status) { v.ep.FinishSend(w.d, w.seq, bad) }

func (v *viConsumer) takeRecv() (uint64, vi.Status, bool) {
	v.waiting.Store(true)
	d, seq, bad, ok := v.ep.StartRecv()
	if !ok {
		return 0, 0, false
	}
	v.waiting.Store(false)
	v.recv, v.recvSeq, v.cur, v.pos = d, seq, vi.Cursor{}, 0
	return d.Capacity(), bad, true
}

func (v *viConsumer) scatter(off uint32, b []byte) vi.Status {
	return v.spread(v.recv, &v.cur, &v.pos, off, b)
}

func (v *viConsumer) finishRecv(d vi.Delivery) {
	r := v.recv
	v.recv = nil
	v.ep.FinishRecv(r, v.recvSeq, d)
}

func (v *viConsumer) check(handle uint32, va uint64, n uint32, write bool) regmem.Outcome {
	return v.ep.CheckTarget(vi.MemHandle(handle), va, uint64(n), write)
}

func (v *viConsumer) place(handle uint32, va uint64, b []byte) regmem.Outcome {
	ref, out := v.ep.Target(vi.MemHandle(handle), va, uint64(len(b)), true)
	if out != regmem.OK {
		return out
	}
	err := regmem.Copy(ref.B, b, ref.Guarded())
	ref.Release()
	if err != nil {
		return regmem.NoRegion
	}
	return regmem.OK
}

func (v *viConsumer) fetch(handle uint32, va uint64, n int, scratch []byte) ([]byte, regmem.Ref, regmem.Outcome) {
	ref, out := v.ep.Target(vi.MemHandle(handle), va, uint64(n), false)
	if out != regmem.OK || !ref.Guarded() {
		return ref.B, ref, out
	}
	err := regmem.Copy(scratch[:n], ref.B, true)
	ref.Release()
	if err != nil {
		return nil, regmem.Ref{}, regmem.NoRegion
	}
	return scratch[:n], regmem.Ref{}, regmem.OK
}

func (v *viConsumer) async(code vi.ErrorCode, op vi.Control) { v.ep.AsyncError(code, op) }
func (v *viConsumer) broken(orderly bool)                    { v.end(orderly) }
