// Package crc computes the two CRCs of the protocols: CRC-32 (IEEE 802.3) of Fibre Channel frames
// and CRC-32C (Castagnoli) of MPA.
//
// It uses hash/crc32, except for inputs of at least 256 bytes on processors that multiply without
// carries in registers of 512 bits (VPCLMULQDQ), which the standard library does not use. There, a
// pass over data in the cache takes a quarter to a half of the time.
package crc

import "hash/crc32"

// A Table holds the constants of one polynomial. Its zero value cannot be used.
type Table struct {
	std *crc32.Table
	k   folds
}

// The polynomials.
var (
	IEEE       = newTable(crc32.IEEETable)
	Castagnoli = newTable(crc32.MakeTable(crc32.Castagnoli))
)

func newTable(std *crc32.Table) *Table { return &Table{std, foldsOf(std[128])} }

// Update returns the CRC of the bytes whose CRC is crc followed by p. For the first bytes crc is 0.
// The result is that of crc32.Update.
func (t *Table) Update(crc uint32, p []byte) uint32 {
	if canFold && len(p) >= foldMin {
		n := len(p) &^ (foldStep - 1)
		if crc, p = ^fold(^crc, &p[0], n, &t.k), p[n:]; len(p) == 0 {
			return crc
		}
	}
	return crc32.Update(crc, t.std, p)
}
