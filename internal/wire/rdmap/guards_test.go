package rdmap

import (
	"testing"

	"viaduct/internal/wire/ddp"
)

// An announced header counts as present only if the message contains all bytes of the header.
// [I-40] [RDMAP-4.8-5] [RDMAP-4.8-7]
func TestTerminateHeaders(t *testing.T) {
	seg := make([]byte, ddp.UntaggedLen+ReadRequestLen)
	seg[0], seg[1] = 0x41, 0x41
	full := append([]byte{0x01, 0x00, 0, 0, 0x12, 0x34}, seg...)
	for _, tc := range []struct {
		name       string
		flags      byte
		n          int // length of the message in bytes
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
			t.Errorf("%s: DDP %d, RDMAP %d, length %t, %d bytes, %v", tc.name, len(m.DDP),
				len(m.RDMAP), m.Length, n, err)
		}
	}
}

// A Terminate for a protection error contains the header of a Read Request only if the received
// header is complete. The same holds for the DDP header. [RDMAP-7.1-2] [RDMAP-7.1-3] [RDMAP-7.1-4]
func TestTerminateCutRequest(t *testing.T) {
	full := make([]byte, ddp.UntaggedLen+ReadRequestLen+1)
	full[0], full[1] = 0x41, 0x40|byte(ReadRequestOp)
	for n := range len(full) + 1 {
		m := TerminateRDMAP(OutOfBounds, full[:n:n])
		hl, rl := 0, 0
		if n >= ddp.UntaggedLen {
			hl = ddp.UntaggedLen
		}
		if n >= ddp.UntaggedLen+ReadRequestLen {
			rl = ReadRequestLen
		}
		if m.Type != TypeProtection || len(m.DDP) != hl || len(m.RDMAP) != rl {
			t.Errorf("%d bytes: type %d, %d and %d bytes of headers, want %d and %d", n, m.Type,
				len(m.DDP), len(m.RDMAP), hl, rl)
		}
	}
}

// A Terminate must be a single segment with a valid length. [RDMAP-7.2-6] [I-47]
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

// A message without an RDMAP header may have any length and number of segments. Any other has a
// fixed length and a single segment. [RDMAP-7.2-6] [RDMAPX-8.2-1] [I-47]
func TestMessageLengths(t *testing.T) {
	for o := range Opcode(opcodeMask + 1) {
		if !o.Assigned() || o.Tagged() || o == TerminateOp {
			continue
		}
		h := ddp.Untagged{QN: o.Queue(), MSN: 1}
		h.RsvdULP[0] = Version<<versionShift | byte(o)
		fixed := map[Opcode]int{ReadRequestOp: 28, Immediate: 8, ImmediateSE: 8, AtomicRequestOp: 52, AtomicResponseOp: 12}[o]
		for _, last := range []bool{true, false} {
			for n := range 70 {
				h.Last = last
				want := OK
				if fixed > 0 && (n != fixed || !last) {
					want = Unspecified
				}
				if _, got := CheckUntagged(h, n, Extensions{Immediate: true, Atomic: true}); got != want {
					t.Errorf("%v of %d bytes, last %v: %v, want %v", o, n, last, got, want)
				}
			}
		}
	}
}

// An unassigned opcode is not solicited and invalidates no STag. [RDMAP-5.3-6] [RDMAP-4.1-3]
func TestNoSuchOpcode(t *testing.T) {
	for _, o := range []Opcode{12, 13, 15, 16, 255} {
		if o.Solicited() || o.Invalidates() {
			t.Errorf("%v: solicited %t, invalidates %t", o, o.Solicited(), o.Invalidates())
		}
	}
}

// A Terminate counts as swapped only with a meaning after swapping. In addition, it must have no
// meaning before swapping, or all HdrCt bits must be at the wrong end. [I-40]
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
