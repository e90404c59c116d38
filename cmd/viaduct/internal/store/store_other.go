//go:build !linux

package store

import (
	"io"
	"os"
	"path"
)

const nonblock = 0

func isNoSpace(error) bool { return false }

// tryLock always succeeds. Without locks, a starting server therefore removes every temporary file.
func tryLock(*os.File) bool { return true }

func (s *Store) temp(dir string) (*os.File, string, error) { return s.named(dir) }

func (u *Upload) publish() error {
	// Some systems do not rename an open file.
	if err := u.f.Close(); err != nil {
		return err
	}
	if err := u.rename(); err != nil {
		return err
	}
	d, err := u.s.root.Open(path.Clean(u.dir))
	if err != nil {
		return err
	}
	defer d.Close()
	d.Sync()
	return nil
}

// reserve does nothing; writes report a full disk.
func reserve(*os.File, int64) error { return nil }

func fill(f *os.File, length int64) error { return fillZero(f, length) }

func flush(*os.File, int64, int64) {}

// On these systems, a mapping is a copy in memory. If write is set, unmap writes the copy to the
// file.
type mapping struct {
	file  *os.File
	data  []byte
	write bool
}

func (m *mapping) mmap(offset, n int64, write bool) error {
	if int64(int(n)) != n {
		return ErrTooLarge
	}
	m.data, m.write = make([]byte, n), write
	if write {
		return nil
	}
	if _, err := io.ReadFull(io.NewSectionReader(m.file, offset, n), m.data); err != nil {
		return ErrShrank
	}
	return nil
}

// unmap ends the mapping. It does nothing if there is none.
func (m *mapping) unmap() (err error) {
	if m.write && m.data != nil {
		_, err = m.file.WriteAt(m.data, 0)
	}
	m.data = nil
	return err
}
