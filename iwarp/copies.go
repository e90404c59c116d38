package iwarp

import (
	"sync"

	"viaduct/internal/regmem"
)

// arenaSize is the size of a few of the largest FPDUs, about a batch.
const arenaSize = 384 << 10

// An arena holds bytes referenced by a batch until the batch is sent.
type arena [arenaSize]byte

var arenas = sync.Pool{New: func() any { return new(arena) }}

// copies holds FPDUs and payload to which the current batch refers, in an arena. The zero value is
// empty.
type copies struct {
	arena *arena
	used  int // bytes used of the arena
}

// room returns the unused part of the arena.
func (c *copies) room() []byte {
	if c.arena == nil {
		c.arena = arenas.Get().(*arena)
	}
	return c.arena[c.used:]
}

// fetch copies the bytes of ref to the arena, and releases ref. It returns false if the bytes are
// not accessible any more.
func (c *copies) fetch(ref regmem.Ref) (regmem.Ref, bool) {
	p := c.room()[:ref.Len():ref.Len()]
	err := ref.CopyTo(p)
	ref.Release()
	if err != nil {
		return regmem.Ref{}, false
	}
	c.used += len(p)
	return regmem.Of(p), true
}

// release gives the arena back, because the batch was sent.
func (c *copies) release() {
	if c.arena != nil {
		arenas.Put(c.arena)
		c.arena = nil
	}
}
