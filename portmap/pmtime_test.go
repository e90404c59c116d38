package portmap

import (
	"testing"
	"time"
)

func TestSDP_7_3_1_4(t *testing.T) {
	for _, c := range []struct {
		p PmTime
		d time.Duration
	}{
		{0, 0}, {1, 250 * time.Millisecond}, {4, time.Second}, {127, 31750 * time.Millisecond}, // [SDP-7.3.1.4-6]
		{128, 128 * time.Second}, {254, 254 * time.Second}, // [SDP-7.3.1.4-7]
		{255, 24 * time.Hour}, // [SDP-7.3.1.4-8] [D-64]
	} {
		if got := c.p.Duration(); got != c.d {
			t.Errorf("PmTime %d is %v, want %v", c.p, got, c.d)
		}
	}
	for d := time.Duration(0); d < 300*time.Second; d += 90 * time.Millisecond {
		p := PmTimeFor(d)
		if p.Duration() > d {
			t.Fatalf("PmTimeFor(%v) = %d, which is %v", d, p, p.Duration())
		}
		if next := p + 1; next != Forever && next.Duration() <= d && p != 254 {
			t.Fatalf("PmTimeFor(%v) = %d, but %d fits too", d, p, next)
		}
	}
	if defaultPmTime.Duration() < time.Second { // [SDP-7.3.1.4-9]
		t.Error("default lifetime is too short to connect")
	}
	if defaultPmTime.Duration() != 30*time.Second { // [D-68]
		t.Errorf("the default lifetime is %v", defaultPmTime.Duration())
	}
}
