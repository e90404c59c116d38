package crc

// A block of 16 bytes has the same effect on the CRC as another block nearer to the end of the
// message: the product of the block with a power of x, modulo the polynomial. Each half of the
// block, 64 bits, is multiplied by 32 bits that depend on the distance. The function fold moves
// sixteen blocks at a time, in four registers, until 16 bytes are left. It divides these by the
// polynomial, by a multiplication with the inverse of the polynomial (Barrett reduction).
const (
	foldStep = 16  // bytes; fold takes only multiples of this length,
	foldMin  = 256 // bytes; and no shorter input
)

// A factor moves 16 bytes: one multiplier is for the first 8 bytes, the other for the last 8.
type factor [2]uint64

// folds holds the multipliers of a polynomial. fold_amd64.s depends on the layout.
type folds struct {
	by256 factor    // moves a register by 256 bytes
	by192 factor    // the first register into the fourth
	by128 factor    // the second register into the fourth
	by64  factor    // the third register into the fourth, or by 64 bytes
	lanes [4]factor // the first three lanes of a register into the last lane, which stays
	by16  factor
	by8   uint64 // moves 4 bytes by 8 bytes
	quot  uint64 // x^64 divided by the polynomial
	poly  uint64
}

// foldsOf returns the multipliers of a polynomial. The lowest bit of poly is the coefficient of
// x^31; x^32 is left out.
func foldsOf(poly uint32) (f folds) {
	by := func(bytes int) factor { return factor{power(poly, 8*bytes+32), power(poly, 8*bytes-32)} }
	f.by256, f.by192, f.by128, f.by64 = by(256), by(192), by(128), by(64)
	f.lanes = [4]factor{by(48), by(32), by(16)}
	f.by16, f.by8 = by(16), power(poly, 64)
	f.quot, f.poly = quotient(poly), uint64(poly)<<1|1
	return f
}

// power returns x^n modulo the polynomial, shifted by one bit to the left, because the product of
// two bit-reversed numbers is one bit too low.
func power(poly uint32, n int) uint64 {
	r := uint32(1) << 31 // x^0
	for range n {
		r = r>>1 ^ poly&-(r&1)
	}
	return uint64(r) << 1
}

// quotient returns x^64 divided by the polynomial, without the remainder.
func quotient(poly uint32) uint64 {
	q, r := uint64(1), poly // x^64 minus x^32 times the polynomial
	for i := range 32 {
		q |= uint64(r&1) << (i + 1)
		r = r>>1 ^ poly&-(r&1)
	}
	return q
}
