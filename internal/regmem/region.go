package regmem

import (
	"sync/atomic"
	"unsafe"
)

// Rights is a set of operations allowed on a region through the handle.
type Rights uint8

const (
	LocalRead    Rights = 1 << iota // Sends and Writes may gather payload from the region
	LocalWrite                      // receives and Reads may scatter payload to the region
	RemoteRead                      // a peer may RDMA Read the region
	RemoteWrite                     // a peer may RDMA Write to the region
	RemoteAtomic                    // a peer may perform atomic operations on the region

	// Local is the set of rights the owner of every region has.
	Local = LocalRead | LocalWrite
)

// String lists the rights, for example "local-read|remote-write".
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

// A Domain is a protection tag (VI) or protection domain (iWARP). Domains are compared by identity.
// The nil *Domain matches every other: a protocol without a wildcard never passes nil.
type Domain struct {
	_ byte // distinct domains need distinct addresses
}

// NewDomain returns a domain equal to no other.
func NewDomain() *Domain { return new(Domain) }

// attributes holds the changeable attributes of a region. The struct is replaced as a whole, so
// that a lookup sees a consistent set.
type attributes struct {
	rights Rights
	domain *Domain
	owner  any
}

// closing is the bit of Region.state for refusing new pins. The bits below closing count pins.
const closing = 1 << 62

// A Region is a range of memory under a handle. It is made by [Registry.Register] or
// [Registry.Bind] and stays valid until deregistered.
type Region struct {
	handle  uint32
	guarded bool
	base    uint64
	size    uint64
	mem     []byte  // nil if the region is far: then its memory is in space
	space   Space   // where the memory of a far region is; nil if it is near
	at      uint64  // address of the first byte in space
	parent  *Region // the region that a window is part of; nil for a region
	reg     *Registry
	attrs   atomic.Pointer[attributes]

	faultBreaks bool // see Options.FaultBreaks

	state   atomic.Int64 // count of pins, and the closing bit
	drained chan struct{}

	windows int // guarded by Registry.mu; windows bound to this region
}

// Handle returns the memory handle or STag. It is never 0.
func (r *Region) Handle() uint32 { return r.handle }

// Base returns the address of the first byte, as named by peers: the virtual address, or 0 with
// Options.ZeroBased.
func (r *Region) Base() uint64 { return r.base }

// Len returns the length of the region in bytes.
func (r *Region) Len() int { return int(r.size) }

// Bytes returns the memory of the region, or nil if the region is far.
func (r *Region) Bytes() []byte { return r.mem }

// Rights returns the current rights of the region.
func (r *Region) Rights() Rights { return r.attrs.Load().rights }

// Domain returns the protection tag or domain of the region.
func (r *Region) Domain() *Domain { return r.attrs.Load().domain }

// Owner returns the only connection that may use the region. Owner returns nil if every connection
// of the domain may use the region.
func (r *Region) Owner() any { return r.attrs.Load().owner }

// Parent returns the region of this window, or nil if r is no window.
func (r *Region) Parent() *Region { return r.parent }

// Live reports whether the region is registered and not being deregistered.
func (r *Region) Live() bool { return r.state.Load()&closing == 0 }

// pin adds a pin, which keeps the memory in place. It returns false if the region is being
// deregistered.
func (r *Region) pin() bool {
	if r.state.Add(1)&closing != 0 {
		r.unpin()
		return false
	}
	return true
}

func (r *Region) unpin() {
	if r.state.Add(-1) == closing {
		// The released pin was the last pin of a region being deregistered. A failing pin raises
		// and lowers the count again, so the signal can be sent more than once.
		select {
		case r.drained <- struct{}{}:
		default:
		}
	}
}

// A Ref is a pinned range of a region. The zero Ref pins nothing. A Ref has four words: every
// function between a message and its bytes passes Refs, and the compiler passes structs of more
// words in memory instead of registers.
type Ref struct {
	p      *byte // the first byte; nil if the range is far
	n      int
	region *Region
	at     uint64 // address of the first byte in the space of a far region
}

// Of returns a Ref to bytes that need no pin.
func Of(b []byte) Ref { return Ref{p: unsafe.SliceData(b), n: len(b)} }

// B returns the bytes, or nil if the range is far. The bytes must not be used after Release.
func (ref Ref) B() []byte {
	if ref.p == nil {
		return nil
	}
	return unsafe.Slice(ref.p, ref.n)
}

// Unpinned returns a Ref without a pin to the same bytes, which must be near. The bytes are valid
// until the caller releases ref.
func (ref Ref) Unpinned() Ref { return Ref{p: ref.p, n: ref.n} }

// Len returns the number of bytes of the range.
func (ref Ref) Len() int { return ref.n }

// Guarded reports whether accessing B may fault, because the memory is a mapped file another
// process can truncate. Copy guarded bytes with [Copy].
func (ref Ref) Guarded() bool { return ref.region != nil && ref.region.guarded }

// FaultBreaks reports whether the kernel may copy between B and the stream although B is Guarded. A
// fault in the system call may end the connection.
func (ref Ref) FaultBreaks() bool { return ref.region != nil && ref.region.faultBreaks }

// Probe reads one byte of each page of B. It returns ErrFault if a page can't be read.
func (ref Ref) Probe() error { return probe(ref.B()) }

// CopyTo copies all bytes of the range to dst, which must be at least as long. It returns an error
// if guarded or far memory faults; dst may have received part of the bytes then.
func (ref Ref) CopyTo(dst []byte) error {
	if ref.Far() {
		return ref.region.space.ReadAt(dst[:ref.n], ref.at)
	}
	return Copy(dst, ref.B(), ref.Guarded())
}

// CopyFrom copies src to the start of the range, which must be at least as long. The errors are the
// same as for CopyTo.
func (ref Ref) CopyFrom(src []byte) error {
	if ref.Far() {
		return ref.farFrom(src)
	}
	return Copy(ref.B(), src, ref.Guarded())
}

// CopyLastFrom is CopyFrom for memory a program may poll. The last bytes of src become visible
// after all others, see [CopyLast].
func (ref Ref) CopyLastFrom(src []byte) error {
	if ref.Far() {
		return ref.farFrom(src)
	}
	return CopyLast(ref.B(), src, ref.Guarded())
}

// Pins reports whether the Ref holds a pin, so that Release must be called.
func (ref Ref) Pins() bool { return ref.region != nil }

// RegionOf returns the region a range belongs to, or nil for the zero Ref.
func RegionOf(ref Ref) *Region { return ref.region }

// Release releases the pin. The caller must call Release exactly once for each successful access.
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

// Closing reports whether a Deregister of the region waits for this pin.
func (ref Ref) Closing() bool {
	r := ref.region
	return r != nil && (r.state.Load()&closing != 0 || r.parent != nil && r.parent.state.Load()&closing != 0)
}

// RegistryOf returns the registry of the range's region, or nil for the zero Ref.
func RegistryOf(ref Ref) *Registry {
	if ref.region == nil {
		return nil
	}
	return ref.region.reg
}

// Address returns the virtual address of the first byte of b, or 0 for an empty slice. A VI data
// segment names Go memory by this address.
func Address(b []byte) uint64 {
	if cap(b) == 0 {
		return 0
	}
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b))))
}
