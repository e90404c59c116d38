package regmem

import (
	"math/bits"
	"sync/atomic"
)

// A table maps handles to regions. Readers take no lock and may run concurrently with a single
// writer; Registry.mu excludes other writers.
//
// The table is an open-addressed hash table whose slots are atomic pointers. Removing a region
// leaves a tombstone in the slot, so that probe sequences over the slot stay unbroken. Growing
// copies the live regions into a new array and publishes the array. A reader of the old array can
// find a region removed meanwhile; pinning the removed region fails.
type table struct {
	slots atomic.Pointer[[]atomic.Pointer[Region]]

	// Only the writer uses these fields.
	count int // live regions
	used  int // live regions and tombstones
}

var tombstone = new(Region)

const minSlots = 16

func (t *table) init() {
	s := make([]atomic.Pointer[Region], minSlots)
	t.slots.Store(&s)
}

// home returns the slot where the probe for h starts, in a table of the given size. The slot is
// taken from the high bits of h times the golden ratio, to spread handles with equal low or high
// bits.
func home(h uint32, size int) int {
	return int(uint64(h*0x9e3779b1) >> (32 - bits.TrailingZeros(uint(size))))
}

func (t *table) get(h uint32) *Region {
	s := *t.slots.Load()
	for i := home(h, len(s)); ; i++ {
		r := s[i&(len(s)-1)].Load()
		if r == nil || r.handle == h && r != tombstone {
			return r
		}
	}
}

func (t *table) put(r *Region) {
	s := *t.slots.Load()
	if 2*(t.used+1) > len(s) {
		s = t.rebuild()
	}
	t.place(s, r)
	t.count++
	t.used++
}

func (t *table) place(s []atomic.Pointer[Region], r *Region) {
	i := home(r.handle, len(s))
	for s[i&(len(s)-1)].Load() != nil {
		i++
	}
	s[i&(len(s)-1)].Store(r)
}

// rebuild publishes and returns a new array without tombstones, for twice the live regions.
func (t *table) rebuild() []atomic.Pointer[Region] {
	old := *t.slots.Load()
	size := minSlots
	for size < 4*(t.count+1) {
		size *= 2
	}
	s := make([]atomic.Pointer[Region], size)
	for i := range old {
		if r := old[i].Load(); r != nil && r != tombstone {
			t.place(s, r)
		}
	}
	t.used = t.count
	t.slots.Store(&s)
	return s
}

func (t *table) remove(r *Region) {
	s := *t.slots.Load()
	i := home(r.handle, len(s))
	for s[i&(len(s)-1)].Load() != r {
		i++
	}
	s[i&(len(s)-1)].Store(tombstone)
	t.count--
}
