package shm

// stringPiece is the number of bytes a string instruction copies. The runtime's copy reads each
// cache line of the destination before it writes the line, from the other processor's cache if
// necessary. From this length on, the string instruction does not read the destination, and has
// twice the bandwidth if the two processors share no cache. An instruction for more bytes would
// bypass the caches, which gives more bandwidth between processors without a shared cache, but half
// as much between processors with a shared cache.
const stringPiece = 4 << 10

// move copies like the built-in copy and returns the number of bytes. It is for copies into and out
// of a ring.
func move(to, from []byte) int {
	n := min(len(to), len(from))
	at := 0
	if canMoveStrings {
		for ; n-at >= stringPiece; at += stringPiece {
			moveString(&to[at], &from[at], stringPiece)
		}
	}
	copy(to[at:n], from[at:n])
	return n
}
