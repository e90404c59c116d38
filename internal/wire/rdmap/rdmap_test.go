package rdmap

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"viaduct/internal/testkit"
	"viaduct/internal/wire/ddp"
)

// TestRDMAP_4_1 is the table of messages. [RDMAP-4.1-1] [RDMAP-4.1-2]
// [RDMAP-4.1-4] [RDMAP-4.1-5] [RDMAP-4.1-6] [RDMAP-4.1-7] [RDMAP-3.1-2] [RDMAP-4.2-1]
// [RDMAPX-4.1-1] [RDMAPX-4.1-2] [RDMAPX-4.1-4] [RDMAPX-4-3] [RDMAP-5.1-1] [RDMAP-5.2.1-1]
// [RDMAP-5.2.1-6] [RDMAP-5.2.2-1] [RDMAP-5.3-1] [RDMAP-5.3-8] [RDMAP-5.4-1] [RDMAP-5.4-2]
// [RDMAPX-5.2-1] [RDMAPX-5.2-2] [RDMAPX-5.2.1-6] [RDMAPX-5.2.1-11] [RDMAPX-5.2.2-2] [RDMAPX-5-5]
// [RDMAPX-6.3-1] [RDMAPX-6.3-4]
func TestRDMAP_4_1(t *testing.T) {
	for _, v := range []struct {
		o         Opcode
		two       string // the two control octets of the last segment
		qn        uint32
		inv, se   bool
		extension bool
	}{
		{Write, "c140", 0, false, false, false},
		{ReadRequestOp, "4141", 1, false, false, false},
		{ReadResponse, "c142", 0, false, false, false},
		{Send, "4143", 0, false, false, false},
		{SendInvalidate, "4144", 0, true, false, false},
		{SendSE, "4145", 0, false, true, false},
		{SendSEInvalidate, "4146", 0, true, true, false},
		{TerminateOp, "4147", 2, false, false, false},
		{Immediate, "4148", 0, false, false, true},
		{ImmediateSE, "4149", 0, false, true, true},
		{AtomicRequestOp, "414a", 1, false, false, true},
		{AtomicResponseOp, "414b", 3, false, false, true},
	} {
		t.Run(v.o.String(), func(t *testing.T) {
			var b []byte
			if v.o.Tagged() {
				b = v.o.TaggedHeader(7, 8, true).Append(nil)
			} else {
				h := v.o.UntaggedHeader(9, 0, true, 0xdeadbeef)
				b = h.Append(nil)
				if h.QN != v.qn {
					t.Errorf("QN %d", h.QN)
				}
				want := make([]byte, 4)
				if v.inv { // [RDMAP-4.1-3]
					want = []byte{0xde, 0xad, 0xbe, 0xef}
				}
				if !bytes.Equal(b[2:6], want) { // [RDMAP-4.1-9] [RDMAPX-4.1-3]
					t.Errorf("STag field %x", b[2:6])
				}
				copy(h.RsvdULP[1:], "\xde\xad\xbe\xef")
				stag, ok := InvalidateSTag(h) // other opcodes ignore the field [RDMAP-4.1-10]
				if ok != v.inv || ok && stag != 0xdeadbeef {
					t.Errorf("InvalidateSTag: %x, %t", stag, ok)
				}
			}
			if got := hex.EncodeToString(b[:2]); got != v.two {
				t.Errorf("control octets %s, want %s", got, v.two)
			}
			if rv, o := ParseControl(b[1] | 0x30); rv != 1 || o != v.o { // [RDMAP-4.1-8]
				t.Errorf("ParseControl: %d, %v", rv, o)
			}
			if v.o.Invalidates() != v.inv || v.o.Solicited() != v.se || v.o.Extension() != v.extension ||
				!v.o.Assigned() {
				t.Error("attributes")
			}
			if v.o.IsSend() != (v.o >= 3 && v.o <= 6) || v.o.IsImmediate() != (v.o == 8 || v.o == 9) {
				t.Error("groups")
			}
		})
	}
	for o := Opcode(12); o < 16; o++ {
		if o.Assigned() || o.Tagged() || o.Invalidates() || o.Queue() != 0 ||
			!strings.HasPrefix(o.String(), "opcode 0x") {
			t.Errorf("%v", o)
		}
	}
}

