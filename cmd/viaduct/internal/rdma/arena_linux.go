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

const pageSize = 4096

// An arena is the memory that is shared with a program: a file in memory whose
// parts are its rings. It can't be made shorter, so that touching it is safe,
// but the program may write anything anywhere in it at any time.
type arena struct {
	fd    int
	quota *ringQuota

	mu   sync.Mutex
	size int64           // guarded by mu
	free map[int][]int64 // guarded by mu; places of rings that were closed, by length
	open [][]byte        // guarded by mu
}

// newArena makes an arena, and a second description of its file for the program.
func newArena(quota *ringQuota) (a *arena, theirs int, err error) {
	mem, err := unix.MemfdCreate("viaduct-uverbs", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, -1, err
	}
	defer unix.Close(mem)
	if _, err := unix.FcntlInt(uintptr(mem), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK); err != nil {
		return nil, -1, err
	}
	// Both are opened by name, so that orphaned can count the openings.
	ours, err := reopen(mem, unix.O_RDWR)
	if err != nil {
		return nil, -1, err
	}
	if theirs, err = reopen(mem, unix.O_RDWR); err != nil {
		unix.Close(ours)
		return nil, -1, err
	}
	// A command that is written to a duplicate outside the reserved range is the kernel's, which is to refuse it (EINVAL)
	// behind the last byte that a file may have, and not to put it into a ring.
	if _, err := unix.Seek(theirs, math.MaxInt64, io.SeekStart); err != nil {
		unix.Close(ours)
		unix.Close(theirs)
		return nil, -1, err
	}
	return &arena{fd: ours, quota: quota, free: map[int][]int64{}}, theirs, nil
}

// orphaned reports whether the file is open here alone: then a lease on it is
// granted. A mapping of the program's counts as an opening.
func (a *arena) orphaned() bool {
	if _, err := unix.FcntlInt(uintptr(a.fd), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		return false
	}
	unix.FcntlInt(uintptr(a.fd), unix.F_SETLEASE, unix.F_UNLCK)
	return true
}

// ring makes room for n bytes and returns them, zeroed, with their offset in the file.
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
			a.size += pageSize // a hole, which takes no memory
		}
		key = a.size
		// All of it is there from now on: touching a file without room is a fault.
		if err := unix.Fallocate(a.fd, 0, key, int64(n)); err != nil {
			return nil, 0, err
		}
		a.size += int64(n)
	}
	if b, err = unix.Mmap(a.fd, key, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		a.free[n] = append(a.free[n], key) // the next to ask for as much gets it
		return nil, 0, err
	}
	clear(b)
	a.open = append(a.open, b)
	return b, key, nil
}

// drop gives a ring back. Nothing of ours touches it any more.
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
