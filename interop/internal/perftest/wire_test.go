package perftest

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"math"
	"reflect"
	"strings"
	"testing"

	"viaduct/internal/testkit"
)

// Captured from perftest 4.5 of Debian.
const (
	capturedVersion = "362e3036 000000000000000000000000"
	capturedCycle   = "00001000"
	capturedLine    = "00000040"
	capturedMTU     = "3300"
	capturedKeys    = "00000000 00000080 00000002 005f785d 4161b100 43560000 000055bfa7693710 52540a09000100000000000000000000 00000000 00000000"
	capturedReport  = "0000000000002710 0000000000000005 403dd6f1d547eb0e 4020f2a5adce7862 3f4d1dbd35f3fe47"
)

func TestVersion(t *testing.T) {
	b := testkit.Hex(capturedVersion)
	testkit.EqualBytes(t, appendVersion(nil, exchangeVersion), b)
	if v, err := parseVersion(b); err != nil || v != exchangeVersion {
		t.Error(v, err)
	}
	for _, ok := range []string{"5.70", "5.7", "6.40", "7"} {
		if _, err := parseVersion(appendVersion(nil, ok)); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{"", "5.69", "-6", "six", "NaN", "Inf", "6.06 ", "1e9", strings.Repeat("6", 40)} {
		if v, err := parseVersion(appendVersion(nil, bad)); err == nil {
			t.Errorf("%q taken for %q", bad, v)
		}
	}
	if _, err := parseVersion(bytes.Repeat([]byte{'6'}, versionLen)); err == nil {
		t.Error("a version without end taken")
	}
	prefixes(t, b, func(b []byte) error { _, err := parseVersion(b); return err })
}

// prefixes checks that parse refuses every shorter prefix of b, and b with an additional byte.
func prefixes(t *testing.T, b []byte, parse func([]byte) error) {
	t.Helper()
	for n := range b {
		if parse(b[:n]) == nil {
			t.Errorf("%d of %d bytes taken", n, len(b))
		}
	}
	if parse(append(bytes.Clone(b), 0)) == nil {
		t.Error("one byte more taken")
	}
}

func TestWords(t *testing.T) {
	if v, err := parseWord("", testkit.Hex(capturedCycle), 1, 1<<20); err != nil || v != cycleBuffer {
		t.Error(v, err)
	}
	if v, err := parseWord("", testkit.Hex(capturedLine), 1, cycleBuffer); err != nil || v != cacheLine {
		t.Error(v, err)
	}
	for _, bad := range []string{"00000000", "00000011", "ffffffff", "80000000"} {
		if v, err := parseWord("", testkit.Hex(bad), 1, 16); err == nil {
			t.Errorf("%s taken for %d", bad, v)
		}
	}
	prefixes(t, testkit.Hex(capturedLine), func(b []byte) error { _, err := parseWord("", b, 1, 1<<20); return err })
	if m, err := parseMTU(testkit.Hex(capturedMTU)); err != nil || m != defaultMTU {
		t.Error(m, err)
	}
	testkit.EqualBytes(t, defaultMTU.append(nil), testkit.Hex(capturedMTU))
	for _, bad := range []string{"0000", "2f00", "3a00", "3333"} {
		if m, err := parseMTU(testkit.Hex(bad)); err == nil {
			t.Errorf("%s taken for %d", bad, m)
		}
	}
	prefixes(t, testkit.Hex(capturedMTU), func(b []byte) error { _, err := parseMTU(b); return err })
}

func TestKeys(t *testing.T) {
	b := testkit.Hex(capturedKeys)
	k, err := parseKeys(b)
	want := keys{outReads: 128, qpn: 2, psn: 0x5f785d, rkey: 0x4161b100, vaddr: 0x55bfa7693710}
	copy(want.gid[:], testkit.Hex("52540a090001"))
	if err != nil || k != want {
		t.Errorf("%+v, %v", k, err)
	}
	clear(b[20:24]) // the hole is not compared
	testkit.EqualBytes(t, k.append(nil), b)
	k = keys{1, 2, 3, 4, 5, 6, [16]byte{7}, 8, 9}
	if got, err := parseKeys(k.append(nil)); err != nil || got != k {
		t.Errorf("%+v, %v", got, err)
	}
	prefixes(t, b, func(b []byte) error { _, err := parseKeys(b); return err })
}

func TestReport(t *testing.T) {
	b := testkit.Hex(capturedReport)
	var n [reportNumbers]uint64
	for i := range n {
		var err error
		if n[i], err = parseNumber(b[8*i : 8*i+8]); err != nil {
			t.Fatal(err)
		}
	}
	r := reportOf(n)
	if r.Size != 10000 || r.Count != 5 || math.Abs(r.Peak-29.84) > 0.01 || math.Abs(r.Average-8.474) > 0.001 || math.Abs(r.Rate-0.000889) > 0.000001 {
		t.Errorf("%+v", r)
	}
	if r.numbers() != n {
		t.Errorf("%x, want %x", r.numbers(), n)
	}
	prefixes(t, b[:8], func(b []byte) error { _, err := parseNumber(b); return err })
}

// FuzzMessages: no message of any length makes a parser panic, and appending an accepted message
// gives the same bytes.
func FuzzMessages(f *testing.F) {
	for i, v := range []string{capturedVersion, capturedCycle, capturedLine, capturedMTU, capturedKeys, capturedReport[:17]} {
		f.Add(uint8(i), testkit.Hex(v))
	}
	f.Fuzz(func(t *testing.T, kind uint8, b []byte) {
		var again []byte
		var err error
		switch kind % 5 {
		case 0:
			var v string
			if v, err = parseVersion(b); err == nil && len(v) < versionLen {
				again = appendVersion(nil, v)
				b = append([]byte(v), make([]byte, versionLen-len(v))...) // the bytes after the final zero are arbitrary
			}
		case 1:
			var v int
			if v, err = parseWord("", b, 1, 1<<20); err == nil && (v < 1 || v > 1<<20) {
				t.Error(v)
			}
			return
		case 2:
			var m mtu
			if m, err = parseMTU(b); err == nil {
				again = m.append(nil)
			}
		case 3:
			var k keys
			if k, err = parseKeys(b); err == nil {
				again = k.append(nil)
				b = bytes.Clone(b)
				clear(b[20:24])
			}
		case 4:
			var n [reportNumbers]uint64
			if n[1], err = parseNumber(b); err == nil && reportOf(n).numbers() != n {
				t.Error(n)
			}
			return
		}
		if err == nil && !bytes.Equal(again, b) {
			t.Errorf("%s became %s", hex.EncodeToString(b), hex.EncodeToString(again))
		}
	})
}

func TestFill(t *testing.T) {
	b := make([]byte, 10000)
	fillRandom(b)
	if k := checkRandom(b); k >= 0 {
		t.Errorf("byte %d of our own memory", k)
	}
	seen := make(map[byte]bool)
	for _, c := range b[:2000] {
		seen[c] = true
	}
	if len(seen) < 200 {
		t.Errorf("%d values in 2000 bytes", len(seen))
	}
	b[5000] += 2
	if k := checkRandom(b); k != 5000 {
		t.Errorf("the change at 5000 was seen at %d", k)
	}
	b[5000] -= 2
	copy(b[6000:], b[6001:7000]) // one byte is lost
	if k := checkRandom(b); k < 6000 || k > 6040 {
		t.Errorf("the loss at 6000 was seen at %d", k)
	}
	if checkRandom(make([]byte, 31)) >= 0 || checkRandom(nil) >= 0 {
		t.Error("too short to say")
	}
}

// TestRand: bytes of rand of the GNU C library after srand(1), whose first
// numbers are well known.
func TestRand(t *testing.T) {
	numbers := []uint32{1804289383, 846930886, 1681692777, 1714636915, 1957747793, 424238335, 719885386, 1649760492, 596516649, 1189641421,
		1025202362, 1350490027, 783368690, 1102520059, 2044897763, 1967513926, 1365180540, 1540383426, 304089172, 1303455736, 35005211,
		521595368, 294702567, 1726956429, 336465782, 861021530, 278722862, 233665123, 2145174067, 468703135, 1101513929, 1801979802,
		1315634022, 635723058, 1369133069, 1125898167, 1059961393, 2089018456, 628175011, 1656478042}
	b := make([]byte, len(numbers))
	for i, n := range numbers {
		b[i] = byte(n)
	}
	if k := checkRandom(b); k >= 0 {
		t.Errorf("byte %d", k)
	}
}

func TestLayout(t *testing.T) {
	for _, v := range []struct {
		l                   layout
		slots, stride, span int
		fifth               int
	}{
		{layout{1, 4096, 64}, 64, 64, 4096, 256},
		{layout{64, 4096, 64}, 64, 64, 4096, 256},
		{layout{65, 4096, 64}, 32, 128, 4096, 512},
		{layout{2048, 4096, 64}, 2, 2048, 4096, 0},
		{layout{2049, 4096, 64}, 1, 2112, 4096, 0},
		{layout{65536, 4096, 64}, 1, 65536, 65536, 0},
		{layout{64, 65536, 128}, 512, 128, 65536, 512},
	} {
		if v.l.slots() != v.slots || v.l.stride() != v.stride || v.l.span() != v.span || v.l.offset(4) != v.fifth || v.l.offset(v.slots) != 0 {
			t.Errorf("%+v: %d slots of %d in %d, the fifth at %d", v.l, v.l.slots(), v.l.stride(), v.l.span(), v.l.offset(4))
		}
	}
}

func TestImage(t *testing.T) {
	src := make([]byte, 4096)
	fillRandom(src)
	for _, size := range []int{50, 64, 100, 3000} {
		l := layout{size, 4096, 64}
		m := newImage(l)
		for i := range 200 {
			at := l.offset(i)
			if err := m.add(i, src[at:at+size]); err != nil {
				t.Fatal(size, err)
			}
		}
		if err := m.check(); err != nil {
			t.Error(size, err)
		}
		bad := bytes.Clone(src[:size])
		bad[size-1]++
		if err := m.add(l.slots(), bad); !errors.Is(err, ErrContents) || !strings.Contains(err.Error(), "earlier") {
			t.Error(size, err)
		}
		m.b[l.offset(1)+40] += 5
		if err := m.check(); !errors.Is(err, ErrContents) {
			t.Error(size, err)
		}
	}
	if !reflect.DeepEqual(newImage(layout{1, 2, 1}).b, []byte{0, 0}) {
		t.Error("an image of its own")
	}
}

func TestEnded(t *testing.T) {
	if !strings.Contains(errEnded.Error(), io.ErrUnexpectedEOF.Error()) {
		t.Error(errEnded)
	}
}
