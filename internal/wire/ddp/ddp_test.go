package ddp

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"viaduct/internal/testkit"
)

var taggedVectors = []struct {
	name string
	h    Tagged
	hex  string
}{
	{"captured write", Tagged{Last: true, RsvdULP: 0x40, STag: 0xed7fff00, TO: 0x000055f3d4cee550}, "c1 40 ed7fff00 000055f3d4cee550"},
	{"captured read response", Tagged{Last: true, RsvdULP: 0x42, STag: 0x4eae8d00, TO: 0x000056216630ff30}, "c1 42 4eae8d00 000056216630ff30"},
	{"captured zero-length write", Tagged{Last: true, RsvdULP: 0x40, STag: 1}, "c1 40 00000001 0000000000000000"},
	{"not the last", Tagged{RsvdULP: 0x40, STag: 0xffffffff, TO: 1<<64 - 1}, "81 40 ffffffff ffffffffffffffff"},
}

var untaggedVectors = []struct {
	name string
	h    Untagged
	hex  string
}{
	{"captured send", Untagged{Last: true, RsvdULP: [5]byte{0x43}, MSN: 1}, "41 4300000000 00000000 00000001 00000000"},
	{"captured send with invalidate", Untagged{Last: true, RsvdULP: [5]byte{0x44, 0x99, 0x88, 0x77}, MSN: 1}, "41 4499887700 00000000 00000001 00000000"},
	{"captured read request", Untagged{Last: true, RsvdULP: [5]byte{0x41}, QN: 1, MSN: 1}, "41 4100000000 00000001 00000001 00000000"},
	{"captured terminate", Untagged{Last: true, RsvdULP: [5]byte{0x47}, QN: 2, MSN: 1}, "41 4700000000 00000002 00000001 00000000"},
	{"not the last", Untagged{RsvdULP: [5]byte{1, 2, 3, 4, 5}, QN: 0xffffffff, MSN: 0x80000001, MO: 0x01020304}, "01 0102030405 ffffffff 80000001 01020304"},
}

// TestDDP_4_2 checks the Tagged header. [DDP-4.2-1] [DDP-4.2-2] [DDP-4.2-3] [DDP-4.1-8]
// [DDP-4.1-10]
func TestDDP_4_2(t *testing.T) {
	for _, v := range taggedVectors {
		t.Run(v.name, func(t *testing.T) {
			wire := testkit.Hex(v.hex)
			if got := v.h.Append(nil); !bytes.Equal(got, wire) || len(got) != TaggedLen {
				t.Errorf("Append: %x, want %x", got, wire)
			}
			h, n, err := ParseTagged(append(bytes.Clone(wire), 1))
			if err != nil || n != TaggedLen || h != v.h {
				t.Errorf("ParseTagged: %+v, %d, %v", h, n, err)
			}
			for i := range wire {
				if _, _, err := ParseTagged(wire[:i]); !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Errorf("prefix of %d: %v", i, err)
				}
			}
			wire[0] |= 0x3c // [DDP-4.1-9]
			if h, _, err := ParseTagged(wire); err != nil || h != v.h {
				t.Errorf("reserved bits: %+v, %v", h, err)
			}
			if !IsTagged(wire[0]) || IsLast(wire[0]) != v.h.Last || HeaderLen(wire[0]) != TaggedLen { // [DDP-4.1-1]
				t.Error("control octet")
			}
		})
	}
	checkVersions(t, func(b []byte) error { _, _, err := ParseTagged(b); return err }, taggedVectors[0].hex)
	if _, _, err := ParseTagged(testkit.Hex(untaggedVectors[0].hex)); !errors.Is(err, ErrModel) {
		t.Error(err)
	}
}

// TestDDP_4_3 checks the Untagged header. [DDP-4.3-1] [DDP-4.3-2] [DDP-4.3-3]
func TestDDP_4_3(t *testing.T) {
	for _, v := range untaggedVectors {
		t.Run(v.name, func(t *testing.T) {
			wire := testkit.Hex(v.hex)
			if got := v.h.Append(nil); !bytes.Equal(got, wire) || len(got) != UntaggedLen {
				t.Errorf("Append: %x, want %x", got, wire)
			}
			h, n, err := ParseUntagged(append(bytes.Clone(wire), 1))
			if err != nil || n != UntaggedLen || h != v.h {
				t.Errorf("ParseUntagged: %+v, %d, %v", h, n, err)
			}
			for i := range wire {
				if _, _, err := ParseUntagged(wire[:i]); !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Errorf("prefix of %d: %v", i, err)
				}
			}
			wire[0] |= 0x3c // [DDP-4.1-9]
			if h, _, err := ParseUntagged(wire); err != nil || h != v.h {
				t.Errorf("reserved bits: %+v, %v", h, err)
			}
			if IsTagged(wire[0]) || HeaderLen(wire[0]) != UntaggedLen { // [DDP-4.1-2]
				t.Error("control octet")
			}
		})
	}
	checkVersions(t, func(b []byte) error { _, _, err := ParseUntagged(b); return err }, untaggedVectors[0].hex)
	if _, _, err := ParseUntagged(testkit.Hex(taggedVectors[0].hex)); !errors.Is(err, ErrModel) {
		t.Error(err)
	}
}

