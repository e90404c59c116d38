package nvme

import (
	"fmt"
	"io"
	"os"
)

// File returns a namespace with all bytes of f, a file or a block device. Discarded ranges become
// holes if the system and the file system support holes. f must be open for writing unless the
// caller sets ReadOnly. The caller closes f, for example in [Namespace.Release].
func File(f *os.File) (Namespace, error) {
	size, err := f.Seek(0, io.SeekEnd) // works for block devices too
	if err != nil {
		return Namespace{}, fmt.Errorf("nvme: size of a disk: %w", err)
	}
	return Namespace{Data: file{f}, Size: size}, nil
}

// MapFile is [File] with the bytes mapped into memory, so that hosts read and write the page cache
// without a copy. The mapping has a fixed size: to use the new bytes of a grown file, map the file
// again. If the file becomes shorter, or a hole cannot be filled because the file system is full,
// the affected queue ends, but not the process. Release removes the mapping: call Release yourself
// if the namespace was not added to a target.
//
// The error wraps [errors.ErrUnsupported] on systems without mapped files.
func MapFile(f *os.File, readOnly bool) (Namespace, error) {
	n, err := File(f)
	if err != nil {
		return n, err
	}
	m := &mapping{file: file{f}}
	if m.b, err = mmap(f, n.Size, !readOnly); err != nil {
		return n, fmt.Errorf("nvme: map %s: %w", f.Name(), err)
	}
	n.Data, n.ReadOnly, n.Release = m, readOnly, func() { munmap(m.b) }
	return n, nil
}

// A mapping is a file also mapped into memory. Access to the memory may fault. ReadAt and WriteAt
// use the file, and so return errors instead of faulting.
type mapping struct {
	file
	b []byte
}

// Slice implements [Slicer].
func (m *mapping) Slice(off, n int64, _ bool) []byte { return part(m.b, off, n) }

// part returns n bytes of b from offset off on, or nil if the range exceeds b.
func part(b []byte, off, n int64) []byte {
	if off < 0 || n < 0 || off > int64(len(b)) || n > int64(len(b))-off {
		return nil
	}
	return b[off : off+n : off+n]
}

// Sync implements [Syncer]. It also stores bytes written through the mapping.
func (m *mapping) Sync() error {
	if err := msync(m.b); err != nil {
		return err
	}
	return m.file.Sync()
}
