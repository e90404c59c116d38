package rxe

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"

	"viaduct/cmd/viaduct/internal/rdma/abi"
)

// An Arena provides the memory of rings. The program maps a ring at the offset key.
type Arena interface {
	// Ring returns at least n zeroed bytes that begin at a page boundary.
	Ring(n int) (mem []byte, key int64, err error)
	Drop(mem []byte, key int64)
}

// The layout of a ring, as in the provider's rxe_queue.h.
const (
	logSizeAt  = 0   // log2 of the entry size in bytes
	maskAt     = 4   // number of entries minus one
	producerAt = 128 // index of the next entry to fill
	consumerAt = 256 // index of the next entry to read
	entriesAt  = 384
)

// A ring is a queue in memory shared with the program. It is empty if the producer and consumer
// indexes are equal; therefore an entry always stays free.
type ring struct {
	arena Arena
	mem   []byte // nil after drop
	key   int64
	shift uint   // log2 of the entry size in bytes
	mask  uint32 // number of entries minus one, which is also the capacity
	at    uint32 // index of this side's next entry; never read back from the shared memory
}

// newRing creates a ring for at least n entries of size bytes.
func newRing(a Arena, n uint32, size int) (r ring, err error) {
	r.arena = a
	for 1<<r.shift < size {
		r.shift++
	}
	entries := uint32(2)
	for entries < n+1 {
		entries *= 2
	}
	r.mask = entries - 1
	if r.mem, r.key, err = a.Ring(r.size()); err != nil {
		return r, err
	}
	binary.LittleEndian.PutUint32(r.mem[logSizeAt:], uint32(r.shift))
	binary.LittleEndian.PutUint32(r.mem[maskAt:], r.mask)
	return r, nil
}

func (r *ring) size() int { return entriesAt + int(r.mask+1)<<r.shift }

func (r *ring) drop() {
	if r.mem != nil {
		r.arena.Drop(r.mem, r.key)
		r.mem = nil
	}
}

// info describes the ring to the provider. The provider maps the ring. It returns zeros for a ring
// without memory.
func (r *ring) info() abi.Body {
	b := make(abi.Body, RingInfoLen)
	if r.mem != nil {
		b.Put64(0, uint64(r.key))
		b.Put32(8, uint32(r.size()))
	}
	return b
}

// RingInfoLen is the length in bytes of the description of a ring in a response.
const RingInfoLen = 16

func (r *ring) index(at int) *uint32 { return (*uint32)(unsafe.Pointer(&r.mem[at])) }

// produced returns the index of the first entry the program has not filled.
func (r *ring) produced() uint32 { return atomic.LoadUint32(r.index(producerAt)) & r.mask }

// consumed returns the index of the first entry the program has not read.
func (r *ring) consumed() uint32 { return atomic.LoadUint32(r.index(consumerAt)) & r.mask }

func (r *ring) slot(i uint32) []byte {
	at := entriesAt + int(i&r.mask)<<r.shift
	return r.mem[at : at+1<<r.shift : at+1<<r.shift]
}

// waiting returns the number of entries the program has filled and this side has not taken.
func (r *ring) waiting() uint32 { return (r.produced() - r.at) & r.mask }

// pop frees the taken entry. From here on the program may fill it.
func (r *ring) pop() {
	r.at = (r.at + 1) & r.mask
	atomic.StoreUint32(r.index(consumerAt), r.at)
}

// unread returns the number of entries this side has filled and the program has not read.
func (r *ring) unread() uint32 { return (r.at - r.consumed()) & r.mask }

// publish makes the filled entry visible to the program.
func (r *ring) publish() {
	r.at = (r.at + 1) & r.mask
	atomic.StoreUint32(r.index(producerAt), r.at)
}

// reset empties the ring.
func (r *ring) reset() {
	r.at = 0
	atomic.StoreUint32(r.index(producerAt), 0)
	atomic.StoreUint32(r.index(consumerAt), 0)
}

// adopt copies n entries of another ring, from index from on, into a new ring.
func (r *ring) adopt(old *ring, from, n uint32) {
	for i := range n {
		copy(r.slot(i), old.slot(from+i))
	}
	atomic.StoreUint32(r.index(producerAt), n)
}
