package shm

import (
	"errors"
	"fmt"
	"sync/atomic"
)

const (
	// DefaultRing is the greatest size of a ring in bytes, unless the caller asks for another. At
	// least twice the size of the second-level cache is best, because writing a cache line still in
	// another processor's cache costs more than writing a line absent from all caches.
	DefaultRing = 2 << 20

	// FirstRing is the size of a ring in bytes until bytes pass fast, unless the ring's greatest
	// size is less. The account counts each ring with at least this size.
	FirstRing = 256 << 10

	// smallRing is the initial size of a ring in bytes, if the consumer knows this size. A ring is
	// walked through even if it never holds more than one short message, and the small rings of many
	// connections together stay in the second-level cache.
	smallRing = 32 << 10

	// MinRing and MaxRing are the least and the greatest size in bytes a peer may propose for a
	// ring. The size is a power of two.
	MinRing = 64 << 10
	MaxRing = 4 << 20

	// DefaultLimit is the default of [SetLimit] in bytes.
	DefaultLimit = 256 << 20
)

// ErrExhausted means that the rings of the process have reached the limit of [SetLimit], or the
// system has no memory.
var ErrExhausted = errors.New("ring memory is exhausted")

// SetLimit sets the greatest number of bytes of memory the rings of the process may take. Existing
// rings stay. 0 stands for [DefaultLimit]; with a negative number no ring can be created. SetLimit
// is safe for concurrent use.
func SetLimit(n int64) { process.rings.limit.Store(n) }

// Used returns the number of bytes of memory the rings of the process take, and is safe for
// concurrent use.
func Used() int64 { return process.rings.used.Load() }

// An account counts the memory of rings in bytes.
type account struct {
	limit atomic.Int64 // 0 stands for DefaultLimit
	used  atomic.Int64
}

func (a *account) reserve(n int64) error {
	l := a.limit.Load()
	if l == 0 {
		l = DefaultLimit
	}
	if a.used.Add(n) > max(l, 0) {
		a.used.Add(-n)
		return fmt.Errorf("%w: the rings of this process have %d bytes, at most %d", ErrExhausted,
			a.used.Load(), max(l, 0))
	}
	return nil
}

func (a *account) release(n int64) { a.used.Add(-n) }

// reserveMore reserves n bytes for a growing ring. It returns false if less than a quarter of the
// limit would be left for new connections.
func (a *account) reserveMore(n int64) bool {
	l := a.limit.Load()
	if l == 0 {
		l = DefaultLimit
	}
	if a.used.Add(n) > l/4*3 {
		a.used.Add(-n)
		return false
	}
	return true
}

// total returns the size in bytes of the memory for two rings of the given size and their controls.
func total(ring int) int { return 2*controlSize + 2*ring }

// first returns the number of bytes of that memory in use while both rings have their initial size.
func first(ring int) int64 { return int64(total(min(ring, FirstRing))) }

func checkRing(ring int) error {
	if ring < MinRing || ring > MaxRing || ring&(ring-1) != 0 {
		return fmt.Errorf("shm: a ring of %d bytes is not a power of two from %d to %d", ring, MinRing, MaxRing)
	}
	return nil
}

// attach returns the two ends that belong to one process, in memory b with two rings. first is true
// for the creator of the memory.
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
