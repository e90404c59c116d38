package shm

import (
	"bytes"
	"testing"
)

// TestMove: move copies like the built-in function and changes no other bytes.
func TestMove(t *testing.T) {
	from := make([]byte, 3*stringPiece+100)
	for i := range from {
		from[i] = byte(i*7 + i>>8)
	}
	for _, n := range []int{0, 1, 100, stringPiece - 1, stringPiece, stringPiece + 1, 2*stringPiece - 1, 2 * stringPiece, 3*stringPiece + 50} {
		for _, off := range []int{0, 1, 13, 50} {
			for _, room := range []int{n, n + 30} { // one of the slices may be longer
				to := make([]byte, off+room+20)
				want := bytes.Clone(to)
				copy(want[off:off+room], from[off:off+n])
				if k := move(to[off:off+room], from[off:off+n]); k != n || !bytes.Equal(to, want) {
					t.Errorf("%d bytes to %d, at %d: %d, equal %t", n, room, off, k, bytes.Equal(to, want))
				}
				to = make([]byte, off+n+20)
				want = bytes.Clone(to)
				copy(want[off:off+n], from[off:])
				if k := move(to[off:off+n], from[off:]); k != min(n, len(from)-off) || !bytes.Equal(to, want) {
					t.Errorf("%d bytes of %d, at %d: %d, equal %t", n, len(from)-off, off, k, bytes.Equal(to, want))
				}
			}
		}
	}
}