func checkVersions(t *testing.T, parse func([]byte) error, vector string) { // [DDP-4.1-11]
	t.Helper()
	for _, dv := range []byte{0, 2, 3} {
		b := testkit.Hex(vector)
		b[0] = b[0]&^3 | dv
		if err := parse(b); !errors.Is(err, ErrVersion) {
			t.Errorf("DV %d: %v", dv, err)
		}
		if err := parse(b[:1]); !errors.Is(err, ErrVersion) {
			t.Errorf("DV %d, at once: %v", dv, err)
		}
	}
}

// TestDDP_5_2 checks how messages are divided into segments. [DDP-5.2-1] [DDP-5.2-3] [DDP-5.2-5]
// [DDP-5.2-7] [DDP-5.2-8] [DDP-4.1-3] [DDP-4.1-4] [DDP-4.1-5] [DDP-4.1-6] [DDP-5.3-2] [DDP-4.3-10]
func TestDDP_5_2(t *testing.T) {
	cut := func(n uint64, mulpdu, hdr int) (s [][2]uint64) {
		c := NewCutter(n, mulpdu, hdr)
		for {
			off, k, last, ok := c.Next()
			if !ok {
				break
			}
			s = append(s, [2]uint64{off, uint64(k)})
			if last != (off+uint64(k) == n) {
				t.Errorf("%d bytes: last %t at %d", n, last, off)
			}
		}
		if got := Segments(n, mulpdu, hdr); got != uint64(len(s)) {
			t.Errorf("Segments(%d, %d, %d) = %d, want %d", n, mulpdu, hdr, got, len(s))
		}
		return s
	}
	for _, c := range []struct {
		n           uint64
		mulpdu, hdr int
		want        [][2]uint64
	}{
		{2048, 1500, TaggedLen, [][2]uint64{{0, 1486}, {1486, 562}}},
		{2048, 1500, UntaggedLen, [][2]uint64{{0, 1482}, {1482, 566}}},
		{0, 1500, UntaggedLen, [][2]uint64{{0, 0}}},
		{1482, 1500, UntaggedLen, [][2]uint64{{0, 1482}}},
		{1483, 1500, UntaggedLen, [][2]uint64{{0, 1482}, {1482, 1}}},
	} {
		if d := cmp.Diff(c.want, cut(c.n, c.mulpdu, c.hdr)); d != "" {
			t.Errorf("%+v: %s", c, d)
		}
	}
	if n := Segments(MaxMessage, 64766, TaggedLen); n != 66330 { // [DDP-1.2-2]
		t.Errorf("longest message: %d segments", n)
	}
	defer func() {
		if recover() == nil {
			t.Error("MULPDU of 18 accepted")
		}
	}()
	NewCutter(1, 18, UntaggedLen)
}

func TestMSN(t *testing.T) {
	if m := MSN(0xffffffff).Next(); m != 0 { // [DDP-4.3-8]
		t.Error(m)
	}
	if !MSN(0xffffffff).Less(0) || MSN(0).Less(0xffffffff) || MSN(5).Less(5) || !MSN(1).Less(2) {
		t.Error("Less")
	}
}

