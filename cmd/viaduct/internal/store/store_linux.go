package store

import (
	"errors"
	"os"
	"path"
	"strconv"

	"golang.org/x/sys/unix"
)

// nonblock keeps an open from waiting for the other end of a pipe that took
// the place of a file.
const nonblock = unix.O_NONBLOCK

func isNoSpace(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}

// tryLock marks a temporary file as in use for as long as it is open.
func tryLock(f *os.File) bool {
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
}

// temp makes a file without a name where the file system can: a process that
// dies leaves nothing at all. name is empty then.
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

// publish gives the file its name. A free name is taken by one link, so that
// there is no moment with a temporary name; a name in use is replaced by
// rename.
func (u *Upload) publish() error {
	d, err := u.s.root.Open(u.dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if u.temp == "" {
		link := func(name string) error {
			return unix.Linkat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(int(u.f.Fd())), int(d.Fd()), name, unix.AT_SYMLINK_FOLLOW)
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

// reserve sets length bytes of the disk aside for f, so that a full disk is told before
// they are sent. A file system that can't do that tells when they are written.
func reserve(f *os.File, length int64) error {
	err := ignoringEINTR(func() error { return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, length) })
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return nil
	}
	return err
}

// fill makes f length bytes long with all blocks present, so that writing to the mapped
// file can't fault for want of space.
func fill(f *os.File, length int64) error {
	err := ignoringEINTR(func() error { return unix.Fallocate(int(f.Fd()), 0, 0, length) })
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return fillZero(f, length)
	}
	return err
}

// flush begins to bring a range to the disk. What becomes of it is told by fsync.
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

func (m *mapping) unmap() {
	if m.pages != nil {
		unix.Munmap(m.pages)
		m.pages, m.data = nil, nil
	}
}
