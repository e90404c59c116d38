package shm

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// A Memory is the mapping of two rings.
type Memory struct {
	b    []byte
	ring int
	in   *Consumer
	out  *Producer
}

const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// Create makes zeroed memory for two rings that may grow to the given size in bytes,
// sealed against changes of its length. Pages that were not written to yet do not
// exist. The descriptor is the caller's, to be sent and closed.
func Create(ring int) (m *Memory, fd int, err error) {
	if err := checkRing(ring); err != nil {
		return nil, -1, err
	}
	if strict() {
		ring = min(ring, FirstRing)
	}
	size := total(ring)
	if err := reserve(first(ring)); err != nil {
		return nil, -1, err
	}
	defer func() {
		if err != nil {
			release(first(ring))
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
		// Memory that is accounted for when it is first touched may be refused
		// then, by a signal.
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

// Open maps memory that another process has made, after all checks: it must be
// anonymous memory of exactly the size that two rings take, sealed so that this can not
// change any more. The descriptor stays the caller's.
func Open(fd, ring int) (m *Memory, err error) {
	if err := checkRing(ring); err != nil {
		return nil, err
	}
	size := total(ring)
	if err := check(fd, size); err != nil {
		return nil, err
	}
	if err := reserve(first(ring)); err != nil {
		return nil, err
	}
	b, err := mmap(fd, size)
	if err != nil {
		release(first(ring))
		return nil, err
	}
	return &Memory{b: b, ring: ring}, nil
}

// tmpfsMagic is the file system of a memfd of ordinary pages. Touching huge pages
// may fail later, by a signal.
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

// strict reports whether the system accounts for memory strictly.
var strict = sync.OnceValue(func() bool {
	b, err := os.ReadFile("/proc/sys/vm/overcommit_memory")
	return err == nil && bytes.HasPrefix(b, []byte("2"))
})

// Ring returns how many bytes each ring may have.
func (m *Memory) Ring() int { return m.ring }

// Ends returns the ends of this process: first if it has made the memory. They are
// valid until Close. It is called once.
func (m *Memory) Ends(first bool) (in *Consumer, out *Producer) {
	m.in, m.out = attach(m.b, m.ring, first)
	return m.in, m.out
}

// Close gives the memory back. Nothing may use its ends any more.
func (m *Memory) Close() {
	if m.b == nil {
		return
	}
	if m.out != nil {
		m.out.disown()
	}
	release(first(m.ring))
	unix.Munmap(m.b)
	m.b = nil
}

// giveBack returns pages of shared memory to the system. They are zeros when they are
// next used.
func giveBack(b []byte) { _ = unix.Madvise(b, unix.MADV_REMOVE) }
