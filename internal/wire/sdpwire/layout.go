package sdpwire

import "fmt"

// A Layout is an interpretation of the draft's header figures. [D-01]
//
// The Figure layout follows the usual convention of the IETF: the leftmost bit of a row is the
// first on the wire. The IBTA layout mirrors every 32-bit row; the result is exactly the InfiniBand
// SDP headers.
//
//	            byte 0      1      2      3
//	Figure    | Bufs       | Flags | MID   |
//	IBTA      | MID  | Flags | Bufs        |
type Layout uint8

const (
	Figure Layout = iota // the figures as drawn; the default for dialling
	IBTA                 // the mirrored figures, as on InfiniBand
)

// String returns "figure", "ibta", or for any other value the number in hexadecimal.
func (l Layout) String() string {
	switch l {
	case Figure:
		return "figure"
	case IBTA:
		return "ibta"
	}
	return fmt.Sprintf("layout(%#x)", uint8(l))
}

// DetectLayout returns the layout of the Hello or HelloAck at the front of b; ok is false if b is
// neither. It reads four bytes. In both messages Flags is zero and Bufs is not, so the layouts are
// distinct. [D-01] A single HelloAck is ambiguous (MID 1 against the low byte of Bufs), but the
// receiving side already knows the layout.
func DetectLayout(b []byte) (l Layout, ok bool) {
	if len(b) < 4 {
		return 0, false
	}
	switch {
	case b[2] == 0 && b[3] == 0 && (b[0] != 0 || b[1] != 0):
		return Figure, true
	case b[0] == 0 && b[1] == 0 && (b[2] != 0 || b[3] != 0):
		return IBTA, true
	}
	return 0, false
}
