package nvme

import (
	"math/bits"
	"sync"

	"viaduct/internal/nvmecore"
	"viaduct/internal/wire/nvmewire"
)

// A buffer is memory for the data of a command.
type buffer struct {
	b    []byte
	pool *sync.Pool
}

const (
	leastShift = 12 // 4 KiB is the smallest class
	classes    = 9  // the largest class is 1 MiB, the limit of a transfer (MDTS)
)

// buffers provides memory for running commands, so that idle queues hold no memory.
type buffers struct {
	capsules sync.Pool
	sizes    [classes]sync.Pool // one for each size: the powers of two from 4 KiB to 1 MiB
}

func take(p *sync.Pool, n int) *buffer {
	if b, ok := p.Get().(*buffer); ok {
		return b
	}
	return &buffer{b: make([]byte, n), pool: p}
}

func (b *buffer) giveBack() { b.pool.Put(b) }

// capsule returns memory for a command capsule with data.
func (bs *buffers) capsule() *buffer {
	return take(&bs.capsules, nvmewire.SQELen+nvmecore.InCapsule)
}

// data returns memory for n bytes. n must be from 1 to MDTS.
func (bs *buffers) data(n int) *buffer {
	class := max(bits.Len(uint(n-1))-leastShift, 0)
	return take(&bs.sizes[class], 1<<(leastShift+class))
}
