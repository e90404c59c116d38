package shm

import (
	"crypto/rand"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Two processes that make one connection after the other need not make memory for each.
// What a connection had that has ended is kept by both for a moment: the process that made
// it may name it to the other again, by a key that only these two have. So no third process
// sees what was in it. It is as empty as new memory is, since only memory that was little used
// is kept, of which its maker clears what was used. It is used again when both have left it,
// and the process that keeps it for less long is the one that asks.

// A Key names memory between the two processes that have it.
type Key [16]byte

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
}

type keptMemory struct {
	m     *Memory
	until time.Time
}

// newKey returns a key that no other memory has.
func newKey() (k Key) {
	rand.Read(k[:])
	return k
}

// Keep has Close keep the memory for the next connection between the two processes. place is
// where the one that has made it finds the other, and "" in the other one.
func (m *Memory) Keep(place string) { m.kept, m.place = true, place }

// Key returns its name between its two processes.
func (m *Memory) Key() Key { return m.key }

// keep keeps the memory in place of giving it back, if it may be used again. Nothing uses its
// ends any more.
func (m *Memory) keep() bool {
	if !m.kept || m.out == nil || m.out.tail > keptBytes || m.in.tail > keptBytes || m.out.ref.refs+m.in.ref.refs > 0 {
		return false
	}
	span := keptFor
	if m.place == "" {
		span = toldFor
	}
	kept.Lock()
	defer kept.Unlock()
	same := func(k keptMemory) bool { return (k.m.place == "") == (m.place == "") }
	n := 0
	for _, k := range kept.list {
		if same(k) {
			n++
		}
	}
	if n >= maxKept {
		i := slices.IndexFunc(kept.list, same)
		kept.list[i].m.unmap()
		kept.list = slices.Delete(kept.list, i, i+1)
	}
	k := *m
	m.b = nil
	kept.list = append(kept.list, keptMemory{&k, time.Now().Add(span)})
	armKeptLocked()
	k.in.c.left.Store(gone)
	return true
}

// Reuse returns memory that this process has made and that it had with the process at a
// place, as empty as new memory. It is nil if none is kept that the other process has left.
func Reuse(place string) *Memory {
	kept.Lock()
	defer kept.Unlock()
	for i := len(kept.list) - 1; i >= 0; i-- {
		m := kept.list[i].m
		if m.place != place || m.out.c.left.Load() != gone {
			continue
		}
		kept.list = slices.Delete(kept.list, i, i+1)
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

// Known returns memory that the other process has made and names again. It is nil if it is not kept.
func Known(key Key, ring int) *Memory {
	kept.Lock()
	defer kept.Unlock()
	i := slices.IndexFunc(kept.list, func(k keptMemory) bool { return k.m.place == "" && k.m.key == key && k.m.ring == ring })
	if i < 0 {
		return nil
	}
	m := kept.list[i].m
	kept.list = slices.Delete(kept.list, i, i+1)
	return m.anew()
}

// anew returns the memory without ends.
func (m *Memory) anew() *Memory { return &Memory{b: m.b, ring: m.ring, key: m.key} }

// dropKept gives back all that is kept. It reports whether there was any.
func dropKept() bool {
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

// unmap gives the memory back.
func (m *Memory) unmap() {
	release(first(m.ring))
	unix.Munmap(m.b)
	m.b = nil
}
