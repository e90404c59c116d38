package vitcp

import "sync/atomic"

// A ring is a queue of at most a fixed number of entries between one goroutine
// that pushes and one that pops, which may run at once. Its memory is taken
// with the first push.
type ring[T any] struct {
	size       uint32 // most entries; set before use
	buf        []T
	head, tail atomic.Uint32 // popped and pushed so far
}

// push appends v; false if the ring is full.
func (r *ring[T]) push(v T) bool {
	t := r.tail.Load()
	if t-r.head.Load() >= r.size {
		return false
	}
	if r.buf == nil {
		n := uint32(1)
		for n < r.size {
			n *= 2
		}
		r.buf = make([]T, n)
	}
	r.buf[t&uint32(len(r.buf)-1)] = v
	r.tail.Store(t + 1)
	return true
}

// len returns the number of entries.
func (r *ring[T]) len() int { return int(r.tail.Load() - r.head.Load()) }

// at returns the i-th entry from the front, good until it is popped. [popper]
func (r *ring[T]) at(i int) *T {
	return &r.buf[(r.head.Load()+uint32(i))&uint32(len(r.buf)-1)]
}

// front returns the first entry, nil if there is none. [popper]
func (r *ring[T]) front() *T {
	if r.len() == 0 {
		return nil
	}
	return r.at(0)
}

// pop removes the first entry. [popper]
func (r *ring[T]) pop() {
	var zero T
	*r.at(0) = zero
	r.head.Add(1)
}
