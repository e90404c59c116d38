package queue

import "viaduct/internal/perturb"

// A FIFO is a queue of any length, safe for concurrent use. The zero value is empty. A FIFO is for
// requests that leave the queue at their start; another structure tracks the order of their
// completion.
type FIFO[T any] struct {
	mu perturb.Mutex
	s  slots[T] // guarded by mu
}

// Push appends v.
func (q *FIFO[T]) Push(v T) {
	q.mu.Lock()
	*q.s.push() = v
	q.mu.Unlock()
}

// Pop removes and returns the oldest entry. ok is false if there is none.
func (q *FIFO[T]) Pop() (v T, ok bool) {
	q.mu.Lock()
	if ok = q.s.n > 0; ok {
		v = q.s.pop()
	}
	q.mu.Unlock()
	return v, ok
}

// Len returns the number of entries.
func (q *FIFO[T]) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.s.n
}

// slots is a ring that grows when full. The zero value is empty.
type slots[T any] struct {
	ring    []T // length 0 or a power of two
	head, n int
}

// push appends a zero entry and returns a pointer to it.
func (s *slots[T]) push() *T {
	if s.n == len(s.ring) {
		ring := make([]T, max(firstSlots, 2*len(s.ring))) // [VIA-1.6-2]
		for i := range s.n {
			ring[i] = s.ring[(s.head+i)&(len(s.ring)-1)]
		}
		s.ring, s.head = ring, 0
	}
	s.n++
	return &s.ring[(s.head+s.n-1)&(len(s.ring)-1)]
}

// pop removes and returns the oldest entry, which must exist.
func (s *slots[T]) pop() (v T) {
	p := &s.ring[s.head]
	var zero T
	v, *p = *p, zero
	s.head = (s.head + 1) & (len(s.ring) - 1)
	s.n--
	return v
}

// popN removes up to len(buf) entries, stores them in buf and returns their number.
func (s *slots[T]) popN(buf []T) int {
	n := min(len(buf), s.n)
	for got := 0; got < n; { // two rounds if the entries wrap around the ring's end
		k := min(n-got, len(s.ring)-s.head)
		run := s.ring[s.head : s.head+k]
		copy(buf[got:], run)
		clear(run)
		s.head = (s.head + k) & (len(s.ring) - 1)
		got += k
	}
	s.n -= n
	return n
}
