package shm

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"
)

// pageSize is what memory is given out by.
const pageSize = 4096

// ErrNotAllocated says that memory is not what Alloc has returned, or was given back.
var ErrNotAllocated = errors.New("shm: no memory of Alloc")

// An area is memory of this process that others may be lent. It is made at the first
// Alloc, stays where it is, and takes addresses only until it is used.
type area struct {
	base atomic.Pointer[byte] // nil: there is none
	size int
	fd   int

	mu    sync.Mutex
	free  []span      // in order, never adjacent; guarded by mu
	given map[int]int // sizes of what was given out, by offset; guarded by mu
}

// A span is free memory.
type span struct{ at, size int }

var arena area

// offset returns where b is, if it is within the area.
func (a *area) offset(b []byte) (uint64, bool) {
	base := a.base.Load()
	if base == nil {
		return 0, false
	}
	at := uintptr(unsafe.Pointer(unsafe.SliceData(b))) - uintptr(unsafe.Pointer(base))
	return uint64(at), at < uintptr(a.size)
}

// takeLocked finds n bytes, a multiple of the page size.
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

// giveLocked gives back what takeLocked has found.
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

// Alloc returns n zeroed bytes of memory, n at least 1, at the beginning of a page, which
// processes of the same user that this one exchanges bytes with through rings may read. It is
// not the garbage collector's: it stays until Free.
func Alloc(n int) ([]byte, error) {
	if n <= 0 || n > arenaSize {
		return nil, fmt.Errorf("shm: %d bytes are not from 1 to %d", n, arenaSize)
	}
	size := (n + pageSize - 1) &^ (pageSize - 1)
	arena.mu.Lock()
	defer arena.mu.Unlock()
	if err := arena.openLocked(); err != nil {
		return nil, err
	}
	at, ok := arena.takeLocked(size)
	if !ok {
		return nil, fmt.Errorf("%w: no %d bytes in a row of the %d are free", ErrExhausted, size, arena.size)
	}
	b := arena.bytes(at, size)
	if err := arena.open(b); err != nil {
		arena.giveLocked(at, size)
		return nil, err
	}
	return b[:n:n], nil
}

// Free gives memory back that Alloc has returned: as a whole, and once. Touching it after
// that is a fault.
func Free(b []byte) error {
	arena.mu.Lock()
	defer arena.mu.Unlock()
	at, ok := arena.offset(b)
	size := arena.given[int(at)]
	if !ok || size == 0 || len(b) > size {
		return ErrNotAllocated
	}
	arena.close(arena.bytes(int(at), size))
	arena.giveLocked(int(at), size)
	return nil
}

// bytes returns memory of the area.
func (a *area) bytes(at, n int) []byte {
	return unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(a.base.Load()), at)), n)
}

// Lent is memory of another process, mapped for reading. Nil has none.
type Lent struct {
	b     []byte
	inode uint64
	users int // guarded by lents.mu
}

// Len returns how many bytes it has.
func (l *Lent) Len() int { return len(l.b) }

// bytes returns n bytes at an offset.
func (l *Lent) bytes(at uint64, n int) ([]byte, error) {
	if size := uint64(len(l.b)); at > size || uint64(n) > size-at {
		return nil, ErrIndex
	}
	return l.b[at:][:n:n], nil
}
