package rxe

import (
	"errors"

	"viaduct/internal/rocecore"
)

var errNoRegion = errors.New("rxe: no region has that memory")

// A buffer is the memory the elements of an entry name. It looks up the regions at each access,
// because the program may deregister memory while a request is in progress, for example during a
// long Read. The request then fails.
type buffer struct {
	memory   Memory
	need     uint32 // required rights of the regions
	elements []element
	size     int
}

var _ rocecore.Buffer = (*buffer)(nil)

// Len implements rocecore.Buffer.
func (b *buffer) Len() int { return b.size }

// ReadAt implements rocecore.Buffer.
func (b *buffer) ReadAt(p []byte, off int) error { return b.each(p, off, Region.ReadAt) }

// WriteAt implements rocecore.Buffer.
func (b *buffer) WriteAt(p []byte, off int) error { return b.each(p, off, Region.WriteAt) }

// each calls do for every element that overlaps the len(p) bytes at offset off. The error is
// errNoRegion if a region is missing, and errShort if the elements have fewer bytes.
func (b *buffer) each(p []byte, off int, do func(r Region, p []byte, addr uint64) error) error {
	for i := range b.elements {
		e := &b.elements[i]
		if off >= int(e.length) {
			off -= int(e.length)
			continue
		}
		n := min(int(e.length)-off, len(p))
		if n == 0 {
			return nil
		}
		r := b.memory.Find(e.key, e.addr, uint64(e.length), b.need)
		if r == nil {
			return errNoRegion
		}
		err := do(r, p[:n], e.addr+uint64(off))
		r.Release()
		if err != nil {
			return err
		}
		p, off = p[n:], 0
	}
	if len(p) > 0 {
		return errShort
	}
	return nil
}

// An inline is the payload contained in an entry.
type inline []byte

var _ rocecore.Buffer = inline(nil)

// Len implements rocecore.Buffer.
func (b inline) Len() int { return len(b) }

// ReadAt implements rocecore.Buffer.
func (b inline) ReadAt(p []byte, off int) error { copy(p, b[off:]); return nil }

// WriteAt implements rocecore.Buffer.
func (b inline) WriteAt(p []byte, off int) error { copy(b[off:], p); return nil }
