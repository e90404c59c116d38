package fc

import (
	"encoding/binary"
	"hash/crc32"

	"viaduct/internal/crc"
)

// checksum returns the CRC of b. b begins with a frame header and ends before the CRC. [FCFS-2.1-4]
//
// The processor's CRC instructions handle 16 bytes at a time. The standard library handles the
// remaining 0 to 15 bytes singly, in a fifth of the total time for frames of two thousand bytes.
// checksum handles the first len(b) mod 16 bytes instead, in words, because frames consist of
// words. The odd bytes come first, so that they do not wait for the result of the instructions.
func checksum(b []byte) uint32 {
	odd := len(b) & 15
	state := ^uint32(0)
	if odd&8 != 0 {
		state = update8(state, b)
		b = b[8:]
	}
	if odd&4 != 0 {
		state = update4(state, b)
		b = b[4:]
	}
	sum := ^state
	if n := odd & 3; n != 0 {
		sum = crc32.Update(sum, crc32.IEEETable, b[:n])
		b = b[n:]
	}
	return crc.IEEE.Update(sum, b)
}

// Sound reports whether the CRC in b is right. b is a frame from its header to the CRC, and has at
// least CRCLen bytes.
func Sound(b []byte) bool {
	end := len(b) - CRCLen
	return checksum(b[:end]) == binary.LittleEndian.Uint32(b[end:])
}

// Seal computes the CRC of the frame in b, from the header on, and writes the CRC to the last bytes
// of b.
func Seal(b []byte) {
	end := len(b) - CRCLen
	binary.LittleEndian.PutUint32(b[end:], checksum(b[:end]))
}

// ahead[k][v] is the contribution of a byte of value v to the CRC after k further bytes.
var ahead = func() (t [8]crc32.Table) {
	t[0] = *crc32.IEEETable
	for i := range t[0] {
		for k := 1; k < len(t); k++ {
			c := t[k-1][i]
			t[k][i] = t[0][byte(c)] ^ c>>8
		}
	}
	return t
}()

func update4(c uint32, b []byte) uint32 {
	_ = b[3]
	c ^= uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24
	return ahead[3][byte(c)] ^ ahead[2][byte(c>>8)] ^ ahead[1][byte(c>>16)] ^ ahead[0][c>>24]
}

func update8(c uint32, b []byte) uint32 {
	_ = b[7]
	c ^= uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24
	return ahead[7][byte(c)] ^ ahead[6][byte(c>>8)] ^ ahead[5][byte(c>>16)] ^ ahead[4][c>>24] ^
		ahead[3][b[4]] ^ ahead[2][b[5]] ^ ahead[1][b[6]] ^ ahead[0][b[7]]
}
