package fc

import (
	"hash/crc32"
	"math/rand/v2"
	"testing"
)

// TestChecksum compares checksum with the standard library, for every length. [FCFS-2.1-4]
func TestChecksum(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, HeaderLen+MaxData)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	for n := range len(b) + 1 {
		if got, want := checksum(b[:n]), crc32.ChecksumIEEE(b[:n]); got != want {
			t.Fatalf("%d bytes: %08x, want %08x", n, got, want)
		}
	}
}
