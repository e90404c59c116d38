package shm

// stringPiece is how many bytes one string instruction copies. The runtime's copy fetches each
// line of its destination before it writes it, out of the other processor's cache if that has
// it, and the instruction does not, from this length on. Where the two processors share no cache
// that doubles the bandwidth. Longer ones would pass the caches by: more bandwidth there, but half
// of it where the processors share one.
const stringPiece = 4 << 10

// move is the built-in copy, for what goes into a ring or comes out of it.
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
