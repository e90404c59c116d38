package sdpwire

import "testing"

// TestLayoutOfFourBytes: four bytes determine the layout. Flags is zero in the right layout, and
// not zero if the bytes are read in the other layout. [D-01]
func TestLayoutOfFourBytes(t *testing.T) {
	for _, tc := range []struct {
		b    []byte
		want Layout
		ok   bool
	}{
		{[]byte{0, 9, 0, 0}, Figure, true},
		{[]byte{9, 0, 0, 0}, Figure, true},
		{[]byte{0, 0, 0, 9}, IBTA, true},
		{[]byte{0, 0, 9, 0}, IBTA, true},
		{[]byte{0, 0, 0, 0}, 0, false},
		{[]byte{9, 0, 0, 9}, 0, false},
		{[]byte{9, 0, 9, 0}, 0, false},
		{[]byte{0, 9, 9, 0}, 0, false},
		{[]byte{0, 9, 0, 9}, 0, false},
		{[]byte{0, 9, 0}, 0, false},
	} {
		if got, ok := DetectLayout(tc.b); got != tc.want || ok != tc.ok {
			t.Errorf("%x: %v, %t", tc.b, got, ok)
		}
	}
}
