package vi

import (
	"errors"
	"fmt"

	"viaduct/internal/regmem"
)

// A Region is registered memory.
type Region struct { // [VIA 1.4]
	nic   *NIC
	r     *regmem.Region
	attrs MemAttributes // guarded by nic.mu
}

// RegisterMem registers buf. buf may be Go memory, a mapping, or memory of C (unsafe.Slice). buf must
// stay allocated and in place until DeregisterMem; Go memory does so by itself. The same memory may
// be registered several times.
//
// Errors: ErrInvalidParameter for an empty buf, ErrInvalidPtag, ErrInvalidRDMARead, ErrResource
// beyond a limit of the NIC, ErrClosed.
func (n *NIC) RegisterMem(buf []byte, a MemAttributes) (*Region, error) { // [VIA 6.4.2] [VIA-1.4-1] [VIA-1.4-2] [VIA-1.4-4]
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil, ErrClosed
	}
	if a.EnableRDMARead && n.attrs.RDMAReadSupport == 0 {
		return nil, ErrInvalidRDMARead
	}
	d, err := n.usePtagLocked(a.Ptag)
	if err != nil {
		return nil, err
	}
	r, err := n.memory.Register(buf, regmem.Options{Rights: a.rights(), Domain: d, Guarded: a.Guarded, FaultBreaks: a.FaultBreaks}) // [VIA-1.1-5]
	if err != nil {
		n.dropPtagLocked(a.Ptag)
		if errors.Is(err, regmem.ErrLimit) {
			return nil, fmt.Errorf("%w: %w", ErrResource, err) // [VIA-8.2-1]
		}
		return nil, fmt.Errorf("%w: %w", ErrInvalidParameter, err)
	}
	return &Region{nic: n, r: r, attrs: a}, nil
}

func (a MemAttributes) rights() regmem.Rights {
	var r regmem.Rights
	if a.EnableRDMAWrite {
		r |= regmem.RemoteWrite
	}
	if a.EnableRDMARead {
		r |= regmem.RemoteRead
	}
	return r
}

// DeregisterMem ends a registration. DeregisterMem waits for accesses in progress, so that nothing
// accesses the memory afterwards. A posted descriptor with the region's handle fails with a
// protection error when it starts.
//
// Errors: ErrInvalidParameter if r is not registered with the NIC.
func (n *NIC) DeregisterMem(r *Region) error { // [VIA 6.4.2] [VIA-6.4-3] [VIA-8.3-16]
	if r == nil {
		return fmt.Errorf("%w: region", ErrInvalidParameter)
	}
	if err := n.memory.Deregister(r.r); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidParameter, err)
	}
	n.mu.Lock()
	n.dropPtagLocked(r.attrs.Ptag)
	n.mu.Unlock()
	return nil
}

// MayUse reports whether length bytes at addr lie in the region of handle and the VI's protection
// tag allows access to the region. A C library whose descriptors lie in registered memory calls
// MayUse to check the memory of a descriptor itself.
func (v *VI) MayUse(handle MemHandle, addr, length uint64) bool { // [VIA 1.5] [VIA-1.5-4]
	var d *regmem.Domain
	if ep := v.conn.Load(); ep != nil {
		d = ep.domain
	} else {
		v.mu.Lock()
		d = v.domain
		v.mu.Unlock()
	}
	return v.nic.memory.Check(uint32(handle), addr, length, d, nil, regmem.Local) == regmem.OK
}

// QueryMem returns the attributes of a region, or ErrInvalidParameter if r is not registered with
// the NIC.
func (n *NIC) QueryMem(r *Region) (MemAttributes, error) { // [VIA 6.4.2]
	if r == nil || r.nic != n || n.memory.Lookup(r.r.Handle()) != r.r {
		return MemAttributes{}, fmt.Errorf("%w: region", ErrInvalidParameter)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return r.attrs, nil
}

// SetMemAttributes changes the attributes of a region. Started operations keep the old attributes.
// Guarded and FaultBreaks can't be changed.
//
// Errors: ErrInvalidParameter, ErrInvalidPtag, ErrInvalidRDMARead.
func (n *NIC) SetMemAttributes(r *Region, a MemAttributes) error { // [VIA 6.4.2]
	if r == nil || r.nic != n {
		return fmt.Errorf("%w: region", ErrInvalidParameter)
	}
	if a.EnableRDMARead && n.attrs.RDMAReadSupport == 0 {
		return ErrInvalidRDMARead
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	// The lookup needs the lock, because DeregisterMem, under the same lock, releases the region's
	// current tag.
	if n.memory.Lookup(r.r.Handle()) != r.r || a.Guarded != r.attrs.Guarded || a.FaultBreaks != r.attrs.FaultBreaks {
		return fmt.Errorf("%w: region", ErrInvalidParameter)
	}
	d, err := n.usePtagLocked(a.Ptag)
	if err != nil {
		return err
	}
	n.dropPtagLocked(r.attrs.Ptag)
	r.attrs = a
	n.memory.SetAttributes(r.r, a.rights(), d, nil) // [VIA-6.4-4] [VIA-1.5-3] [VIA-8.3-14]
	return nil
}

// Handle returns the memory handle, never 0.
func (r *Region) Handle() MemHandle { return MemHandle(r.r.Handle()) }

// Address returns the virtual address of the first byte.
func (r *Region) Address() uint64 { return r.r.Base() }

// Len returns the length in bytes.
func (r *Region) Len() int { return r.r.Len() }

// Bytes returns the memory.
func (r *Region) Bytes() []byte { return r.r.Bytes() }

// Segment returns n bytes at offset off of the region as a local data segment. It checks nothing,
// because the NIC checks the segment at the start of the descriptor.
func (r *Region) Segment(off, n int) Segment {
	return Segment{Address: r.r.Base() + uint64(off), Handle: r.Handle(), Length: uint32(n)}
}

// Remote returns the address and handle of offset off of the region, in the form a peer needs for
// an RDMA.
func (r *Region) Remote(off int) RemoteSegment {
	return RemoteSegment{Address: r.r.Base() + uint64(off), Handle: r.Handle()}
}
