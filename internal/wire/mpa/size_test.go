package mpa

import "testing"

// TestMPA_4_5 checks the formulas against a table computed by hand, and checks the bounds.
// [MPA-4.5-1] [MPA-4.5-2] [MPA-4.5-5] [MPA-5.1-1]
func TestMPA_4_5(t *testing.T) {
	for _, c := range []struct{ emss, plain, marked int }{
		{536, 530, 522}, {1220, 1214, 1202}, {1428, 1422, 1410}, {1448, 1442, 1430},
		{1460, 1454, 1442}, {8948, 8942, 8870}, {1024, 1018, 1010},
		{65483, MaxSendULPDU, MaxSendULPDU}, // [MPA-3-5]
		{88, 128, 128}, {0, 128, 128},       // [MPA-3-4] [MPA-4.5-7]
	} {
		if got := MULPDU(c.emss, false); got != c.plain {
			t.Errorf("MULPDU(%d, false) = %d, want %d", c.emss, got, c.plain)
		}
		if got := MULPDU(c.emss, true); got != c.marked {
			t.Errorf("MULPDU(%d, true) = %d, want %d", c.emss, got, c.marked)
		}
	}
	for emss := 140; emss < 66000; emss++ {
		if m := MULPDU(emss, false); m > MinMULPDU {
			if FPDULen(m) > emss {
				t.Fatalf("emss %d: FPDU of %d bytes", emss, FPDULen(m))
			}
			if emss%4 == 0 && PadLen(m) != 0 { // with a usual MSS, full segments need no pad [I-26]
				t.Fatalf("emss %d: pad %d", emss, PadLen(m))
			}
		}
		m := MULPDU(emss, true)
		if m == MinMULPDU {
			continue
		}
		for _, pos := range []uint32{0, 4, 256, 508} { // wherever the FPDU starts, including the marker before it
			lead := 0
			if pos == 0 {
				lead = MarkerLen
			}
			if total := lead + FPDULen(m) + MarkerLen*markers(pos+uint32(lead), m); total > emss {
				t.Fatalf("emss %d at %d: FPDU of %d bytes with markers", emss, pos, total)
			}
		}
	}
}

func TestPadLen(t *testing.T) { // [MPA-4.1-5]
	for n := range 5000 {
		if p := PadLen(n); p < 0 || p > 3 || (2+n+p)%4 != 0 {
			t.Fatalf("PadLen(%d) = %d", n, p)
		}
	}
}

func TestMaxFPDU(t *testing.T) {
	most := 0
	for pos := uint32(0); pos < MarkerInterval; pos += 4 {
		e := Encoder{Markers: true, pos: pos}
		most = max(most, len(e.Append(nil, make([]byte, MaxRecvULPDU))))
	}
	if most > MaxFPDU || most < MaxFPDU-2*MarkerLen {
		t.Errorf("largest FPDU is %d, MaxFPDU %d", most, MaxFPDU)
	}
}
