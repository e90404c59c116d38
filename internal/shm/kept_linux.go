package shm

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Two processes that make one connection after the other need not make memory for each.
// What a connection had that has ended is kept by both for a moment, with the descriptors by
// which they wake each other. The process that made it may ask by it for its next connection,
// see ask_linux.go. No third process has it, so none sees what was in it. It is as empty as
// new memory is, since only memory that was little used is kept, of which its maker clears
// what was used. It is used again when both have left it, and the process that keeps it for
// less long is the one that asks.

const (
	// keptFor is how long the process that has made memory keeps it, and toldFor the
	// other one.
	keptFor = 500 * time.Millisecond
	toldFor = 2 * keptFor

	// maxKept is how much memory of each kind is kept, and keptBytes how many bytes
	// may have passed in a direction.
	maxKept   = 8
	keptBytes = 16 << 10
)

// gone is what a consumer stores in the left of a control, in place of 1, when it touches the memory
// no more.
const gone = 2

// kept is the memory that is kept.
var kept struct {
	sync.Mutex
	list  []keptMemory // the oldest first
	armed bool         // a look at it is to come

	told atomic.Int32 // how much of it another process has made
}

type keptMemory struct {
	m     *Memory
	until time.Time
}

// A Keeper is where memory belongs that is kept. The zero Keeper keeps none.
type Keeper struct {
	Place string // where the process that has made it finds the other one; "" in the other one
	By    any    // what the other one is asked by; nil in the one that has made it
}

// Keep has Close keep the memory for the next connection between the two processes.
func (m *Memory) Keep(k Keeper) { m.keeper = k }

// Hold makes descriptors the memory's: Close closes them, or keeps them with it.
func (m *Memory) Hold(files ...int) { m.files = files }

// Files returns the descriptors of memory that was kept, which are the caller's again.
func (m *Memory) Files() []int {
	f := m.files
	m.files = nil
	return f
}

// Uses is how many connections had the memory before.
func (m *Memory) Uses() int { return m.uses }

// keep keeps the memory in place of giving it back, if it may be used again. Nothing uses its
// ends any more.
func (m *Memory) keep() bool {
	if m.keeper == (Keeper{}) || m.out == nil || m.out.tail > keptBytes || m.in.tail > keptBytes || m.out.ref.refs+m.in.ref.refs > 0 {
		return false
	}
	span := keptFor
	if m.told() {
		span = toldFor
	}
	kept.Lock()
	defer kept.Unlock()
	if m.told() {
		dropKeptLocked(func(k keptMemory) bool { return k.m.told() && k.m.withdrawn() })
	}
	same := func(k keptMemory) bool { return k.m.told() == m.told() }
	n := 0
	for _, k := range kept.list {
		if same(k) {
			n++
		}
	}
	if n >= maxKept {
		removeKeptLocked(slices.IndexFunc(kept.list, same)).unmap()
	}
	k := *m
	m.b, m.files = nil, nil
	kept.list = append(kept.list, keptMemory{&k, time.Now().Add(span)})
	if k.told() {
		kept.told.Add(1)
	}
	armKeptLocked()
	k.in.c.left.Store(gone)
	return true
}

// told reports whether another process has made the memory.
func (m *Memory) told() bool { return m.keeper.By != nil }

func removeKeptLocked(i int) *Memory {
	m := kept.list[i].m
	kept.list = slices.Delete(kept.list, i, i+1)
	if m.told() {
		kept.told.Add(-1)
	}
	return m
}

// Reuse returns memory that this process has made and that it had with the process at a
// place, as empty as new memory. It is nil if none is kept that the other process has left.
func Reuse(place string) *Memory {
	kept.Lock()
	defer kept.Unlock()
	for i := len(kept.list) - 1; i >= 0; i-- {
		m := kept.list[i].m
		if m.told() || m.keeper.Place != place || m.out.c.left.Load() != gone {
			continue
		}
		removeKeptLocked(i)
		used := m.in.c.tail.Load() // as the other process has it
		if used > keptBytes {
			m.unmap()
			return nil
		}
		clear(m.in.data[:used])
		clear(m.out.data[:m.out.tail])
		clear(m.b[:2*controlSize])
		return m.anew()
	}
	return nil
}

// anew returns the memory without ends.
func (m *Memory) anew() *Memory {
	return &Memory{b: m.b, ring: m.ring, files: m.files, uses: m.uses + 1}
}

// Forget gives back what is kept to be asked by.
func Forget(by any) {
	kept.Lock()
	defer kept.Unlock()
	dropKeptLocked(func(k keptMemory) bool { return k.m.keeper.By == by })
}

// Drop gives back all that is kept, with its descriptors. It reports whether there was any.
func Drop() bool {
	kept.Lock()
	defer kept.Unlock()
	return dropKeptLocked(func(keptMemory) bool { return true })
}

func dropKeptLocked(which func(keptMemory) bool) bool {
	n := len(kept.list)
	kept.list = slices.DeleteFunc(kept.list, func(k keptMemory) bool {
		if !which(k) {
			return false
		}
		if k.m.told() {
			kept.told.Add(-1)
		}
		k.m.unmap()
		return true
	})
	return len(kept.list) < n
}

// armKeptLocked has what is kept looked at when the time of the first is over.
func armKeptLocked() {
	if kept.armed || len(kept.list) == 0 {
		return
	}
	kept.armed = true
	first := slices.MinFunc(kept.list, func(a, b keptMemory) int { return a.until.Compare(b.until) })
	time.AfterFunc(time.Until(first.until), func() {
		kept.Lock()
		defer kept.Unlock()
		kept.armed = false
		now := time.Now()
		dropKeptLocked(func(k keptMemory) bool { return !now.Before(k.until) })
		armKeptLocked()
	})
}

// unmap gives the memory back, and its descriptors.
func (m *Memory) unmap() {
	release(first(m.ring))
	unix.Munmap(m.b)
	m.b = nil
	for _, fd := range m.files {
		unix.Close(fd)
	}
	m.files = nil
}
