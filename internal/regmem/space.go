package regmem

import (
	"fmt"
	"math"
)

// A Space is memory outside of the address space of this process, for example the memory of another
// process. The methods are safe for concurrent use. A method copies all bytes of p or returns an
// error. After an error, any part of p may have been copied.
type Space interface {
	ReadAt(p []byte, addr uint64) error
	WriteAt(p []byte, addr uint64) error
}

// RegisterSpace makes the n bytes at address base of the space s accessible under a new handle. The
// region is called far. Peers name the bytes by the addresses of the space, or from 0 with
// o.ZeroBased. The checks are the checks of near memory. Transfers fail if the space loses the
// memory.
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

// Far reports whether the memory belongs to a [Space] and not to this process.
func (r *Region) Far() bool { return r.mem == nil }

// Far reports whether the bytes belong to a [Space]. B is nil then; use CopyTo and CopyFrom.
func (ref Ref) Far() bool { return ref.region != nil && ref.region.mem == nil }

func (ref Ref) farFrom(src []byte) error {
	if len(src) > ref.n {
		panic("regmem: copy beyond a range")
	}
	return ref.region.space.WriteAt(src, ref.at)
}