var readRequestVectors = []struct {
	r   ReadRequest
	hex string
}{
	{ReadRequest{SinkSTag: 0x4eae8d00, SinkTO: 0x000056216630ff30, Size: 64, SourceSTag: 0x4064efd1, SourceTO: 0x000055f3d4cee370}, // captured
		"4eae8d00 000056216630ff30 00000040 4064efd1 000055f3d4cee370"},
	{ReadRequest{SourceSTag: 1}, "00000000 0000000000000000 00000000 00000001 0000000000000000"}, // captured; used as RTR
	{ReadRequest{0xffffffff, 1<<64 - 1, 0xffffffff, 0xfffffffe, 1<<64 - 2},
		"ffffffff ffffffffffffffff ffffffff fffffffe fffffffffffffffe"},
}

// TestRDMAP_4_4 checks the Read Request header. [RDMAP-4.4-1] [RDMAP-4.4-3] [RDMAP-4.4-4]
// [RDMAP-4.2-2]
func TestRDMAP_4_4(t *testing.T) {
	for _, v := range readRequestVectors {
		wire := testkit.Hex(v.hex)
		if got := v.r.Append(nil); !bytes.Equal(got, wire) {
			t.Errorf("Append: %x, want %x", got, wire)
		}
		r, n, err := ParseReadRequest(append(bytes.Clone(wire), 9))
		if err != nil || n != ReadRequestLen || r != v.r {
			t.Errorf("ParseReadRequest: %+v, %d, %v", r, n, err)
		}
		for i := range wire {
			if _, _, err := ParseReadRequest(wire[:i]); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("prefix of %d: %v", i, err)
			}
		}
	}
	r := ReadRequest{SinkSTag: 1, SinkTO: 100, Size: 50, SourceSTag: 2, SourceTO: 1000}.Advance(20) // [RDMAP-4.8-12]
	if r != (ReadRequest{1, 120, 30, 2, 1020}) {
		t.Errorf("Advance: %+v", r)
	}
}

// TestRDMAPX_4 checks the headers of RFC 7306. The expected bytes were written by hand from the
// RFC's figures. [RDMAPX-4-1] [RDMAPX-4-2] [RDMAPX-5.2.1-1] [RDMAPX-5.2.1-3] [RDMAPX-5.2.1-5]
// [RDMAPX-6.3-5]
func TestRDMAPX_4(t *testing.T) {
	for _, v := range []struct {
		r   AtomicRequest
		hex string
	}{
		{NewFetchAdd(0x11223344, 0x1020, 5, 1<<63), "00000000 00000000 11223344 0000000000001020 0000000000000005 8000000000000000 0000000000000000 ffffffffffffffff"},
		{NewCmpSwap(0x11223344, 8, 1, 2, 3, 4), "00000002 00000000 11223344 0000000000000008 0000000000000003 0000000000000004 0000000000000001 0000000000000002"},
		{AtomicRequest{Op: 15, ID: 0xcafebabe}, "0000000f cafebabe 00000000" + strings.Repeat("00", 40)},
	} {
		wire := testkit.Hex(v.hex)
		if got := v.r.Append(nil); !bytes.Equal(got, wire) || len(got) != AtomicRequestLen {
			t.Errorf("Append: %x, want %x", got, wire)
		}
		for i := range wire {
			if _, _, err := ParseAtomicRequest(wire[:i]); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("prefix of %d: %v", i, err)
			}
		}
		copy(wire, "\xff\xff\xff")
		wire[3] |= 0xf0 // reserved bits
		if r, n, err := ParseAtomicRequest(wire); err != nil || n != AtomicRequestLen || r != v.r {
			t.Errorf("ParseAtomicRequest: %+v, %d, %v", r, n, err)
		}
	}
	a := AtomicResponse{ID: 0xcafebabe, Value: 0x0102030405060708}
	wire := testkit.Hex("cafebabe 0102030405060708")
	if got := a.Append(nil); !bytes.Equal(got, wire) || len(got) != AtomicResponseLen {
		t.Errorf("Append: %x", got)
	}
	if r, n, err := ParseAtomicResponse(wire); err != nil || n != 12 || r != a {
		t.Errorf("ParseAtomicResponse: %+v, %d, %v", r, n, err)
	}
	im := ImmediateData{1, 2, 3, 4, 5, 6, 7, 8}
	if d, n, err := ParseImmediate(im.Append(nil)); err != nil || n != 8 || d != im {
		t.Errorf("ParseImmediate: %v, %d, %v", d, n, err)
	}
	for i := range 12 {
		if _, _, err := ParseAtomicResponse(wire[:i]); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("prefix of %d: %v", i, err)
		}
		if i < 8 {
			if _, _, err := ParseImmediate(wire[:i]); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("prefix of %d: %v", i, err)
			}
		}
	}
}

