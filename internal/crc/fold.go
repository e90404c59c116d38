package crc

// What is far ahead in a message has the same effect on the CRC as its product
// with a power of x, modulo the polynomial, nearer to the end: 16 bytes are two
// halves of 64 bits, each multiplied by 32 bits that depend on how far they
// move. Sixteen such pairs move at a time, in four registers, until 16 bytes are
// left; the polynomial divides those by a multiplication with its inverse.
const (
	foldStep = 16  // fold takes a multiple of it,
	foldMin  = 256 // and at least this
)

// A factor moves 16 bytes: the first 8 by one number and the last by another.
type factor [2]uint64

// folds are the numbers of a polynomial. The layout is known to the assembler.
type folds struct {
	by256 factor    // bytes
	by192 factor    // the first three registers into the last
	by128 factor    //
	by64  factor    //
	lanes [4]factor // the parts of a register into the last, which stays
	by16  factor
	by8   uint64 // 4 bytes
	quot  uint64 // x^64 divided by the polynomial
	poly  uint64
}

// foldsOf returns the numbers of a polynomial, given with the highest power in
// the lowest bit and without x^32.
func foldsOf(poly uint32) (f folds) {
	by := func(bytes int) factor { return factor{power(poly, 8*bytes+32), power(poly, 8*bytes-32)} }
	f.by256, f.by192, f.by128, f.by64 = by(256), by(192), by(128), by(64)
	f.lanes = [4]factor{by(48), by(32), by(16)}
	f.by16, f.by8 = by(16), power(poly, 64)
	f.quot, f.poly = quotient(poly), uint64(poly)<<1|1
	return f
}

// power returns x^n modulo the polynomial, one bit to the left, since the
// product of two reversed numbers is a bit short.
func power(poly uint32, n int) uint64 {
	r := uint32(1) << 31 // x^0
	for range n {
		r = r>>1 ^ poly&-(r&1)
	}
	return uint64(r) << 1
}

// quotient returns x^64 divided by the polynomial, without the rest.
func quotient(poly uint32) uint64 {
	q, r := uint64(1), poly // x^64 less x^32 times the polynomial
	for i := range 32 {
		q |= uint64(r&1) << (i + 1)
		r = r>>1 ^ poly&-(r&1)
	}
	return q
}
