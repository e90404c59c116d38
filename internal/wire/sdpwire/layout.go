package sdpwire

import "fmt"

// A Layout is a reading of the header figures. [D-01]
//
// The Figure layout takes them as figures of the IETF are usually taken: the
// leftmost bit of a row is the first on the wire. The IBTA layout takes every
// 32-bit row mirrored, which yields, byte for byte, the InfiniBand SDP headers.
//
//	            byte 0      1      2      3
//	Figure    | Bufs       | Flags | MID   |
//	IBTA      | MID  | Flags | Bufs        |
type Layout uint8

const (
	Figure Layout = iota // literal, the default for dialling
	IBTA                 // mirrored, as on InfiniBand
)

// String returns "figure", "ibta", or the number in hex.
func (l Layout) String() string {
	switch l {
	case Figure:
		return "figure"
	case IBTA:
		return "ibta"
	}
	return fmt.Sprintf("layout(%#x)", uint8(l))
}

// DetectLayout tells the layout of the Hello or HelloAck at the front of b and
// whether b looks like one at all. It reads four bytes. Because Flags is zero
// and Bufs never is in these two messages, the layouts do not overlap. [D-01]
// The one collision of a HelloAck (MID 1 against the low byte of Bufs) does
// not arise, as the side that receives it knows the layout already.
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