// slowMaskedAdd is the loop of RFC 7306: an addition bit by bit, with the carry stopped by a mask
// bit.
func slowMaskedAdd(a, b, mask uint64) (sum uint64) {
	carry := uint64(0)
	for i := range 64 {
		x := a>>i&1 + b>>i&1 + carry
		sum |= x & 1 << i
		carry = x >> 1
		if mask>>i&1 == 1 {
			carry = 0
		}
	}
	return sum
}

// TestRDMAPX_5_1 checks the arithmetic of atomic operations. [RDMAPX-5.1.1-1] [RDMAPX-5.1.1-6]
// [RDMAPX-5.1.2-1] [RDMAPX-5.1.2-2] [RDMAPX-5.2.1-2] [RDMAPX-5-3] [RDMAPX-1.1-4]
func TestRDMAPX_5_1(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		u := rapid.Uint64()
		old, data, mask, cmp, cmask := u.Draw(t, "old"), u.Draw(t, "data"), u.Draw(t, "mask"),
			u.Draw(t, "compare"), u.Draw(t, "cmask")
		add := NewFetchAdd(1, 0, data, mask)
		add.Compare, add.CompareMask = cmp, cmask // FetchAdd ignores these fields
		if got, ch := add.Apply(old); got != slowMaskedAdd(old, data, mask) || !ch {
			t.Fatalf("FetchAdd: %x", got)
		}
		if got := MaskedAdd(old, data, 0); got != old+data {
			t.Fatalf("FetchAdd without mask: %x", got)
		}
		if rapid.Bool().Draw(t, "equal") {
			cmp = old ^ ^cmask&data
		}
		got, ch := NewCmpSwap(1, 0, cmp, cmask, data, mask).Apply(old)
		if cmp&cmask == old&cmask {
			if got != old&^mask|data&mask || !ch {
				t.Fatalf("CmpSwap, equal: %x", got)
			}
		} else if got != old || ch {
			t.Fatalf("CmpSwap, different: %x", got)
		}
	})
	for o := range AtomicOp(16) {
		if o.Supported() != (o == 0 || o == 2) || o.String() == "" {
			t.Error(o)
		}
	}
	if w, ch := (AtomicRequest{Op: 1, Data: 9}).Apply(4); w != 4 || ch {
		t.Error("reserved operation changed the word")
	}
}

// TestErrorTables checks the errors against Figure 9 and the registries of RFC 5040. [RDMAP-4.8-3]
// [DDP-7.2-1] [MPA2-8-2]
func TestErrorTables(t *testing.T) {
	want := map[[3]uint8]string{
		{0, 0, 0}: "local catastrophic error",
		{0, 1, 0}: "invalid STag", {0, 1, 1}: "base or bounds violation", {0, 1, 2}: "access rights violation",
		{0, 1, 3}: "STag not associated with the stream", {0, 1, 4}: "TO wrap",
		{0, 1, 9}: "STag cannot be invalidated", {0, 1, 0xff}: "unspecified protection error",
		{0, 2, 5}: "invalid RDMAP version", {0, 2, 6}: "unexpected opcode",
		{0, 2, 7}: "catastrophic error of the stream", {0, 2, 8}: "catastrophic error, global",
		{0, 2, 9}: "STag cannot be invalidated", {0, 2, 0xff}: "unspecified error",
		{1, 0, 0}: "local catastrophic error",
		{1, 1, 0}: "invalid STag", {1, 1, 1}: "base or bounds violation", {1, 1, 2}: "STag not associated with the stream",
		{1, 1, 3}: "TO wrap", {1, 1, 4}: "invalid DDP version",
		{1, 2, 1}: "invalid queue number", {1, 2, 2}: "invalid MSN, no buffer available",
		{1, 2, 3}: "invalid MSN, out of range", {1, 2, 4}: "invalid MO",
		{1, 2, 5}: "message too long for the buffer", {1, 2, 6}: "invalid DDP version",
		{2, 0, 1}: "TCP connection closed or lost", {2, 0, 2}: "CRC error",
		{2, 0, 3}: "marker and ULPDU length mismatch", {2, 0, 4}: "invalid Request or Reply Frame",
		{2, 0, 5}: "local catastrophic error", {2, 0, 6}: "insufficient IRD resources", {2, 0, 7}: "no matching RTR option",
	}
	for l := range uint8(4) {
		for typ := range uint8(16) {
			for code := range 256 {
				k := [3]uint8{l, typ, uint8(code)}
				text, ok := Describe(Layer(l), typ, uint8(code))
				w, in := want[k]
				if typ == 0 && l < 2 { // a catastrophic error may have any code
					w, in = "local catastrophic error", true
				}
				if ok != in || ok && text != w || text == "" {
					t.Fatalf("%v: %q, %t; want %q", k, text, ok, w)
				}
			}
		}
	}
	for f := Catastrophic; f < numFaults; f++ {
		typ, code := f.Code()
		if g, ok := FaultOf(typ, code); !ok || g != f {
			t.Errorf("%v: %d/%02x is %v", f, typ, code, g)
		}
	}
	if typ, code := Fault(99).Code(); typ != 0 || code != 0 || Fault(99).String() != "fault 0x63" ||
		Layer(9).String() != "layer 0x9" {
		t.Error("unknown fault")
	}
}

