//go:build !race

package shm

import "sync/atomic"

// A word and a block are values a producer stores one after the other, and a consumer loads in some
// order. An amd64 processor makes stores visible in their order and performs loads in program
// order, so that no store has to wait for earlier stores. The compiler keeps the order of stores.
type word struct{ v uint64 }

func (w *word) set(v uint64) { w.v = v }

func (w *word) load() uint64 { return atomic.LoadUint64(&w.v) }

// A block may be read during a write. The reader then gets any mixture of old and new bytes.
type block [nearMax]byte

func (b *block) set(from *[nearMax]byte) {
	v := *from // through registers: the compiler calls memmove for arrays that might overlap
	*b = v
}

func (b *block) load(to *[nearMax]byte) {
	v := *b
	*to = v
}
