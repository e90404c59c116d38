package mpa

// These numbers are fixed by RFC 5044.
const (
	MinMULPDU      = 128   // MULPDU never falls below this [MPA-3-4] [MPA-4.5-7]
	MaxULPDU       = 64768 // maximum length of a ULPDU that may be sent [MPA-3-5]
	MarkerInterval = 512   // bytes of TCP sequence space between markers [MPA-4.3-2]
	MarkerLen      = 4
	LengthLen      = 2 // the ULPDU_Length field
	crcLen         = 4
)

// These numbers are our choice.
const (
	// MaxSendULPDU is the maximum length of a sent ULPDU. It is the largest number up to MaxULPDU
	// without a pad. [I-26]
	MaxSendULPDU = 64766
	// MaxRecvULPDU is the maximum length of a ULPDU accepted by a receiver. It is the largest value
	// of the length field. [I-25]
	MaxRecvULPDU = 65535
	// MaxFPDU is the maximum length of an FPDU a receiver may get, including the markers inside and
	// the marker in front. [MPA-A.4-2]
	MaxFPDU = MarkerLen + LengthLen + MaxRecvULPDU + 3 + crcLen + MarkerLen*(1+(LengthLen+MaxRecvULPDU+3)/(MarkerInterval-MarkerLen)+1)
)

// MULPDU returns the maximum length in bytes of a ULPDU for a TCP segment with emss bytes of
// payload. The result is at least MinMULPDU and at most MaxSendULPDU. With markers the largest
// possible number of markers is assumed. [MPA-4.5-1] [MPA-4.5-2] [MPA-5.1-1]
func MULPDU(emss int, markers bool) int {
	m := emss - (LengthLen + crcLen + emss%4)
	if markers {
		m -= MarkerLen * ((emss + MarkerInterval - 1) / MarkerInterval)
	}
	return min(max(m, MinMULPDU), MaxSendULPDU) // [MPA-3-4] [MPA-3-5] [MPA-4.5-7]
}

// PadLen returns the number of pad bytes after a ULPDU of n bytes. [MPA-4.1-5]
func PadLen(n int) int { return -(n + LengthLen) & 3 }

// FPDULen returns the length in bytes of an FPDU with a ULPDU of n bytes, without markers.
func FPDULen(n int) int { return LengthLen + n + PadLen(n) + crcLen }

// markers returns the number of markers inside an FPDU whose ULPDU_Length is at stream position pos
// and whose ULPDU has n bytes. A marker directly before the FPDU does not count, a marker directly
// before the CRC does.
func markers(pos uint32, n int) int {
	// first is the number of bytes of the FPDU before the next marker. Between further markers
	// there are 508 bytes. No marker falls into the CRC, because the CRC is four bytes on a grid of
	// four.
	first := MarkerInterval - int(pos%MarkerInterval)
	body := LengthLen + n + PadLen(n)
	if body < first {
		return 0
	}
	return (body-first)/(MarkerInterval-MarkerLen) + 1
}