// These functions return segments whose headers a Terminate may contain.
func readRequestULPDU() []byte {
	b := ReadRequestOp.UntaggedHeader(5, 0, true, 0).Append(nil)
	return ReadRequest{SinkSTag: 1, SinkTO: 2, Size: 3, SourceSTag: 4, SourceTO: 5}.Append(b)
}

func sendULPDU(o Opcode) []byte {
	return append(o.UntaggedHeader(1, 0, true, 7).Append(nil), "payload"...)
}

func writeULPDU() []byte {
	return append(Write.TaggedHeader(1, 2, true).Append(nil), "payload"...)
}

// TestRDMAP_4_8 checks Figure 10: the headers of each error, and the resulting lengths.
// [RDMAP-4.8-1] [RDMAP-4.8-2] [RDMAP-4.8-4] [RDMAP-4.8-5] [RDMAP-4.8-6] [RDMAP-4.8-7] [RDMAP-4.8-8]
// [RDMAP-4.8-9] [RDMAP-4.8-10] [RDMAP-4.8-11] [RDMAPX-8.1-2] [I-39]
func TestRDMAP_4_8(t *testing.T) {
	atomic := AtomicRequestOp.UntaggedHeader(1, 0, true, 0).Append(nil)
	atomic = NewFetchAdd(1, 1, 1, 0).Append(atomic)
	rr, rrHex := readRequestULPDU(), hex.EncodeToString(readRequestULPDU())
	for _, c := range []struct {
		name string
		t    Terminate
		hex  string
	}{
		{"catastrophic", TerminateRDMAP(Catastrophic, rr), "00 00 00 00"},
		{"protection, read request", TerminateRDMAP(AccessRights, rr), "01 02 e0 00 002e" + rrHex},
		{"protection, send with invalidate", TerminateRDMAP(CannotInvalidate, sendULPDU(SendInvalidate)),
			"01 09 c0 00 0019 414400000007 00000000 00000001 00000000"},
		{"protection, atomic", TerminateRDMAP(InvalidSTag, atomic), "01 00 c0 00 0046 414a00000000 00000001 00000001 00000000"},
		{"operation, read request", TerminateRDMAP(InvalidVersion, rr), "02 05 c0 00 002e" + rrHex[:36]},
		{"operation, write", TerminateRDMAP(UnexpectedOpcode, writeULPDU()), "02 06 c0 00 0015 c140 00000001 0000000000000002"},
		{"operation, atomic", TerminateRDMAP(StreamCatastrophic, atomic), "02 07 c0 00 0046 414a00000000 00000001 00000001 00000000"},
		{"no message", TerminateRDMAP(Unspecified, nil), "02 ff 00 00"},
		{"segment cut short", TerminateRDMAP(Unspecified, rr[:10]), "02 ff 00 00"},
		{"read request cut short", TerminateRDMAP(InvalidSTag, rr[:30]), "01 00 c0 00 001e" + rrHex[:36]},
		{"DDP tagged", TerminateDDP(ddp.OutOfBounds, writeULPDU()), "11 01 c0 00 0015 c140 00000001 0000000000000002"},
		{"DDP untagged", TerminateDDP(ddp.MessageTooLong, sendULPDU(Send)), "12 05 c0 00 0019 414300000000 00000000 00000001 00000000"},
		{"DDP on queue 1: no RDMAP header", TerminateDDP(ddp.InvalidMSNNoBuffer, rr), "12 02 c0 00 002e" + rrHex[:36]},
		{"DDP version, tagged", TerminateDDP(ddp.TaggedVersion, writeULPDU()), "11 04 00 00"},
		{"DDP version, untagged", TerminateDDP(ddp.UntaggedVersion, rr), "12 06 00 00"},
		{"DDP catastrophic", TerminateDDP(ddp.Catastrophic, rr), "10 00 00 00"},
		{"MPA", TerminateMPA(2), "20 02 00 00"},
	} {
		t.Run(c.name, func(t *testing.T) {
			wire := testkit.Hex(c.hex)
			if got := c.t.Append(nil); !bytes.Equal(got, wire) {
				t.Fatalf("Append:\n got %x\nwant %x", got, wire)
			}
			for _, b := range [][]byte{wire, reservedSet(wire)} {
				got, n, err := ParseTerminate(b)
				if err != nil || n != len(wire) {
					t.Fatalf("ParseTerminate: %d, %v", n, err)
				}
				if d := cmp.Diff(c.t, got, cmpopts.IgnoreUnexported(Terminate{})); d != "" {
					t.Errorf("ParseTerminate (-want +got):\n%s", d)
				}
			}
			for i := range wire {
				got, n, err := ParseTerminate(wire[:i])
				if i < TerminateLen {
					if !errors.Is(err, io.ErrUnexpectedEOF) {
						t.Errorf("prefix of %d: %v", i, err)
					}
				} else if err != nil || n > i || len(got.RDMAP) > 0 { // incomplete headers count as absent [I-40]
					t.Errorf("prefix of %d: %+v, %d, %v", i, got, n, err)
				}
			}
		})
	}
	t.Run("M=0 with D", func(t *testing.T) { // the length field is present even then [RDMAP-4.8-7]
		got, n, err := ParseTerminate(testkit.Hex("11 01 40 00 1234 c140 00000001 0000000000000002"))
		if err != nil || n != 20 || got.Length || len(got.DDP) != 14 {
			t.Errorf("%+v, %d, %v", got, n, err)
		}
	})
	t.Run("R without header", func(t *testing.T) {
		got, n, err := ParseTerminate(testkit.Hex("01 09 20 00"))
		if err != nil || n != 4 || got.RDMAP != nil {
			t.Errorf("%+v, %d, %v", got, n, err)
		}
	})
}

