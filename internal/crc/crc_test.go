package crc

import (
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"testing"
)

// TestUpdate checks that Update returns the same CRC as hash/crc32 for inputs of every length,
// passed in one piece or in two.
func TestUpdate(t *testing.T) {
	t.Logf("folds: %v", canFold)
	rng := rand.NewChaCha8([32]byte{1})
	b := make([]byte, 70_000)
	rng.Read(b)
	lengths := []int{65_536, 69_000}
	for n := range 3000 {
		lengths = append(lengths, n)
	}
	for _, tab := range []*Table{IEEE, Castagnoli} {
		for i, n := range lengths {
			p, crc := b[i%67:][:n:n], uint32(rng.Uint64())
			if i%3 == 0 {
				crc = 0
			}
			want := crc32.Update(crc, tab.std, p)
			at := int(rng.Uint64() % uint64(n+1))
			if one, two := tab.Update(crc, p), tab.Update(tab.Update(crc, p[:at]), p[at:]); one != want || two != want {
				t.Fatalf("polynomial %08x, %d bytes from %08x on: %08x, in two pieces %08x, want %08x",
					tab.std[128], n, crc, one, two, want)
			}
		}
	}
}

// TestNumbers compares the multipliers of the IEEE polynomial with published values.
func TestNumbers(t *testing.T) {
	k := foldsOf(crc32.IEEE)
	if k.by64 != (factor{0x154442bd4, 0x1c6e41596}) || k.by16 != (factor{0x1751997d0, 0x0ccaa009e}) ||
		k.by8 != 0x163cd6124 || k.quot != 0x1f7011641 || k.poly != 0x1db710641 {
		t.Errorf("%x", k)
	}
}

func BenchmarkUpdate(b *testing.B) {
	p := make([]byte, 65536)
	for name, tab := range map[string]*Table{"IEEE": IEEE, "Castagnoli": Castagnoli} {
		for _, n := range []int{128, 256, 512, 2136, 16384, 65536} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				b.SetBytes(int64(n))
				for b.Loop() {
					tab.Update(0, p[:n])
				}
			})
			b.Run(fmt.Sprintf("%s/std/%d", name, n), func(b *testing.B) {
				b.SetBytes(int64(n))
				for b.Loop() {
					crc32.Update(0, tab.std, p[:n])
				}
			})
		}
	}
}
