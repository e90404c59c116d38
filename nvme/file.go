package nvme

import (
	"fmt"
	"io"
	"os"
)

// File returns a namespace of all bytes of f, a file or a block device. Ranges that hosts discard
// become holes where the system and the file system have them. f must be open for writing unless
// the namespace is made ReadOnly, and is the caller's to close: see [Namespace.Release].
func File(f *os.File) (Namespace, error) {
	size, err := f.Seek(0, io.SeekEnd) // which a block device has too
	if err != nil {
		return Namespace{}, fmt.Errorf("nvme: size of a disk: %w", err)
	}
	return Namespace{Data: file{f}, Size: size}, nil
}

// MapFile is [File] with the bytes mapped into memory: reads and writes of hosts go from and to the
// page cache, and are not copied. The size of the mapping is fixed, so that a file that has grown
// needs a new one. If the file becomes shorter, or its file system is full when a hole is written,
// the command ends its queue and not the process. Release removes the mapping: call it if the
// namespace was not added to a target.
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

// A mapping is a file that is also there as memory, which may fault. It reads and writes the file
// where a fault must not happen.
type mapping struct {
	file
	b []byte
}

// Slice implements [Slicer].
func (m *mapping) Slice(off, n int64, _ bool) []byte { return part(m.b, off, n) }

// part returns n bytes from off on, nil if they are not all there.
func part(b []byte, off, n int64) []byte {
	if off < 0 || n < 0 || off > int64(len(b)) || n > int64(len(b))-off {
		return nil
	}
	return b[off : off+n : off+n]
}

// Sync implements [Syncer], for bytes that were written through the memory too.
func (m *mapping) Sync() error {
	if err := msync(m.b); err != nil {
		return err
	}
	return m.file.Sync()
}
