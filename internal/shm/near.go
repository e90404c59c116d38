package shm

// The bytes of a ring are in other cache lines than its position, so that a consumer that polls
// fetches two lines from the producer's processor, one after the other. To save one fetch, the
// producer copies the bytes of a short piece into the cache line of the position as well. The line
// holds one piece, the last one. A consumer that finds more than this piece takes the bytes from
// the ring, which always has all of them.
//
// The producer writes the name of the piece first, then the bytes, then the position. The
// consumer reads the name before and after the bytes. If both names are the name of the wanted
// piece, no other piece has replaced the bytes meanwhile.

// nearMax is the greatest size in bytes of a piece that the line has room for.
const nearMax = 32

// near is the piece in the cache line of the position.
type near struct {
	of    word // the name of the piece: see nearPiece
	bytes block
}

// nearPiece returns the name of the piece of n bytes that ends at position end.
func nearPiece(end uint64, n int) uint64 { return end<<8 | uint64(n) }

// put copies the first n bytes of b into the line, as the piece that ends at position end. It does
// nothing if n exceeds nearMax or b has fewer than nearMax bytes. b is a slice because a message
// takes 1.07 times as long with a pointer to an array.
func (c *near) put(b []byte, n int, end uint64) {
	if n <= nearMax && len(b) >= nearMax {
		c.of.set(nearPiece(end, n))
		c.bytes.set((*[nearMax]byte)(b))
	}
}

// get copies the n bytes that end at position end from the line to b, whose length must be at least
// nearMax. It reports whether the line had them; if not, b may have been overwritten.
func (c *near) get(b []byte, n int, end uint64) bool {
	piece := nearPiece(end, n)
	if uint(n) > nearMax || len(b) < nearMax || c.of.load() != piece {
		return false
	}
	c.bytes.load((*[nearMax]byte)(b))
	return c.of.load() == piece
}
