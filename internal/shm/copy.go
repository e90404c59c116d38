package shm

// stringPiece is the number of bytes that one string instruction copies. The runtime's copy reads
// each cache line of the destination before it writes the line, from the other processor's cache if
// necessary. From this length on, the string instruction does not read the destination, which
// doubles the bandwidth where the two processors share no cache. An instruction for more bytes
// would bypass the caches: that gives more bandwidth where the processors share no cache, but half
// as much where they do.
const stringPiece = 4 << 10

// move copies like the built-in copy and returns the number of bytes. It is for copies into a ring
// and out of it.
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
