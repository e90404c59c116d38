package sdpwire

import "testing"

// Four bytes determine the layout. In the right layout the field Flags is zero, and in the other
// one it is not. [D-01]
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
