package nvme

import (
	"errors"
	"sync/atomic"
)

// chunk is the size in bytes of the units in which memory records writes.
const chunk = 1 << 16

// memory is a disk in memory. Discard clears only written chunks. A host discards the whole disk
// before making a file system, and clearing the whole disk would allocate its memory.
type memory struct {
	b       []byte
	written []atomic.Bool // one for each chunk
}

// Memory returns a namespace of size zero bytes in memory. The system allocates pages on the first
// write.
func Memory(size int64) Namespace {
	return Namespace{Size: size, Data: &memory{b: make([]byte, size),
		written: make([]atomic.Bool, (size+chunk-1)/chunk)}}
}

var errRange = errors.New("nvme: beyond the end of the memory")

// Slice implements [Slicer].
func (m *memory) Slice(off, n int64, write bool) []byte {
	s := part(m.b, off, n)
	if write && s != nil {
		for i := off / chunk; i*chunk < off+n; i++ {
			m.written[i].Store(true)
		}
	}
	return s
}

// ReadAt implements [io.ReaderAt].
func (m *memory) ReadAt(p []byte, off int64) (int, error) {
	s := m.Slice(off, int64(len(p)), false)
	if s == nil {
		return 0, errRange
	}
	return copy(p, s), nil
}

// WriteAt implements [io.WriterAt].
func (m *memory) WriteAt(p []byte, off int64) (int, error) {
	s := m.Slice(off, int64(len(p)), true)
	if s == nil {
		return 0, errRange
	}
	return copy(s, p), nil
}

// Discard implements [Discarder].
func (m *memory) Discard(off, n int64) error {
	if m.Slice(off, n, false) == nil {
		return errRange
	}
	for end := off + n; off < end; {
		next := min(end, (off/chunk+1)*chunk)
		if m.written[off/chunk].Load() {
			clear(m.b[off:next])
		}
		off = next
	}
	return nil
}
