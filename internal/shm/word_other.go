//go:build race || !amd64

package shm

import (
	"encoding/binary"
	"sync/atomic"
)

// A word and a block are as in word_amd64.go, with the atomic operations needed by other
// architectures and the race detector.
type word struct{ v atomic.Uint64 }

func (w *word) set(v uint64) { w.v.Store(v) }

func (w *word) load() uint64 { return w.v.Load() }

type block [nearMax / 8]word

func (b *block) set(from *[nearMax]byte) {
	for i := range b {
		b[i].set(binary.NativeEndian.Uint64(from[8*i:]))
	}
}

func (b *block) load(to *[nearMax]byte) {
	for i := range b {
		binary.NativeEndian.PutUint64(to[8*i:], b[i].load())
	}
}
