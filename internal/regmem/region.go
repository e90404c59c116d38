package regmem

import (
	"sync/atomic"
	"unsafe"
)

// Rights is a set of operations that are allowed on a region through its handle.
type Rights uint8

const (
	LocalRead    Rights = 1 << iota // gather: source of Sends and Writes
	LocalWrite                      // scatter: receives and Read results
	RemoteRead                      // source of a peer's RDMA Read
	RemoteWrite                     // target of a peer's RDMA Write
	RemoteAtomic                    // target of a peer's atomic operation

	// Local has the rights that every region gives its owner.
	Local = LocalRead | LocalWrite
)

// String lists the rights, "local-read|remote-write".
func (r Rights) String() string {
	names := [...]string{"local-read", "local-write", "remote-read", "remote-write", "remote-atomic"}
	s := ""
	for i, n := range names {
		if r&(1<<i) != 0 {
			if s != "" {
				s += "|"
			}
			s += n
		}
	}
	if s == "" {
		return "none"
	}
	return s
}

// A Domain is a protection tag (VI) or protection domain (iWARP). Domains are
// compared by identity. The nil *Domain matches every other: a protocol that
// has no such wildcard never passes nil.
type Domain struct {
	_ byte // distinct domains need distinct addresses
}

// NewDomain returns a domain that equals no other.
func NewDomain() *Domain { return new(Domain) }

// attributes holds the changeable attributes of a region. It is replaced as a whole, so that a
// lookup sees one consistent set.
type attributes struct {
	rights Rights
	domain *Domain
	owner  any
}

// closing is the bit of Region.state which means that no new pin is granted. The bits below it
// count pins.
const closing = 1 << 62

// A Region is a range of memory under one handle. It is made by
// [Registry.Register] or [Registry.Bind] and stays valid until deregistered.
type Region struct {
	handle  uint32
	guarded bool
	base    uint64
	size    uint64
	mem     []byte  // nil if the region is far
	space   Space   // of a far region
	at      uint64  // address in space of the first byte
	parent  *Region // of a window: the region it looks into
	reg     *Registry
	attrs   atomic.Pointer[attributes]

	faultBreaks bool // see Options

	state   atomic.Int64 // pins, and the closing bit
	drained chan struct{}

	windows int // guarded by Registry.mu; windows bound to this region
}

// Handle returns the memory handle or STag. It is never 0.
func (r *Region) Handle() uint32 { return r.handle }

// Base returns the address of the first byte as peers name it: the virtual address, or 0 with
// Options.ZeroBased.
func (r *Region) Base() uint64 { return r.base }

// Len returns the length in bytes.
func (r *Region) Len() int { return int(r.size) }

// Bytes returns the memory itself, nil if the region is far.
func (r *Region) Bytes() []byte { return r.mem }

// Rights returns the current rights of the region.
func (r *Region) Rights() Rights { return r.attrs.Load().rights }

// Domain returns the protection tag or domain of the region.
func (r *Region) Domain() *Domain { return r.attrs.Load().domain }

// Owner returns the connection that alone may use the region, nil for any of
// the domain.
func (r *Region) Owner() any { return r.attrs.Load().owner }

// Parent returns the region of this window, or nil if r is no window.
func (r *Region) Parent() *Region { return r.parent }

// Live reports whether the region is registered and not being deregistered.
func (r *Region) Live() bool { return r.state.Load()&closing == 0 }

// pin keeps the memory in place; false if the region is being deregistered.
func (r *Region) pin() bool {
	if r.state.Add(1)&closing != 0 {
		r.unpin()
		return false
	}
	return true
}

func (r *Region) unpin() {
	if r.state.Add(-1) == closing {
		// This was the last pin of a region that is being deregistered. A failing pin raises and
		// lowers the count again, so the signal can be sent more than once.
		select {
		case r.drained <- struct{}{}:
		default:
		}
	}
}

