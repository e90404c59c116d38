package verbs

import "testing"

// TestFigure: figures have about three digits, from a round trip through shared memory to one that
// waits for a timer.
func TestFigure(t *testing.T) {
	for _, c := range []struct {
		unit string
		v    float64
		want string
	}{
		{"us", 0.56, "0.56 us"},
		{"us", 9.96, "9.96 us"},
		{"us", 13.14, "13.1 us"},
		{"us", 1200.04, "1200.0 us"},
		{"messages/s", 4.216e6, "4.22 M/s"},
		{"messages/s", 816400, "816 k/s"},
		{"", 10234.4, "10234 /s"},
	} {
		if got := figure(c.unit, c.v); got != c.want {
			t.Errorf("%v %s: %q, want %q", c.v, c.unit, got, c.want)
		}
	}
}
