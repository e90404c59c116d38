package iwarp

import (
	"viaduct/internal/regmem"
	"viaduct/internal/wire/rdmap"
)

// writeTarget is the messageType.target of RDMA Writes.
func (r *receiver) writeTarget(s *segment, off, n uint64) (regmem.Ref, regmem.Outcome) {
	h := &s.tagged
	if m := regmem.RegionOf(r.Held()); m != nil && m.Handle() == h.STag {
		return r.mem.within(r.Held(), h.TO+off, n, regmem.RemoteWrite)
	}
	return r.mem.access(h.STag, h.TO+off, n, regmem.RemoteWrite)
}

// listTarget is the messageType.target of Sends and Read Responses, whose payload goes to the
// memory of a local request: a receive, or our oldest Read.
func (r *receiver) listTarget(s *segment, off, n uint64) (regmem.Ref, regmem.Outcome) {
	if s.op == rdmap.ReadResponse {
		p := r.reads.Front()
		return r.mem.pieceOf(r.Held(), p.w.sg[:p.w.nsg], uint64(p.got)+off, n)
	}
	return r.mem.pieceOf(r.Held(), r.box.sg(), uint64(s.un.MO)+off, n)
}

// reachList sets s.at to the memory for the payload of a Send or a Read Response if the memory is in
// one element of the list. Otherwise the placer pins the memory later, piece by piece.
func (r *receiver) reachList(s *segment) {
	ref, _ := r.listTarget(s, 0, uint64(s.size))
	if ref.Len() < s.size {
		ref.Release()
	} else {
		s.at = r.Hold(ref)
	}
}

// direct reports whether a read can put the payload of s directly into the memory, because no part
// of the memory is far. If at is not nil, a read has put the payload from offset off on there; then
// the memory at off must begin at at.
func (r *receiver) direct(t *messageType, s *segment, off int, at []byte) bool {
	if at == nil {
		off = 0
	}
	for i := off; i < s.size; {
		ref, out := t.target(r, s, uint64(i), uint64(s.size-i))
		if out != regmem.OK {
			return at == nil // Target reports the fault
		}
		n := ref.Len()
		ref.Release()
		if ref.Far() || at != nil && i == off && &ref.B()[0] != &at[0] {
			return false
		}
		i += n
	}
	return true
}
