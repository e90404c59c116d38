package shm

import (
	"errors"
	"fmt"
	"sync/atomic"
)

const (
	// DefaultRing is how many bytes a ring may have, if nothing else is asked for.
	// Twice the second-level cache and more is best: a line that is written again
	// while another processor has it costs more than one that has left all caches.
	DefaultRing = 2 << 20

	// FirstRing is the size that a ring begins with, or how much it may have if
	// that is less.
	FirstRing = 256 << 10

	// MinRing and MaxRing bound what a peer may propose, a power of two.
	MinRing = 64 << 10
	MaxRing = 4 << 20

	// DefaultLimit is how much memory in bytes the rings of a process may take.
	DefaultLimit = 256 << 20
)

// ErrExhausted says that the rings of this process have as much memory as they
// may, or that the system has none.
var ErrExhausted = errors.New("ring memory is exhausted")

var (
	limit atomic.Int64 // 0: DefaultLimit
	used  atomic.Int64
)

// SetLimit sets how many bytes of memory the rings of this process may take; those
// that exist stay. 0 stands for DefaultLimit, a negative number for none.
func SetLimit(n int64) { limit.Store(n) }

// Used returns how many bytes of memory the rings of this process take.
func Used() int64 { return used.Load() }

func reserve(n int64) error {
	l := limit.Load()
	if l == 0 {
		l = DefaultLimit
	}
	if used.Add(n) > max(l, 0) {
		used.Add(-n)
		return fmt.Errorf("%w: the rings of this process have %d bytes, at most %d", ErrExhausted, used.Load(), max(l, 0))
	}
	return nil
}

func release(n int64) { used.Add(-n) }

// reserveMore is reserve for a ring that grows: a quarter of what there may be is
// left to connections to come.
func reserveMore(n int64) bool {
	l := limit.Load()
	if l == 0 {
		l = DefaultLimit
	}
	if used.Add(n) > l/4*3 {
		used.Add(-n)
		return false
	}
	return true
}

// total returns the size of the memory for two rings.
func total(ring int) int { return 2*controlSize + 2*ring }

// first is the part of it that is used from the beginning.
func first(ring int) int64 { return int64(total(min(ring, FirstRing))) }

func checkRing(ring int) error {
	if ring < MinRing || ring > MaxRing || ring&(ring-1) != 0 {
		return fmt.Errorf("shm: a ring of %d bytes is not a power of two from %d to %d", ring, MinRing, MaxRing)
	}
	return nil
}

// attach makes the two ends of the process that has made the memory (first), or of
// the other one.
func attach(b []byte, ring int, first bool) (in *Consumer, out *Producer) {
	in, out = new(Consumer), new(Producer)
	c0, c1 := b[:controlSize], b[controlSize:2*controlSize]
	d0, d1 := b[2*controlSize:][:ring:ring], b[2*controlSize+ring:][:ring:ring]
	if !first {
		c0, c1, d0, d1 = c1, c0, d1, d0
	}
	out.init(c0, d0)
	in.init(c1, d1)
	return in, out
}
