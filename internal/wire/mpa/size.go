package mpa

// Numbers fixed by RFC 5044.
const (
	MinMULPDU      = 128   // MULPDU never falls below this [MPA-3-4] [MPA-4.5-7]
	MaxULPDU       = 64768 // greatest ULPDU that is ever sent [MPA-3-5]
	MarkerInterval = 512   // bytes of TCP sequence space between markers [MPA-4.3-2]
	MarkerLen      = 4
	LengthLen      = 2 // the ULPDU_Length field
	crcLen         = 4
)

// Numbers of our choice.
const (
	// MaxSendULPDU is the largest ULPDU that needs no pad and is within
	// MaxULPDU, and the largest that we send. [I-26]
	MaxSendULPDU = 64766
	// MaxRecvULPDU is the largest ULPDU that a receiver accepts: the largest value of the length
	// field. [I-25]
	MaxRecvULPDU = 65535
	// MaxFPDU is the length of the largest FPDU that a receiver may meet, with
	// its markers and the marker before it. [MPA-A.4-2]
	MaxFPDU = MarkerLen + LengthLen + MaxRecvULPDU + 3 + crcLen + MarkerLen*(1+(LengthLen+MaxRecvULPDU+3)/(MarkerInterval-MarkerLen)+1)
)

// MULPDU returns the greatest ULPDU in bytes that fits a TCP segment of emss bytes (the payload of
// a segment, options deducted), within the bounds 128 and MaxSendULPDU. With markers it assumes the
// largest possible number of them. [MPA-4.5-1] [MPA-4.5-2] [MPA-5.1-1]
func MULPDU(emss int, markers bool) int {
	m := emss - (LengthLen + crcLen + emss%4)
	if markers {
		m -= MarkerLen * ((emss + MarkerInterval - 1) / MarkerInterval)
	}
	return min(max(m, MinMULPDU), MaxSendULPDU) // [MPA-3-4] [MPA-3-5] [MPA-4.5-7]
}

// PadLen returns how many bytes of pad follow a ULPDU of n bytes. [MPA-4.1-5]
func PadLen(n int) int { return -(n + LengthLen) & 3 }

// FPDULen returns the length in bytes of the FPDU that carries a ULPDU of n
// bytes, without markers.
func FPDULen(n int) int { return LengthLen + n + PadLen(n) + crcLen }

// markers returns the number of markers inside an FPDU whose ULPDU_Length is at stream position pos
// and whose ULPDU has n bytes. It does not count a marker directly before the FPDU, and counts one
// directly before the CRC.
func markers(pos uint32, n int) int {
	// first counts the bytes of the FPDU up to the next marker; 508 bytes are between further
	// markers. No marker falls into the CRC: it is four bytes on a grid of four.
	first := MarkerInterval - int(pos%MarkerInterval)
	body := LengthLen + n + PadLen(n)
	if body < first {
		return 0
	}
	return (body-first)/(MarkerInterval-MarkerLen) + 1
}
