package queue

import (
	"math/bits"
	"sync/atomic"
)

// A Ring is a queue of bounded capacity between a goroutine that pushes and a goroutine that pops.
// The two goroutines never wait for each other. The mark [pusher] or [popper] in the comment of a
// method names the only goroutine allowed to call the method. The first push allocates the memory.
// Call Init before use.
type Ring[T any] struct {
	slots      []T
	size       uint32        // a power of two
	head, tail atomic.Uint32 // numbers of entries popped and pushed so far
}

// Init sets the capacity to n entries, rounded up to a power of two.
func (r *Ring[T]) Init(n int) { r.size = 1 << bits.Len(uint(max(n, 1)-1)) }

// Cap returns the capacity.
func (r *Ring[T]) Cap() int { return int(r.size) }

// Len returns the number of entries.
func (r *Ring[T]) Len() int { return int(r.tail.Load() - r.head.Load()) }

// Push appends v. The ring must not be full. [pusher]
func (r *Ring[T]) Push(v T) {
	if r.slots == nil {
		r.slots = make([]T, r.size)
	}
	t := r.tail.Load()
	r.slots[t&(r.size-1)] = v
	r.tail.Store(t + 1)
}

// At returns the entry with index i, where 0 is the oldest, or nil if there is none. The pointer is
// valid until the entry is popped. [popper]
func (r *Ring[T]) At(i int) *T {
	h := r.head.Load() + uint32(i)
	if int32(r.tail.Load()-h) <= 0 {
		return nil
	}
	return &r.slots[h&(r.size-1)]
}

// Front returns the oldest entry, or nil if there is none. [popper]
func (r *Ring[T]) Front() *T { return r.At(0) }

// Pop removes the oldest entry, which must exist. [popper]
func (r *Ring[T]) Pop() {
	var zero T
	h := r.head.Load()
	r.slots[h&(r.size-1)] = zero
	r.head.Store(h + 1)
}
