package nvme

import (
	"math/bits"
	"sync"

	"viaduct/internal/nvmecore"
	"viaduct/internal/wire/nvmewire"
)

// A buffer is memory for the data of one command.
type buffer struct {
	b    []byte
	pool *sync.Pool
}

const (
	leastShift = 12 // 4 KiB
	classes    = 9  // to 1 MiB, which is MDTS
)

// buffers are memory that commands without memory of their own use while they run: what
// idle queues have is nothing.
type buffers struct {
	capsules sync.Pool
	sizes    [classes]sync.Pool // by powers of two from 4 KiB
}

func take(p *sync.Pool, n int) *buffer {
	if b, ok := p.Get().(*buffer); ok {
		return b
	}
	return &buffer{b: make([]byte, n), pool: p}
}

func (b *buffer) giveBack() { b.pool.Put(b) }

// capsule returns memory for a command with data.
func (bs *buffers) capsule() *buffer {
	return take(&bs.capsules, nvmewire.SQELen+nvmecore.InCapsule)
}

// data returns memory for n bytes, at most MDTS.
func (bs *buffers) data(n int) *buffer {
	class := max(bits.Len(uint(n-1))-leastShift, 0)
	return take(&bs.sizes[class], 1<<(leastShift+class))
}
