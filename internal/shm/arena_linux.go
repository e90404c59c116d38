package shm

import (
	"fmt"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// arenaSize is how many bytes Alloc may have given out at a time, if the process may have as
// many addresses: 64 GiB, or one where addresses have 32 bits.
const arenaSize = 1 << (30 + 6*(^uint(0)>>63))

// maxLent bounds what a peer may have.
const maxLent = 1 << (30 + 10*(^uint(0)>>63))

// openLocked makes the area, unless it is there. Its addresses can't be touched yet: so
// nothing of it is locked in memory, or dumped, before it is used.
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
	// What others are given can't be mapped for writing, nor opened anew for that by
	// other users.
	_ = unix.Fchmod(fd, 0o400)
	if a.fd, err = unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		a.fd = -1 // it is lent to none
	}
	a.size, a.free, a.given = len(b), []span{{0, len(b)}}, make(map[int]int)
	a.base.Store(unsafe.SliceData(b))
	return nil
}

// mapNew gives new memory a size, as large as the process may have it, and maps it.
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

// open makes b what can be touched.
func (a *area) open(b []byte) error {
	if err := unix.Mprotect(b, unix.PROT_READ|unix.PROT_WRITE); err != nil {
		return fmt.Errorf("%w: %w", ErrExhausted, os.NewSyscallError("mprotect", err))
	}
	if strict() {
		if err := unix.Madvise(b, unix.MADV_POPULATE_WRITE); err != nil && err != unix.EINVAL { // Linux before 5.14
			a.close(b)
			return fmt.Errorf("%w: %w", ErrExhausted, os.NewSyscallError("madvise", err))
		}
	}
	_ = unix.Madvise(b, unix.MADV_DODUMP)
	return nil
}

// close undoes open, and lets the pages go.
func (a *area) close(b []byte) {
	giveBack(b)
	_ = unix.Madvise(b, unix.MADV_DONTDUMP)
	_ = unix.Mprotect(b, unix.PROT_NONE)
}

// lents are the areas of other processes that this one has mapped: each once, however many
// connections there are.
var lents struct {
	mu   sync.Mutex
	list map[uint64]*Lent
}

// borrow maps the area of another process, after all checks: it must be anonymous memory of
// ordinary pages that can't change its size any more.
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
	lents.mu.Lock()
	defer lents.mu.Unlock()
	if l := lents.list[st.Ino]; l != nil {
		l.users++
		return l, nil
	}
	b, err := unix.Mmap(fd, 0, int(st.Size), unix.PROT_NONE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	_ = unix.Madvise(b, unix.MADV_DONTDUMP)
	_ = unix.Munlock(b) // a process that locks its memory would have all of this
	if err := unix.Mprotect(b, unix.PROT_READ); err != nil {
		unix.Munmap(b)
		return nil, os.NewSyscallError("mprotect", err)
	}
	l := &Lent{b: b, inode: st.Ino, users: 1}
	if lents.list == nil {
		lents.list = make(map[uint64]*Lent)
	}
	lents.list[st.Ino] = l
	return l, nil
}

func (l *Lent) close() {
	lents.mu.Lock()
	defer lents.mu.Unlock()
	if l.users--; l.users > 0 {
		return
	}
	delete(lents.list, l.inode)
	unix.Munmap(l.b)
}
