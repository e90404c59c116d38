package shm

// The bytes of a ring and the position are in different cache lines, so that a polling consumer
// fetches two lines from the producer's processor, first the position and then the bytes. To save
// one fetch, the producer copies the bytes of a short piece into the cache line of the position as
// well. The line holds only the last piece. If more than the last piece is available, the consumer
// takes the bytes from the ring, which always has all bytes.
//
// The producer writes the name of the piece first, then the bytes, then the position. The
// consumer reads the name before and after the bytes. If both names are the name of the wanted
// piece, no other piece has replaced the bytes meanwhile.

// nearMax is the greatest size in bytes of a piece in the line.
const nearMax = 32

// near is the piece in the cache line of the position.
type near struct {
	of    word // the name of the piece: see nearPiece
	bytes block
}

// nearPiece returns the name of the piece of n bytes before position end.
func nearPiece(end uint64, n int) uint64 { return end<<8 | uint64(n) }

// put copies the first n bytes of b into the line, as the piece before position end. put does
// nothing if n exceeds nearMax or b has fewer than nearMax bytes. b is a slice because a message
// takes 1.07 times as long with a pointer to an array.
func (c *near) put(b []byte, n int, end uint64) {
	if n <= nearMax && len(b) >= nearMax {
		c.of.set(nearPiece(end, n))
		c.bytes.set((*[nearMax]byte)(b))
	}
}

// get copies the n bytes before position end from the line to b, whose length must be at least
// nearMax. get reports whether the line had the bytes; if not, b may have been overwritten.
func (c *near) get(b []byte, n int, end uint64) bool {
	piece := nearPiece(end, n)
	if uint(n) > nearMax || len(b) < nearMax || c.of.load() != piece {
		return false
	}
	c.bytes.load((*[nearMax]byte)(b))
	return c.of.load() == piece
}
