package iwarp

import (
	"viaduct/internal/regmem"
	"viaduct/internal/wire/rdmap"
)

// reach returns the n bytes at offset to of the region with the given STag of the peer. The outcome
// is regmem.OK if the region allows the rights in need; otherwise the bytes are nil. The bytes are
// nil with regmem.OK too if the placer cannot hold the pin, as for far memory. The placer then pins
// the memory later, piece by piece.
func (r *receiver) reach(stag uint32, to, n uint64, need regmem.Rights) ([]byte, regmem.Outcome) {
	if m := regmem.RegionOf(r.Held()); m != nil && m.Handle() == stag {
		return r.mem.within(r.Held(), to, n, need)
	}
	ref, out := r.mem.access(stag, to, n, need)
	if out == regmem.OK && !r.Hold(ref) {
		ref.Release()
		return nil, out
	}
	return ref.B(), out
}

// reachList returns n bytes from offset off of a list of local memory. The bytes must lie in one
// element, whose memory is unregistered or pinned by the placer; otherwise reachList returns nil.
func (r *receiver) reachList(sg []SGE, off, n uint64) []byte {
	for i := range sg {
		s := &sg[i]
		l := s.length()
		if off >= l {
			off -= l
			continue
		}
		if n > l-off {
			return nil
		}
		if s.Region == nil {
			return s.Buf[off : off+n]
		}
		if m := s.Region.r; regmem.RegionOf(r.Held()) == m {
			b, _ := r.mem.within(r.Held(), m.Base()+s.Off+off, n, regmem.LocalWrite)
			return b
		}
		if ref, out := s.pin(&r.mem, off, n, regmem.LocalWrite); out != regmem.OK {
			return nil
		} else if r.Hold(ref) {
			return ref.B()
		} else {
			ref.Release()
			return nil
		}
	}
	return nil
}

// list returns the memory of a Send's receive or of a Read's sink, and the offset in the list where
// the payload of the segment begins.
func (r *receiver) list(s *segment) (sg []SGE, off uint64) {
	if s.op == rdmap.ReadResponse {
		p := r.reads.Front()
		return p.w.sg[:p.w.nsg], uint64(p.got)
	}
	return r.box.sg(), uint64(s.un.MO)
}

// listTarget is the messageType.target of Sends and Read Responses, whose payload goes to the
// memory of a local request.
func (r *receiver) listTarget(s *segment, off, n uint64) (regmem.Ref, regmem.Outcome) {
	sg, from := r.list(s)
	return r.mem.pieceOf(sg, from+off, n)
}

// isFar reports whether memory of the segment is far, so that nothing can be read directly into the
// memory. The result is true too for a Write to a region closed in the meantime.
func (r *receiver) isFar(s *segment) bool {
	if s.op == rdmap.Write {
		m := r.mem.dev.reg.Lookup(s.tagged.STag)
		return m == nil || m.Far()
	}
	sg, _ := r.list(s)
	for i := range sg {
		if m := sg[i].Region; m != nil && m.r.Far() {
			return true
		}
	}
	return false
}
