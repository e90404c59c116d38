package ib

import "hash/crc32"

// A register of the CRC is a polynomial over the field of two elements, modulo the polynomial of
// CRC-32. Its highest power is in bit 0. Updating the CRC with a byte of zeros multiplies the
// register by x^8. [ROCE-ICRC-1]

const one = 1 << 31 // the polynomial 1

// unzero undoes a byte of zeros by dividing r by x^8.
func unzero(r uint32) uint32 {
	for range 8 {
		if r&one != 0 {
			r = (r^crc32.IEEE)<<1 | 1
		} else {
			r <<= 1
		}
	}
	return r
}

// multiply returns the product of two registers.
func multiply(a, b uint32) (p uint32) {
	for ; a != 0; a <<= 1 {
		if a&one != 0 {
			p ^= b
		}
		b = b>>1 ^ crc32.IEEE&-(b&1)
	}
	return p
}

// These are the sizes of the two tables of powers of x^-8 for rewind. undoByte has an entry for
// each number of bytes below rowLen, and undoRow for each number of rows of rowLen bytes.
const (
	rowLen  = 64
	rowsLen = 1<<16/rowLen + 1
)

var (
	undoByte = powers[[rowLen]uint32](1)
	undoRow  = powers[[rowsLen]uint32](rowLen)
)

// powers returns the powers of x^(-8*step), with the exponents from 0 on.
func powers[T [rowLen]uint32 | [rowsLen]uint32](step int) (t T) {
	base := uint32(one)
	for range step {
		base = unzero(base)
	}
	r := uint32(one)
	for i := range len(t) {
		t[i] = r
		r = multiply(r, base)
	}
	return t
}

// rewind undoes n bytes of zeros, at most as many as a UDP datagram has.
func rewind(r uint32, n int) uint32 {
	return multiply(undoRow[n/rowLen], multiply(undoByte[n%rowLen], r))
}
