package regmem

import (
	"fmt"
	"math"
)

// A Space is memory that this process cannot address, for example that of another process. Any
// number of goroutines may call its methods at a time. A method moves all of p or returns an error;
// part of p may have been moved then.
type Space interface {
	ReadAt(p []byte, addr uint64) error
	WriteAt(p []byte, addr uint64) error
}

// RegisterSpace makes n bytes of a space, from address base on, usable under a new handle: a far
// region. Peers name them by the addresses of the space, unless o.ZeroBased makes those start at 0.
// The checks are the same as for near memory. The space may lose the memory at any time; transfers
// fail then.
//
// Errors: ErrInvalid, ErrLimit.
func (g *Registry) RegisterSpace(s Space, base, n uint64, o Options) (*Region, error) {
	if n == 0 || n > math.MaxInt || base+(n-1) < base {
		return nil, fmt.Errorf("%w: %d bytes at %#x", ErrInvalid, n, base)
	}
	r := &Region{size: n, space: s, at: base, reg: g}
	if !o.ZeroBased {
		r.base = base
	}
	r.attrs.Store(&attributes{o.Rights | Local, o.Domain, o.Owner})
	if err := g.add(r, o, true); err != nil {
		return nil, err
	}
	return r, nil
}

// Far reports whether the memory is not this process's.
func (r *Region) Far() bool { return r.mem == nil }

// Far reports whether the bytes are not this process's: B is nil, and they are
// copied by CopyTo and CopyFrom alone.
func (ref Ref) Far() bool { return ref.region != nil && ref.region.mem == nil }

func (ref Ref) farFrom(src []byte) error {
	if len(src) > ref.n {
		panic("regmem: copy beyond a range")
	}
	return ref.region.space.WriteAt(src, ref.at)
}
