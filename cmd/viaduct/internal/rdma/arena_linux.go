//go:build linux && (amd64 || arm64)

package rdma

import (
	"io"
	"math"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
)

const (
	pageSize  = 4096
	arenaName = "viaduct-uverbs" // name of the memfd, see Restarts
)

// An arena is a memfd shared with a program. It holds the program's rings. A seal prevents
// shortening of the file, so that an access never faults. The program may write anything anywhere
// in the file at any time.
type arena struct {
	fd    int
	quota *ringQuota

	mu   sync.Mutex
	size int64           // guarded by mu; bytes of the file allocated so far
	free map[int][]int64 // guarded by mu; offsets of closed rings, by length
	open [][]byte        // guarded by mu; mappings of the rings in use
}

// newArena makes an arena. theirs is a second open file description of the memfd, for the program.
// The caller must close theirs.
func newArena(quota *ringQuota) (a *arena, theirs int, err error) {
	mem, err := unix.MemfdCreate(arenaName, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, -1, err
	}
	defer unix.Close(mem)
	if _, err := unix.FcntlInt(uintptr(mem), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK); err != nil {
		return nil, -1, err
	}
	// Both descriptions are opened by name, so that orphaned can count the descriptions.
	ours, err := reopen(mem, unix.O_RDWR)
	if err != nil {
		return nil, -1, err
	}
	if theirs, err = reopen(mem, unix.O_RDWR); err != nil {
		unix.Close(ours)
		return nil, -1, err
	}
	// A command written to a duplicate outside of the reserved range reaches the kernel. At the
	// largest file offset, the kernel refuses the command (EINVAL) instead of writing to a ring.
	if _, err := unix.Seek(theirs, math.MaxInt64, io.SeekStart); err != nil {
		unix.Close(ours)
		unix.Close(theirs)
		return nil, -1, err
	}
	return &arena{fd: ours, quota: quota, free: map[int][]int64{}}, theirs, nil
}

// orphaned reports whether only this process has the file open: then the kernel grants a lease. A
// mapping of the program counts as open.
func (a *arena) orphaned() bool {
	if _, err := unix.FcntlInt(uintptr(a.fd), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		return false
	}
	unix.FcntlInt(uintptr(a.fd), unix.F_SETLEASE, unix.F_UNLCK)
	return true
}

// ring maps n zeroed bytes of the file, rounded up to whole pages, and returns the bytes with their
// offset. The error is ENOMEM if the quota of rings is used up.
func (a *arena) ring(n int) (b []byte, key int64, err error) {
	n = (n + pageSize - 1) &^ (pageSize - 1)
	if !a.quota.take() {
		return nil, 0, unix.ENOMEM
	}
	defer func() {
		if err != nil {
			a.quota.give(1)
		}
	}()
	a.mu.Lock()
	defer a.mu.Unlock()
	if old := a.free[n]; len(old) > 0 {
		key = old[len(old)-1]
		a.free[n] = old[:len(old)-1]
	} else {
		if a.size == abi.NoKey {
			a.size += pageSize // the page stays a hole and takes no memory
		}
		key = a.size
		// All pages are allocated now, because an access would fault without memory for the page.
		if err := unix.Fallocate(a.fd, 0, key, int64(n)); err != nil {
			return nil, 0, err
		}
		a.size += int64(n)
	}
	if b, err = unix.Mmap(a.fd, key, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		a.free[n] = append(a.free[n], key) // the next ring of this length uses the same offset
		return nil, 0, err
	}
	clear(b)
	a.open = append(a.open, b)
	return b, key, nil
}

// drop unmaps a ring and frees the part of the file at the offset key. It does nothing after close.
// This process must not access b afterwards.
func (a *arena) drop(b []byte, key int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	i := slices.IndexFunc(a.open, func(o []byte) bool { return &o[0] == &b[0] })
	if i < 0 {
		return
	}
	a.open = slices.Delete(a.open, i, i+1)
	a.free[len(b)] = append(a.free[len(b)], key)
	unix.Munmap(b)
	a.quota.give(1)
}

func (a *arena) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, b := range a.open {
		unix.Munmap(b)
	}
	a.quota.give(len(a.open))
	a.open = nil
	unix.Close(a.fd)
}