func reservedSet(b []byte) []byte {
	b = bytes.Clone(b)
	b[2] |= 0x1f
	b[3] = 0xff
	return b
}

// TestSwapped: Swapped corrects swapped Terminates captured from Linux. No Terminate of the package
// looks swapped. [I-40]
func TestSwapped(t *testing.T) {
	for _, c := range []struct {
		hex  string
		text string
	}{
		{"02 02 00 00", "CRC error"},
		{"11 00 03 00 0040 c140deadbe00 0000000000000000", "invalid STag"},
		{"10 00 07 00 0000 414100000000 00000001 00000040 00000000 00000005 0000000000000006 00000040 deadbe00 0000000000000000", "invalid STag"},
		{"21 02 03 00", "invalid MSN, no buffer available"},
	} {
		tm, _, err := ParseTerminate(testkit.Hex(c.hex))
		if err != nil {
			t.Fatal(err)
		}
		if s, ok := tm.Swapped(); !ok || s.Text() != c.text {
			t.Errorf("%s: %q, %t", c.hex, s.Text(), ok)
		}
	}
	for _, tm := range []Terminate{TerminateMPA(2), TerminateDDP(ddp.OutOfBounds, writeULPDU()), TerminateRDMAP(AccessRights, readRequestULPDU())} {
		got, _, _ := ParseTerminate(tm.Append(nil))
		if s, ok := got.Swapped(); ok {
			t.Errorf("%v looks swapped: %v", got.LogValue(), s.LogValue())
		}
	}
}

