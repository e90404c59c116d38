package rdmap

import (
	"testing"

	"viaduct/internal/wire/ddp"
)

// Announced headers are there only if their bytes are. [I-40] [RDMAP-4.8-5] [RDMAP-4.8-7]
func TestTerminateHeaders(t *testing.T) {
	seg := make([]byte, ddp.UntaggedLen+ReadRequestLen)
	seg[0], seg[1] = 0x41, 0x41
	full := append([]byte{0x01, 0x00, 0, 0, 0x12, 0x34}, seg...)
	for _, tc := range []struct {
		name       string
		flags      byte
		n          int // bytes of the message
		ddp, rdmap int
		length     bool
		used       int
	}{
		{"nothing announced", 0, len(full), 0, 0, false, TerminateLen},
		{"M alone", hdrM, len(full), 0, 0, false, TerminateLen},
		{"D", hdrD, len(full), ddp.UntaggedLen, 0, false, TerminateLen + 2 + ddp.UntaggedLen},
		{"M and D", hdrM | hdrD, len(full), ddp.UntaggedLen, 0, true, TerminateLen + 2 + ddp.UntaggedLen},
		{"all", hdrM | hdrD | hdrR, len(full), ddp.UntaggedLen, ReadRequestLen, true, len(full)},
		{"R short by one", hdrM | hdrD | hdrR, len(full) - 1, ddp.UntaggedLen, 0, true, TerminateLen + 2 + ddp.UntaggedLen},
		{"D short by one", hdrD, TerminateLen + 2 + ddp.UntaggedLen - 1, 0, 0, false, TerminateLen},
		{"length without a header", hdrD, TerminateLen + 2, 0, 0, false, TerminateLen},
		{"length and a byte", hdrD, TerminateLen + 3, 0, 0, false, TerminateLen},
	} {
		b := append([]byte(nil), full[:tc.n]...)
		b[2] = tc.flags
		m, n, err := ParseTerminate(b)
		if err != nil || len(m.DDP) != tc.ddp || len(m.RDMAP) != tc.rdmap || m.Length != tc.length || n != tc.used {
			t.Errorf("%s: DDP %d, RDMAP %d, length %t, %d bytes, %v", tc.name, len(m.DDP), len(m.RDMAP), m.Length, n, err)
		}
	}
}

// A Terminate is one segment of a possible length. [RDMAP-7.2-6] [I-47]
func TestTerminateLengths(t *testing.T) {
	h := ddp.Untagged{Last: true, QN: QueueTerminate, MSN: 1}
	h.RsvdULP[0] = 0x40 | byte(TerminateOp)
	for n, want := range map[int]Fault{
		TerminateLen - 1: Unspecified, TerminateLen: OK, MaxTerminateLen: OK, MaxTerminateLen + 1: Unspecified,
	} {
		if _, got := CheckUntagged(h, n, Extensions{}); got != want {
			t.Errorf("%d bytes: %v, want %v", n, got, want)
		}
	}
	h.Last = false
	if _, got := CheckUntagged(h, TerminateLen, Extensions{}); got != Unspecified {
		t.Errorf("not the last segment: %v", got)
	}
}

// Opcodes that do not exist are neither solicited nor invalidate anything.
// [RDMAP-5.3-6] [RDMAP-4.1-3]
func TestNoSuchOpcode(t *testing.T) {
	for _, o := range []Opcode{12, 13, 15, 16, 255} {
		if o.Solicited() || o.Invalidates() {
			t.Errorf("%v: solicited %t, invalidates %t", o, o.Solicited(), o.Invalidates())
		}
	}
}

// A message is the swapped one of a peer only if it makes sense swapped, and
// none as it stands or HdrCt bits only at the wrong end. [I-40]
func TestSwappedOrNot(t *testing.T) {
	for _, tc := range []struct {
		name      string
		layer     Layer
		typ, code uint8
		flags     byte
		want      bool
	}{
		{"good as it stands", LayerRDMAP, TypeProtection, 1, hdrM | hdrD, false},
		{"both ways, bits at the right end", LayerDDP, 1, 0, hdrM, false},
		{"both ways, bits at both ends", LayerDDP, 1, 0, hdrM | 1, false},
		{"both ways, no bits", LayerDDP, 1, 0, 0, false},
		{"both ways, bits at the wrong end", LayerDDP, 1, 0, 1, true},
		{"both ways, reserved bits in the middle", LayerDDP, 1, 0, 0x08, false},
		{"neither way", Layer(9), 9, 9, 1, false},
	} {
		_, got := Terminate{Layer: tc.layer, Type: tc.typ, Code: tc.code, flags: tc.flags}.Swapped()
		if got != tc.want {
			t.Errorf("%s: %t, want %t", tc.name, got, tc.want)
		}
	}
}
