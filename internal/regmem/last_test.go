package regmem

import (
	"bytes"
	"testing"
)

// TestCopyLast checks that CopyLast copies the same bytes as Copy for every length and every
// alignment of both ends, and writes no byte outside of dst. [VIA-4.2-5]
func TestCopyLast(t *testing.T) {
	src := make([]byte, 64)
	for i := range src {
		src[i] = byte(i + 1)
	}
	for from := range 9 {
		for n := range 40 {
			for _, guarded := range []bool{false, true} {
				dst, want := make([]byte, 64), make([]byte, 64)
				copy(want[from:], src[3:3+n])
				if err := CopyLast(dst[from:], src[3:3+n], guarded); err != nil || !bytes.Equal(dst, want) {
					t.Fatalf("%d bytes at %d: %x, %v, expected %x", n, from, dst, err, want)
				}
			}
		}
	}
}
