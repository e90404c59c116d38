//go:build !race

package shm

import "sync/atomic"

// A word and a block are what a producer writes one after the other, and a consumer
// reads in that order or another. Processors of this kind show stores in the order in which they
// were made, and make loads in the order of the program, so that no store need wait for those
// before it. The compiler keeps the order of stores.
type word struct{ v uint64 }

func (w *word) set(v uint64) { w.v = v }

func (w *word) load() uint64 { return atomic.LoadUint64(&w.v) }

// A block may be read while it is written, in any mixture of before and after.
type block [nearMax]byte

func (b *block) set(from *[nearMax]byte) {
	v := *from // by registers: for what might overlap the compiler makes a call
	*b = v
}

func (b *block) load(to *[nearMax]byte) {
	v := *b
	*to = v
}
