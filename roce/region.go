package roce

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"viaduct/internal/regmem"
	"viaduct/internal/rocecore"
)

// An Access is a set of rights a peer has on a region. The owner may always read and write the
// region.
type Access uint8

// Access rights. Give no more than the transfer needs.
const (
	RemoteRead   = Access(rocecore.RemoteRead)
	RemoteWrite  = Access(rocecore.RemoteWrite)
	RemoteAtomic = Access(rocecore.RemoteAtomic)

	LocalOnly Access = 0 // no rights; enough for the destination of a Read
)

func rights(a rocecore.Access) (r regmem.Rights) {
	if a&rocecore.RemoteRead != 0 {
		r |= regmem.RemoteRead
	}
	if a&rocecore.RemoteWrite != 0 {
		r |= regmem.RemoteWrite
	}
	if a&rocecore.RemoteAtomic != 0 {
		r |= regmem.RemoteAtomic
	}
	return r
}

// A ProtectionDomain groups queue pairs and regions: a region can be used only by queue pairs of
// its domain. All methods are safe for concurrent use.
type ProtectionDomain struct {
	dev *Device
	dom *regmem.Domain
}

// Register makes mem usable by the queue pairs of the domain, and by their peers as far as access
// allows. The memory must stay valid until MemoryRegion.Close. Pass a slice of exactly the bytes
// the peer needs, for example buf[:n]. The error is ErrInvalid if mem is empty.
func (p *ProtectionDomain) Register(mem []byte, access Access) (*MemoryRegion, error) {
	r, err := p.dev.regions.Register(mem, regmem.Options{Rights: rights(rocecore.Access(access)),
		Domain: p.dom, ZeroBased: true})
	if err != nil {
		return nil, fmt.Errorf("%w: %v", ErrInvalid, err)
	}
	return &MemoryRegion{p, r}, nil
}

// A MemoryRegion is registered memory. All methods are safe for concurrent use.
type MemoryRegion struct {
	pd *ProtectionDomain
	r  *regmem.Region
}

// Bytes returns the registered memory itself, not a copy.
func (m *MemoryRegion) Bytes() []byte { return m.r.Bytes() }

// Key returns the number by which peers name the region. It is random.
func (m *MemoryRegion) Key() uint32 { return m.r.Handle() }

// Addr returns the address that peers use for the first byte.
func (m *MemoryRegion) Addr() uint64 { return m.r.Base() }

// SGE returns an element for n bytes at offset off of the region. Post checks the bounds.
func (m *MemoryRegion) SGE(off, n int) SGE { return SGE{Region: m, Off: uint64(off), Len: uint64(n)} }

// Close revokes the key. After it returned, neither a peer nor a request accesses the memory. A
// second call returns ErrRegistered.
func (m *MemoryRegion) Close() error {
	if m.pd.dev.regions.Deregister(m.r) != nil {
		return ErrRegistered
	}
	return nil
}

// A memory implements the part of rocecore.Host that accesses memory for the peer.
type memory struct {
	regions *regmem.Registry
	dom     *regmem.Domain
}

// Check implements rocecore.Host.
func (m *memory) Check(p rocecore.Place, n uint64, a rocecore.Access) rocecore.Verdict {
	if m.regions.Check(p.Key, p.VA, n, m.dom, nil, rights(a)) != regmem.OK {
		return rocecore.Refused
	}
	return rocecore.Allowed
}

// Write implements rocecore.Host.
func (m *memory) Write(p rocecore.Place, b []byte) rocecore.Verdict {
	ref, out := m.regions.Access(p.Key, p.VA, uint64(len(b)), m.dom, nil, regmem.RemoteWrite)
	if out != regmem.OK {
		return rocecore.Refused
	}
	defer ref.Release()
	if ref.CopyFrom(b) != nil {
		return rocecore.Refused
	}
	return rocecore.Allowed
}

// Read implements rocecore.Host.
func (m *memory) Read(p rocecore.Place, b []byte) rocecore.Verdict {
	ref, out := m.regions.Access(p.Key, p.VA, uint64(len(b)), m.dom, nil, regmem.RemoteRead)
	if out != regmem.OK {
		return rocecore.Refused
	}
	defer ref.Release()
	if ref.CopyTo(b) != nil {
		return rocecore.Refused
	}
	return rocecore.Allowed
}

// Atomic implements rocecore.Host with the atomic instructions of the processor. The operation is
// therefore atomic with regard to all other queue pairs, and to sync/atomic in this process.
// [ROCE-RESP-17]
func (m *memory) Atomic(op rocecore.Op, p rocecore.Place, swapAdd, compare uint64) (uint64, rocecore.Verdict) {
	const word = 8
	ref, out := m.regions.Access(p.Key, p.VA, word, m.dom, nil, regmem.RemoteAtomic)
	if out != regmem.OK {
		return 0, rocecore.Refused
	}
	defer ref.Release()
	w := (*uint64)(unsafe.Pointer(&ref.B()[0]))
	if p.VA%word != 0 || uintptr(unsafe.Pointer(w))%word != 0 {
		return 0, rocecore.Misaligned
	}
	for {
		old := atomic.LoadUint64(w)
		word := swapAdd
		switch {
		case op == rocecore.FetchAdd:
			word = old + swapAdd
		case old != compare:
			return old, rocecore.Allowed
		}
		if atomic.CompareAndSwapUint64(w, old, word) {
			return old, rocecore.Allowed
		}
	}
}

// Invalidate implements rocecore.Host. It refuses, because a peer cannot invalidate regions.
func (m *memory) Invalidate(uint32) rocecore.Verdict { return rocecore.Refused }
