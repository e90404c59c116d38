package iwarp

import (
	"fmt"

	"viaduct/internal/regmem"
)

// A memory is the registered memory that a stream or a shared receive queue may use: the regions of
// a domain, and the regions and windows whose owner is the memory. It has no other state, so any
// goroutine may use it.
type memory struct {
	dev *Device
	pd  *ProtectionDomain // a domain of dev
}

func newMemory(pd *ProtectionDomain) memory { return memory{dev: pd.dev, pd: pd} }

// admits reports whether requests may name region r.
func (m *memory) admits(r *MemoryRegion) bool {
	return r.pd == m.pd && (r.owner == nil || r.owner == m)
}

// access pins n bytes at offset to of the region with the given STag, for the rights in need.
func (m *memory) access(stag uint32, to, n uint64, need regmem.Rights) (regmem.Ref, regmem.Outcome) {
	return m.dev.reg.Access(stag, to, n, m.pd.dom, m, need)
}

// check returns the outcome that access would have, without a pin.
func (m *memory) check(stag uint32, to, n uint64, need regmem.Rights) regmem.Outcome {
	return m.dev.reg.Check(stag, to, n, m.pd.dom, m, need)
}

// within returns n bytes at offset to of the region that pin holds, for the rights in need. The
// result has no separate pin.
func (m *memory) within(pin regmem.Ref, to, n uint64, need regmem.Rights) (regmem.Ref, regmem.Outcome) {
	return regmem.Within(pin, to, n, m.pd.dom, m, need)
}

// checkList checks a list when a request is posted, and returns the length in bytes.
func (m *memory) checkList(sg []SGE) (n uint64, err error) {
	if len(sg) > MaxSGE {
		return 0, fmt.Errorf("%w: %d elements, at most %d", ErrInvalid, len(sg), MaxSGE)
	}
	for i := range sg {
		if err := sg[i].check(m); err != nil {
			return 0, err
		}
		n += sg[i].length()
	}
	return n, nil
}

// pieceOf pins the memory of a list from offset off on: at most n bytes, up to the end of the
// element that contains off. The outcome is regmem.OutOfBounds if the list ends before off. If held
// pins the region already, the result has no separate pin.
func (m *memory) pieceOf(held regmem.Ref, sg []SGE, off, n uint64) (regmem.Ref, regmem.Outcome) {
	for i := range sg {
		s := &sg[i]
		l := s.length()
		if off >= l {
			off -= l
			continue
		}
		return s.pin(m, held, off, min(l-off, n), regmem.LocalWrite)
	}
	return regmem.Ref{}, regmem.OutOfBounds
}

// move copies the first n bytes of list from to list to. It stops early if memory of either list is
// not accessible any more.
func (m *memory) move(to, from []SGE, n uint64) {
	for off := uint64(0); off < n; {
		src, out := m.pieceOf(regmem.Ref{}, from, off, n-off)
		if out != regmem.OK {
			return
		}
		dst, out := m.pieceOf(regmem.Ref{}, to, off, uint64(src.Len()))
		k := dst.Len()
		if out == regmem.OK {
			dst.CopyFrom(src.B()[:k])
			dst.Release()
		}
		src.Release()
		if out != regmem.OK {
			return
		}
		off += uint64(k)
	}
}