// TestCheck: version, queue, opcode and length are checked in this order. [RDMAP-7.2-2]
// [RDMAP-7.2-3] [RDMAP-7.2-6] [RDMAP-4.1-11] [DDP-7.1-1] [RDMAPX-1.1-3] [RDMAPX-6.3-7]
// [RDMAPX-8.2-1] [I-47]
func TestCheck(t *testing.T) {
	both := Extensions{Immediate: true, Atomic: true}
	for qn := range uint32(6) {
		for _, ext := range []Extensions{{}, both} {
			want := ddp.InvalidQN
			if qn <= 2 || qn == 3 && ext.Atomic {
				want = ddp.OK
			}
			if got := CheckQueue(qn, ext); got != want {
				t.Errorf("queue %d, %+v: %v", qn, ext, got)
			}
		}
	}
	if CheckQueue(0xffffffff, both) != ddp.InvalidQN {
		t.Error("queue 0xffffffff")
	}
	for c := range 256 {
		rv, o := uint8(c>>6), Opcode(c&15)
		_, got := CheckTagged(byte(c))
		want := UnexpectedOpcode
		if rv != 1 {
			want = InvalidVersion
		} else if o == Write || o == ReadResponse {
			want = OK
		}
		if got != want {
			t.Errorf("tagged, octet %02x: %v", c, got)
		}
		for _, ext := range []Extensions{{}, {Immediate: true}, {Atomic: true}, both} {
			for qn := range uint32(4) {
				h := ddp.Untagged{Last: true, QN: qn, RsvdULP: [5]byte{byte(c)}}
				want := UnexpectedOpcode
				n := 0
				switch {
				case rv != 1:
					want = InvalidVersion
				case qn == 0 && o >= 3 && o <= 6:
					want = OK
				case qn == 1 && o == 1:
					want, n = OK, 28
				case qn == 2 && o == 7:
					want, n = OK, 4
				case qn == 0 && (o == 8 || o == 9) && ext.Immediate:
					want, n = OK, 8
				case qn == 1 && o == 10 && ext.Atomic:
					want, n = OK, 52
				case qn == 3 && o == 11 && ext.Atomic:
					want, n = OK, 12
				}
				if _, got := CheckUntagged(h, n, ext); got != want {
					t.Errorf("queue %d, octet %02x, %+v: %v, want %v", qn, c, ext, got, want)
				}
				if want == OK && n > 0 { // the message has a fixed length and one segment
					for _, k := range []int{0, n - 1, n + 1, n + 100} {
						if o == TerminateOp && k >= 4 && k <= 52 {
							continue
						}
						if _, got := CheckUntagged(h, k, ext); got != Unspecified {
							t.Errorf("%v of %d bytes: %v", o, k, got)
						}
					}
					h.Last = false
					if _, got := CheckUntagged(h, n, ext); got != Unspecified {
						t.Errorf("%v without L: %v", o, got)
					}
				}
			}
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(readRequestULPDU()[18:])
	f.Add(TerminateRDMAP(AccessRights, readRequestULPDU()).Append(nil))
	f.Add(TerminateDDP(ddp.OutOfBounds, writeULPDU()).Append(nil))
	f.Add(NewCmpSwap(1, 2, 3, 4, 5, 6).Append(nil))
	f.Add(AtomicResponse{ID: 1, Value: 2}.Append(nil))
	f.Add([]byte("\x02\x02\x00\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, _, err := ParseReadRequest(b); err == nil {
			if g, _, err := ParseReadRequest(r.Append(nil)); err != nil || g != r {
				t.Fatal(g, err)
			}
			_ = r.LogValue()
		}
		if r, _, err := ParseAtomicRequest(b); err == nil {
			if g, _, err := ParseAtomicRequest(r.Append(nil)); err != nil || g != r {
				t.Fatal(g, err)
			}
			if w, changed := r.Apply(42); !changed && w != 42 {
				t.Fatal(w)
			}
			_ = r.LogValue()
		}
		if r, _, err := ParseAtomicResponse(b); err == nil {
			if g, _, err := ParseAtomicResponse(r.Append(nil)); err != nil || g != r {
				t.Fatal(g, err)
			}
			_ = r.LogValue()
		}
		if d, _, err := ParseImmediate(b); err == nil && !bytes.Equal(d.Append(nil), b[:8]) {
			t.Fatal(d)
		}
		if tm, n, err := ParseTerminate(b); err == nil {
			if n > len(b) || n > MaxTerminateLen {
				t.Fatal(n)
			}
			g, _, err := ParseTerminate(tm.Append(nil))
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tm, g, cmpopts.IgnoreUnexported(Terminate{})); d != "" {
				t.Fatal(d)
			}
			tm.Swapped()
			_ = tm.LogValue()
		}
		// The headers a Terminate encloses must be part of the segment.
		for _, tm := range []Terminate{TerminateRDMAP(InvalidSTag, b), TerminateDDP(ddp.InvalidSTag, b)} {
			if len(tm.DDP)+len(tm.RDMAP) > len(b) {
				t.Fatal("headers longer than the segment")
			}
		}
	})
}
