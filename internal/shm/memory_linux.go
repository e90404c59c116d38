package shm

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// A Memory is the mapping of a pair of rings. The methods have one user at a time.
type Memory struct {
	b    []byte
	ring int
	in   *Consumer
	out  *Producer
}

const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// Create returns zeroed memory for two rings of at most ring bytes each, sealed against changes of
// size. ring is a power of two from MinRing to MaxRing. Pages exist from the first write on, unless
// the system accounts for memory strictly: then the rings have at most FirstRing bytes, and all
// pages exist. fd is the descriptor of the memory. The caller owns fd, sends it to the peer and
// closes it. The error wraps [ErrExhausted] if there is no memory.
func Create(ring int) (m *Memory, fd int, err error) {
	if err := checkRing(ring); err != nil {
		return nil, -1, err
	}
	if strict() {
		ring = min(ring, FirstRing)
	}
	size := total(ring)
	if err := process.rings.reserve(first(ring)); err != nil {
		return nil, -1, err
	}
	defer func() {
		if err != nil {
			process.rings.release(first(ring))
		}
	}()
	if fd, err = memfd("viaduct-rings"); err != nil {
		return nil, -1, fmt.Errorf("%w: %w", ErrExhausted, os.NewSyscallError("memfd_create", err))
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
		}
	}()
	if err = unix.Ftruncate(fd, int64(size)); err != nil {
		return nil, -1, os.NewSyscallError("ftruncate", err)
	}
	if strict() {
		// With strict accounting, the first access to a page may be refused by a signal, and the
		// signal ends the process. So all pages are allocated here.
		if err = unix.Fallocate(fd, 0, 0, int64(size)); err != nil {
			return nil, -1, fmt.Errorf("%w: %w", ErrExhausted, os.NewSyscallError("fallocate", err))
		}
	}
	if _, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return nil, -1, os.NewSyscallError("fcntl", err)
	}
	b, err := mmap(fd, size)
	if err != nil {
		return nil, -1, err
	}
	return &Memory{b: b, ring: ring}, fd, nil
}

// Open maps the memory of descriptor fd, created by another process. The descriptor must be of a
// memfd of ordinary pages, exactly as large as two rings of ring bytes, and sealed against changes
// of size; otherwise Open returns an error. The caller still owns fd. The error wraps
// [ErrExhausted] if there is no memory.
func Open(fd, ring int) (m *Memory, err error) {
	if err := checkRing(ring); err != nil {
		return nil, err
	}
	size := total(ring)
	if err := check(fd, size); err != nil {
		return nil, err
	}
	if err := process.rings.reserve(first(ring)); err != nil {
		return nil, err
	}
	b, err := mmap(fd, size)
	if err != nil {
		process.rings.release(first(ring))
		return nil, err
	}
	return &Memory{b: b, ring: ring}, nil
}

// tmpfsMagic is the type of the file system of a memfd with ordinary pages. A memfd with huge pages
// is refused, because an access may fail later by a signal.
const tmpfsMagic = 0x01021994

func check(fd, size int) error {
	got, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return errors.New("shm: what the peer sent is no memory that can be sealed")
	}
	if got&seals != seals || got&(unix.F_SEAL_WRITE|unix.F_SEAL_FUTURE_WRITE) != 0 {
		return fmt.Errorf("shm: the peer's memory has the seals %#x, not %#x", got, seals)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	if st.Size != int64(size) {
		return fmt.Errorf("shm: the peer's memory has %d bytes, not %d", st.Size, size)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return os.NewSyscallError("fstatfs", err)
	}
	if fs.Type != tmpfsMagic {
		return fmt.Errorf("shm: the peer's memory is of file system %#x", fs.Type)
	}
	return nil
}

// mfdNoExecSeal is MFD_NOEXEC_SEAL, of Linux 6.3.
const mfdNoExecSeal = 0x8

func memfd(name string) (int, error) {
	flags := unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(name, flags|mfdNoExecSeal)
	if err == unix.EINVAL {
		fd, err = unix.MemfdCreate(name, flags)
	}
	return fd, err
}

func mmap(fd, size int) ([]byte, error) {
	b, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrExhausted, os.NewSyscallError("mmap", err))
	}
	return b, nil
}

// strict reports whether the system accounts for memory strictly (vm.overcommit_memory is 2).
var strict = sync.OnceValue(func() bool {
	b, err := os.ReadFile("/proc/sys/vm/overcommit_memory")
	return err == nil && bytes.HasPrefix(b, []byte("2"))
})

// Ring returns the greatest size of each ring in bytes.
func (m *Memory) Ring() int { return m.ring }

// Ends returns the ends of the rings for the calling process; first is true in the creator of the
// memory. Call Ends only once. The ends are valid until Close.
func (m *Memory) Ends(first bool) (in *Consumer, out *Producer) {
	m.in, m.out = attach(m.b, m.ring, first)
	return m.in, m.out
}

// Close unmaps the memory. The ends must not be used any more. A second call does nothing.
func (m *Memory) Close() {
	if m.b == nil {
		return
	}
	if m.out != nil {
		m.out.disown()
	}
	process.rings.release(first(m.ring))
	unix.Munmap(m.b)
	m.b = nil
}

// giveBack returns pages of shared memory to the system. They read as zeros afterwards.
func giveBack(b []byte) { _ = unix.Madvise(b, unix.MADV_REMOVE) }