// TestQueue passes the segments of a correct sender to queues, also near the wrap of the MSN. It
// provokes each fault by changing a field. [DDP-4.3-6] [DDP-4.3-7] [DDP-4.3-8] [DDP-4.3-9]
// [DDP-5.4-2] [DDP-5.4-3] [DDP-5.3-5]
func TestQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		first := MSN(rapid.SampledFrom([]uint32{1, 0xfffffffe}).Draw(t, "first"))
		q := NewQueue(first)
		msn := first
		for range rapid.IntRange(1, 5).Draw(t, "messages") {
			size := uint64(rapid.IntRange(0, 100).Draw(t, "buffer"))
			total := uint64(rapid.IntRange(0, int(size)).Draw(t, "length"))
			c := NewCutter(total, UntaggedLen+16, UntaggedLen)
			for {
				off, n, last, ok := c.Next()
				if !ok {
					break
				}
				h := Untagged{Last: last, MSN: msn, MO: uint32(off)}
				// The wrong segments come first. They must not change the queue.
				for _, w := range []struct {
					h    Untagged
					n    int
					have bool
					want Fault
				}{
					{Untagged{MSN: msn + 1, MO: h.MO}, n, true, InvalidMSNRange},
					{Untagged{MSN: msn - 1, MO: h.MO}, n, true, InvalidMSNRange},
					{h, n, false, InvalidMSNNoBuffer},
					{Untagged{MSN: msn, MO: h.MO + 1}, n, true, InvalidMO},
					{Untagged{MSN: msn, MO: 0xffffffff}, n, true, InvalidMO},
					{h, int(size-off) + 1, true, MessageTooLong},
				} {
					if got := q.Check(w.h, w.n, size, w.have); got != w.want {
						t.Fatalf("%+v: %v", w, got)
					}
				}
				if f := q.Check(h, n, size, true); f != OK {
					t.Fatalf("%+v, %d bytes into %d: %v", h, n, size, f)
				}
				length, done := q.Placed(h, n)
				if done != last || uint64(length) != off+uint64(n) {
					t.Fatalf("Placed: %d, %t", length, done)
				}
				if k, open := q.Open(); open == last || !last && k != length {
					t.Fatalf("Open: %d, %t", k, open)
				}
			}
			msn = msn.Next()
			if q.Next() != msn {
				t.Fatalf("Next %d, want %d", q.Next(), msn)
			}
		}
	})
}

// TestQueueLongest: a message can't become longer than 2^32-1 bytes, however long the buffer is.
func TestQueueLongest(t *testing.T) { // [DDP-5.2-2]
	q := NewQueue(1)
	q.Placed(Untagged{MSN: 1}, 0xfffffff0)
	h := Untagged{MSN: 1, MO: 0xfffffff0}
	if f := q.Check(h, 15, 1<<40, true); f != OK {
		t.Error(f)
	}
	if f := q.Check(h, 16, 1<<40, true); f != MessageTooLong {
		t.Error(f)
	}
}

// TestDDP_7_2 checks the table of errors in RFC 5041. [DDP-7.2-1]
func TestDDP_7_2(t *testing.T) {
	want := map[Fault][2]uint8{
		Catastrophic: {0, 0},
		InvalidSTag:  {1, 0}, OutOfBounds: {1, 1}, NotAssociated: {1, 2}, Wrap: {1, 3}, TaggedVersion: {1, 4},
		InvalidQN: {2, 1}, InvalidMSNNoBuffer: {2, 2}, InvalidMSNRange: {2, 3}, InvalidMO: {2, 4},
		MessageTooLong: {2, 5}, UntaggedVersion: {2, 6},
	}
	for f := Catastrophic; f < numFaults; f++ {
		typ, code := f.Code()
		if w := want[f]; uint8(typ) != w[0] || code != w[1] {
			t.Errorf("%v: %d/%02x", f, typ, code)
		}
		if g, ok := FaultOf(typ, code); !ok || g != f {
			t.Errorf("FaultOf(%d, %d) = %v", typ, code, g)
		}
	}
	for _, c := range [][2]uint8{{1, 5}, {2, 0}, {2, 7}, {3, 0}} {
		if f, ok := FaultOf(ErrorType(c[0]), c[1]); ok {
			t.Errorf("%v is %v", c, f)
		}
	}
	if VersionFault(0x80) != TaggedVersion || VersionFault(0) != UntaggedVersion {
		t.Error("VersionFault")
	}
	if typ, code := Fault(200).Code(); typ != 0 || code != 0 || Fault(200).String() != "fault 0xc8" {
		t.Error("unknown fault")
	}
	for i := range ErrorType(5) {
		if i.String() == "" {
			t.Error(i)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, v := range taggedVectors {
		f.Add(testkit.Hex(v.hex))
	}
	for _, v := range untaggedVectors {
		f.Add(testkit.Hex(v.hex))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, n, err := ParseTagged(b); err == nil {
			if g, _, err := ParseTagged(h.Append(nil)); err != nil || g != h || n != TaggedLen {
				t.Fatal(g, err)
			}
			_ = h.LogValue()
		}
		if h, n, err := ParseUntagged(b); err == nil {
			if g, _, err := ParseUntagged(h.Append(nil)); err != nil || g != h || n != UntaggedLen {
				t.Fatal(g, err)
			}
			_ = h.LogValue()
		}
	})
}
