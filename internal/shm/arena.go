package shm

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"
)

// pageSize is the unit of allocations in bytes.
const pageSize = 4096

// ErrNotAllocated means that the argument of Free is not memory of Alloc, or is freed already.
var ErrNotAllocated = errors.New("shm: no memory of Alloc")

// An area is memory of this process that other processes may map for reading. The first Alloc
// creates the area, which never moves. Only addresses are reserved at first; pages exist from their
// first use on.
type area struct {
	base atomic.Pointer[byte] // nil before the first Alloc
	size int
	fd   int

	mu    sync.Mutex
	free  []span      // free spans in ascending order, never adjacent; guarded by mu
	given map[int]int // offset of each allocation -> its size; guarded by mu
}

// A span is a run of free bytes: offset in the area, and size.
type span struct{ at, size int }

// offset returns the offset of the first byte of b in the area. ok is false if b begins outside the
// area, or if there is no area yet.
func (a *area) offset(b []byte) (uint64, bool) {
	base := a.base.Load()
	if base == nil {
		return 0, false
	}
	at := uintptr(unsafe.Pointer(unsafe.SliceData(b))) - uintptr(unsafe.Pointer(base))
	return uint64(at), at < uintptr(a.size)
}

// takeLocked allocates n bytes, n a multiple of the page size, and returns their offset. ok is
// false if no free span is large enough. The caller holds mu.
func (a *area) takeLocked(n int) (at int, ok bool) {
	for i := range a.free {
		s := &a.free[i]
		if s.size < n {
			continue
		}
		at = s.at
		s.at += n
		if s.size -= n; s.size == 0 {
			a.free = slices.Delete(a.free, i, i+1)
		}
		a.given[at] = n
		return at, true
	}
	return 0, false
}

// giveLocked frees the n bytes at offset at, allocated by takeLocked. The caller holds mu.
func (a *area) giveLocked(at, n int) {
	delete(a.given, at)
	i, _ := slices.BinarySearchFunc(a.free, at, func(s span, at int) int { return s.at - at })
	a.free = slices.Insert(a.free, i, span{at, n})
	if i+1 < len(a.free) && at+n == a.free[i+1].at {
		a.free[i].size += a.free[i+1].size
		a.free = slices.Delete(a.free, i+1, i+2)
	}
	if i > 0 && a.free[i-1].at+a.free[i-1].size == at {
		a.free[i-1].size += a.free[i].size
		a.free = slices.Delete(a.free, i, i+1)
	}
}

// Alloc returns n zeroed bytes at the beginning of a page. Processes of the same user that exchange
// bytes with this process through rings may read the memory. The garbage collector does not manage
// the memory: it stays allocated until [Free].
//
// n is from 1 to 64 GiB (1 GiB where addresses have 32 bits); otherwise Alloc returns an error. The
// error wraps [ErrExhausted] if no memory is free. Alloc is safe for concurrent use.
func Alloc(n int) ([]byte, error) {
	if n <= 0 || n > arenaSize {
		return nil, fmt.Errorf("shm: %d bytes are not from 1 to %d", n, arenaSize)
	}
	size := (n + pageSize - 1) &^ (pageSize - 1)
	a := &process.arena
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.openLocked(); err != nil {
		return nil, err
	}
	at, ok := a.takeLocked(size)
	if !ok {
		return nil, fmt.Errorf("%w: no %d bytes in a row of the %d are free", ErrExhausted, size, a.size)
	}
	b := a.bytes(at, size)
	if err := a.open(b); err != nil {
		a.giveLocked(at, size)
		return nil, err
	}
	return b[:n:n], nil
}

// Free frees b, a slice returned by [Alloc], from the first byte on. Each allocation is freed as a
// whole and once; otherwise Free returns [ErrNotAllocated]. An access to b after Free is a fault,
// which ends the process. Free is safe for concurrent use.
func Free(b []byte) error {
	a := &process.arena
	a.mu.Lock()
	defer a.mu.Unlock()
	at, ok := a.offset(b)
	size := a.given[int(at)]
	if !ok || size == 0 || len(b) > size {
		return ErrNotAllocated
	}
	a.close(a.bytes(int(at), size))
	a.giveLocked(int(at), size)
	return nil
}

// bytes returns the n bytes at offset at of the area.
func (a *area) bytes(at, n int) []byte {
	return unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(a.base.Load()), at)), n)
}

// Lent is the area of another process, mapped for reading. A nil *Lent stands for no area.
type Lent struct {
	b     []byte
	inode uint64
	users int // consumers that use the mapping; guarded by lents.mu
}

// Len returns the size of the area in bytes.
func (l *Lent) Len() int { return len(l.b) }

// bytes returns the n bytes at offset at of the area, or ErrIndex unless all n are inside.
func (l *Lent) bytes(at uint64, n int) ([]byte, error) {
	if size := uint64(len(l.b)); at > size || uint64(n) > size-at {
		return nil, ErrIndex
	}
	return l.b[at:][:n:n], nil
}
