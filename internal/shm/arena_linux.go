package shm

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// arenaSize is the greatest number of bytes that may be allocated at a time, if the process gets as
// many addresses: 64 GiB, or 1 GiB where addresses have 32 bits.
const arenaSize = 1 << (30 + 6*(^uint(0)>>63))

// maxLent is the greatest size of a peer's area to map.
const maxLent = 1 << (30 + 10*(^uint(0)>>63))

// openLocked creates the area unless it exists. All pages are inaccessible at first, so that the
// system neither locks nor dumps unused pages. The caller holds a.mu.
func (a *area) openLocked() error {
	if a.base.Load() != nil {
		return nil
	}
	fd, err := memfd("viaduct-alloc")
	if err != nil {
		return fmt.Errorf("%w: %w", ErrExhausted, os.NewSyscallError("memfd_create", err))
	}
	defer unix.Close(fd)
	b, err := a.mapNew(fd)
	if err != nil {
		return err
	}
	// Other processes get a read-only descriptor. The file mode keeps processes of other users from
	// opening the file again for writing.
	_ = unix.Fchmod(fd, 0o400)
	if a.fd, err = unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		a.fd = -1 // the area is not lent to other processes
	}
	a.size, a.free, a.given = len(b), []span{{0, len(b)}}, make(map[int]int)
	a.base.Store(unsafe.SliceData(b))
	return nil
}

// mapNew chooses the size of the new area, sets the length of the file fd, seals the file and maps
// it. mapNew tries sizes from arenaSize down to 64 MiB until the process gets enough addresses.
func (a *area) mapNew(fd int) (b []byte, err error) {
	most := int64(arenaSize)
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_FSIZE, &l) == nil && l.Cur < uint64(most) {
		most = int64(l.Cur) &^ (pageSize - 1)
	}
	for size := most; size >= 64<<20; size /= 4 {
		size &^= pageSize - 1
		b, err = unix.Mmap(fd, 0, int(size), unix.PROT_NONE, unix.MAP_SHARED|unix.MAP_NORESERVE)
		if err != nil {
			continue
		}
		if err = unix.Ftruncate(fd, size); err == nil {
			_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
		}
		if err != nil {
			unix.Munmap(b)
			break
		}
		_ = unix.Madvise(b, unix.MADV_DONTDUMP)
		return b, nil
	}
	return nil, fmt.Errorf("%w: no addresses: %w", ErrExhausted, err)
}

// open makes b, pages of the area, accessible for reading and writing.
func (a *area) open(b []byte) error {
	if err := unix.Mprotect(b, unix.PROT_READ|unix.PROT_WRITE); err != nil {
		return fmt.Errorf("%w: %w", ErrExhausted, os.NewSyscallError("mprotect", err))
	}
	if strict() {
		// EINVAL: Linux before 5.14.
		if err := unix.Madvise(b, unix.MADV_POPULATE_WRITE); err != nil && err != unix.EINVAL {
			a.close(b)
			return fmt.Errorf("%w: %w", ErrExhausted, os.NewSyscallError("madvise", err))
		}
	}
	_ = unix.Madvise(b, unix.MADV_DODUMP)
	return nil
}

// close makes b inaccessible again and returns the pages to the system.
func (a *area) close(b []byte) {
	giveBack(b)
	_ = unix.Madvise(b, unix.MADV_DONTDUMP)
	_ = unix.Mprotect(b, unix.PROT_NONE)
}

// borrow maps the area of another process. The descriptor fd must be of a memfd of ordinary pages,
// sealed against changes of size; otherwise borrow returns an error. The caller still owns fd.
func borrow(fd int) (*Lent, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, os.NewSyscallError("fstat", err)
	}
	if st.Size <= 0 || st.Size > maxLent {
		return nil, fmt.Errorf("shm: the peer's area has %d bytes", st.Size)
	}
	if err := check(fd, int(st.Size)); err != nil {
		return nil, err
	}
	ls := &process.lents
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if l := ls.list[st.Ino]; l != nil {
		l.users++
		return l, nil
	}
	b, err := unix.Mmap(fd, 0, int(st.Size), unix.PROT_NONE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	_ = unix.Madvise(b, unix.MADV_DONTDUMP)
	_ = unix.Munlock(b) // a process that called mlockall would otherwise lock the whole area
	if err := unix.Mprotect(b, unix.PROT_READ); err != nil {
		unix.Munmap(b)
		return nil, os.NewSyscallError("mprotect", err)
	}
	l := &Lent{b: b, inode: st.Ino, users: 1}
	if ls.list == nil {
		ls.list = make(map[uint64]*Lent)
	}
	ls.list[st.Ino] = l
	return l, nil
}

func (l *Lent) close() {
	ls := &process.lents
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if l.users--; l.users > 0 {
		return
	}
	delete(ls.list, l.inode)
	unix.Munmap(l.b)
}
