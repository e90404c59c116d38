package regmem

import (
	"fmt"
	"unsafe"
)

// An Outcome is the result of an access check. Protocols map it to their own status or wire code.
type Outcome uint8

const (
	OK          Outcome = iota
	NoRegion            // the handle names no region
	WrongDomain         // the region belongs to another protection domain
	WrongOwner          // the region belongs to another connection
	NoRights            // the region does not allow this kind of access
	Wrap                // address plus length exceeds 2^64
	OutOfBounds         // the range leaves the region
)

// String returns the outcome in words, for logs and errors.
func (o Outcome) String() string {
	switch o {
	case OK:
		return "ok"
	case NoRegion:
		return "no such region"
	case WrongDomain:
		return "wrong protection domain"
	case WrongOwner:
		return "wrong connection"
	case NoRights:
		return "access right missing"
	case Wrap:
		return "address wraps around"
	case OutOfBounds:
		return "out of bounds"
	}
	return fmt.Sprintf("Outcome(%#x)", uint8(o))
}

// Access checks that a connection of domain d and identity owner may use length bytes at addr of
// the region of handle, in the way described by need, and pins the bytes. The checks are made in
// the order of the Outcome constants. The first failure is returned, and then nothing is pinned.
// Every bit of need must be granted.
//
// A range of length 0 passes if addr lies in the region or at the end.
func (g *Registry) Access(handle uint32, addr, length uint64, d *Domain, owner any, need Rights) (Ref, Outcome) {
	r := g.live.get(handle)
	if r == nil {
		return Ref{}, NoRegion
	}
	return r.Access(addr, length, d, owner, need)
}

// Access is [Registry.Access] for a region the caller has looked up already. It returns NoRegion if
// the region was deregistered.
func (r *Region) Access(addr, length uint64, d *Domain, owner any, need Rights) (Ref, Outcome) {
	off, out := r.check(addr, length, d, owner, need)
	if out != OK {
		return Ref{}, out
	}
	// The parent is pinned before the window, and released after it. While a window is registered
	// the parent can't be deregistered, and the parent's memory must exist until the last pin of
	// the window is gone.
	if p := r.parent; p != nil && !p.pin() {
		return Ref{}, NoRegion
	}
	if !r.pin() {
		if r.parent != nil {
			r.parent.unpin()
		}
		return Ref{}, NoRegion
	}
	if r.mem == nil {
		return Ref{region: r, at: r.at + off, n: int(length)}, OK
	}
	b := r.mem[off : off+length]
	return Ref{p: unsafe.SliceData(b), n: len(b), region: r}, OK
}

// Within returns another range of the region pinned by ref, after the checks of [Region.Access].
// The region must be near. Within takes no separate pin, so the bytes must not be used after the
// release of ref. The outcome is NoRegion once the region is being deregistered.
func Within(ref Ref, addr, length uint64, d *Domain, owner any, need Rights) (Ref, Outcome) {
	r := ref.region
	off, out := r.check(addr, length, d, owner, need)
	if out != OK {
		return Ref{}, out
	}
	if r.state.Load()&closing != 0 {
		return Ref{}, NoRegion
	}
	return Of(r.mem[off : off+length]), OK
}

// Check makes the checks of Access without a pin: it reports whether the range could be used now.
// Check is for the start of a message whose bytes are placed later.
func (g *Registry) Check(handle uint32, addr, length uint64, d *Domain, owner any, need Rights) Outcome {
	r := g.live.get(handle)
	if r == nil {
		return NoRegion
	}
	_, out := r.check(addr, length, d, owner, need)
	return out
}

func (r *Region) check(addr, length uint64, d *Domain, owner any, need Rights) (off uint64, _ Outcome) {
	a := r.attrs.Load()
	if a.domain != d && a.domain != nil && d != nil {
		return 0, WrongDomain // [VIA-1.4-7] [VIA-1.5-2]
	}
	if a.owner != nil && a.owner != owner {
		return 0, WrongOwner
	}
	if need&^a.rights != 0 {
		return 0, NoRights
	}
	if length != 0 && addr+(length-1) < addr {
		return 0, Wrap
	}
	// The code subtracts only from trusted numbers, so that no difference wraps.
	if addr < r.base || addr-r.base > r.size || length > r.size-(addr-r.base) { // [VIA-1.4-3] [VIA-8.3-15]
		return 0, OutOfBounds
	}
	return addr - r.base, OK
}
