package store

import (
	"errors"
	"os"
	"path"
	"strconv"

	"golang.org/x/sys/unix"
)

// nonblock is for opens of regular files: without the flag, a pipe in place of the file would block
// the open.
const nonblock = unix.O_NONBLOCK

func isNoSpace(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}

// tryLock locks a temporary file until the close. The lock shows other processes that the file is
// in use. tryLock returns false if another process has the lock.
func tryLock(f *os.File) bool {
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
}

// temp creates a temporary file in dir. If the file system can, the file has no name, and name is
// empty: nothing remains of a nameless file if the process dies.
func (s *Store) temp(dir string) (f *os.File, name string, err error) {
	if f, err = s.nameless(dir); err == nil {
		return f, "", nil
	}
	return s.named(dir)
}

func (s *Store) nameless(dir string) (*os.File, error) {
	d, err := s.root.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	fd, err := unix.Openat(int(d.Fd()), ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path.Join(dir, "(nameless)")), nil
}

// publish gives the file the final name. A file without a name is linked to a free name in a single
// step, so that no temporary name is ever visible. Otherwise a rename replaces the old file.
func (u *Upload) publish() error {
	d, err := u.s.root.Open(u.dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if u.temp == "" {
		link := func(name string) error {
			return unix.Linkat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(int(u.f.Fd())),
				int(d.Fd()), name, unix.AT_SYMLINK_FOLLOW)
		}
		err := link(u.base)
		if err == nil {
			return d.Sync()
		}
		if !errors.Is(err, unix.EEXIST) {
			return err
		}
		if !tryLock(u.f) {
			return errors.New("cannot lock a new file")
		}
		temp := tempName()
		if err := link(temp); err != nil {
			return err
		}
		u.temp = temp
	}
	if err := u.rename(); err != nil {
		return err
	}
	return d.Sync()
}

// reserve allocates length bytes of the disk for f, so that a full disk is reported before the
// bytes are sent. If the file system does not support reservations, writes report a full disk.
func reserve(f *os.File, length int64) error {
	err := ignoringEINTR(func() error { return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, length) })
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return nil
	}
	return err
}

// fill makes f length bytes long and allocates all blocks, so that a write to the mapping cannot
// fault because the disk is full.
func fill(f *os.File, length int64) error {
	err := ignoringEINTR(func() error { return unix.Fallocate(int(f.Fd()), 0, 0, length) })
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return fillZero(f, length)
	}
	return err
}

// flush starts to write a range to the disk. A later fsync returns the errors.
func flush(f *os.File, offset, length int64) {
	unix.SyncFileRange(int(f.Fd()), offset, length, unix.SYNC_FILE_RANGE_WRITE)
}

func ignoringEINTR(f func() error) error {
	for {
		if err := f(); err != unix.EINTR {
			return err
		}
	}
}

// A mapping is a range of a file in memory.
type mapping struct {
	file  *os.File
	data  []byte
	pages []byte // data from the start of its first page
}

// mmap maps n bytes of the file at offset.
func (m *mapping) mmap(offset, n int64, write bool) error {
	skip := offset % int64(os.Getpagesize())
	if int64(int(n+skip)) != n+skip {
		return ErrTooLarge
	}
	prot := unix.PROT_READ
	if write {
		prot |= unix.PROT_WRITE
	}
	b, err := unix.Mmap(int(m.file.Fd()), offset-skip, int(n+skip), prot, unix.MAP_SHARED)
	if err != nil {
		return os.NewSyscallError("mmap", err)
	}
	m.pages, m.data = b, b[skip:]
	return nil
}

// unmap ends the mapping. It does nothing if there is none.
func (m *mapping) unmap() error {
	if m.pages == nil {
		return nil
	}
	err := unix.Munmap(m.pages)
	m.pages, m.data = nil, nil
	return os.NewSyscallError("munmap", err)
}