// A Ref is a pinned range of a region. The zero Ref pins nothing. It has four words, because the
// compiler passes larger structs in memory instead of registers, and Refs are passed by each
// function between a message and its bytes.
type Ref struct {
	p      *byte // the first byte, nil if they are far
	n      int
	region *Region
	at     uint64 // address of the first byte in the space of a far region
}

// Of returns a Ref to unpinned bytes.
func Of(b []byte) Ref { return Ref{p: unsafe.SliceData(b), n: len(b)} }

// B returns the bytes, nil if they are far. They must not be used after Release.
func (ref Ref) B() []byte {
	if ref.p == nil {
		return nil
	}
	return unsafe.Slice(ref.p, ref.n)
}

// Unpinned returns a Ref to the same near bytes without the pin, which is to be released by
// ref alone.
func (ref Ref) Unpinned() Ref { return Ref{p: ref.p, n: ref.n} }

// Len returns the number of bytes.
func (ref Ref) Len() int { return ref.n }

// Guarded reports whether accessing B may fault, because the memory is a mapped file that another
// process can truncate. Copy such bytes with [Copy].
func (ref Ref) Guarded() bool { return ref.region != nil && ref.region.guarded }

// FaultBreaks reports whether the system call that reads or writes the stream may move B although
// it is Guarded. A fault may then end the connection.
func (ref Ref) FaultBreaks() bool { return ref.region != nil && ref.region.faultBreaks }

// Probe reads a byte of each page of B. The error is a fault.
func (ref Ref) Probe() error { return probe(ref.B()) }

// CopyTo copies the bytes to dst, which is at least as long. The error is a fault of guarded
// or far memory; part of the bytes may have been copied then.
func (ref Ref) CopyTo(dst []byte) error {
	if ref.Far() {
		return ref.region.space.ReadAt(dst[:ref.n], ref.at)
	}
	return Copy(dst, ref.B(), ref.Guarded())
}

// CopyFrom copies src, which is at most as long, to the bytes; see CopyTo.
func (ref Ref) CopyFrom(src []byte) error {
	if ref.Far() {
		return ref.farFrom(src)
	}
	return Copy(ref.B(), src, ref.Guarded())
}

// CopyLastFrom is CopyFrom for memory that a program may watch: the last bytes of
// src become visible after all others, see [CopyLast].
func (ref Ref) CopyLastFrom(src []byte) error {
	if ref.Far() {
		return ref.farFrom(src)
	}
	return CopyLast(ref.B(), src, ref.Guarded())
}

// Pins reports whether Release must still be called.
func (ref Ref) Pins() bool { return ref.region != nil }

// RegionOf returns the region that a range belongs to, nil for the zero Ref.
func RegionOf(ref Ref) *Region { return ref.region }

// Release releases the pin. Call it once per successful access.
func (ref Ref) Release() {
	if r := ref.region; r != nil {
		p := r.parent
		r.unpin()
		if p != nil {
			p.unpin()
		}
	}
}

// ReleaseAll releases the pins of all refs and returns the cleared, empty slice for reuse.
func ReleaseAll(refs []Ref) []Ref {
	for i := range refs {
		refs[i].Release()
	}
	clear(refs)
	return refs[:0]
}

// Closing reports whether the region is being deregistered and its deregistration waits for the
// pin.
func (ref Ref) Closing() bool {
	r := ref.region
	return r != nil && (r.state.Load()&closing != 0 || r.parent != nil && r.parent.state.Load()&closing != 0)
}

// RegistryOf returns where the region of a range is registered, nil for the zero Ref.
func RegistryOf(ref Ref) *Registry {
	if ref.region == nil {
		return nil
	}
	return ref.region.reg
}

// Address returns the virtual address of the first byte of b, 0 for an empty
// slice. It is how Go memory is named in a VI data segment.
func Address(b []byte) uint64 {
	if cap(b) == 0 {
		return 0
	}
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b))))
}
