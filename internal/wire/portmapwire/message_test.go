package portmapwire

import (
	"bytes"
	"errors"
	"io"
	"net/netip"
	"testing"

	"viaduct/internal/testkit"
)

func ap(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

// vectors were written by hand from Figure 17. Spaces separate the fields.
var vectors = []struct {
	name string
	m    Message
	wire string
}{
	{"request v4", Message{Request, 0, 0x0102030405060708, ap("10.0.0.2:40000"), ap("10.0.0.1:80")},
		"04 00 0000  0050 9c40  0102030405060708  0a000002 000000000000000000000000  0a000001 000000000000000000000000"},
	{"accept v4", Message{Accept, 120, 1, ap("10.0.0.2:40000"), ap("10.0.0.9:8080")},
		"14 78 0000  1f90 9c40  0000000000000001  0a000002 000000000000000000000000  0a000009 000000000000000000000000"},
	{"ack v6", Message{Ack, 0, 1<<64 - 1, ap("[2001:db8::2]:1"), ap("[2001:db8::1]:65535")},
		"26 00 0000  ffff 0001  ffffffffffffffff  20010db8000000000000000000000002  20010db8000000000000000000000001"},
	{"request v6 from a mapped address", Message{Request, 0, 9, ap("[::ffff:10.0.0.2]:5"), ap("[2001:db8::1]:6")},
		"06 00 0000  0006 0005  0000000000000009  00000000000000000000ffff0a000002  20010db8000000000000000000000001"},
	{"deny v6", Message{Deny, 0, 7, ap("[::1]:5"), ap("[::1]:6")},
		"36 00 0000  0006 0005  0000000000000007  00000000000000000000000000000001  00000000000000000000000000000001"},
}

func TestSDP_7_3_vectors(t *testing.T) {
	// [SDP-7.3-1] [SDP-7.3.1.1-1] [SDP-7.3.1.2-1] [SDP-7.3.1.3-1] [SDP-7.3.1.3-2] [SDP-7.3.1.3-4] [SDP-7.3.1.5-1]
	for _, v := range vectors {
		t.Run(v.name, func(t *testing.T) {
			want := testkit.Hex(v.wire)
			if got := v.m.Append(nil); !bytes.Equal(got, want) {
				t.Errorf("Append\n got %x\nwant %x", got, want)
			}
			got, err := Parse(want)
			if err != nil || got != v.m {
				t.Errorf("Parse: %+v, %v, want %+v", got, err, v.m)
			}
			for n := range want {
				if _, err := Parse(want[:n]); !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Fatalf("Parse of %d bytes: %v, want unexpected EOF", n, err)
				}
			}
			longer := append(bytes.Clone(want), 1, 2, 3) // [D-61]
			if got, err := Parse(longer); err != nil || got != v.m {
				t.Errorf("Parse of a longer datagram: %+v, %v", got, err)
			}
		})
	}
}

func TestSDP_7_3_1_badFields(t *testing.T) {
	base := testkit.Hex(vectors[0].wire)
	for v := range byte(4) {
		b := bytes.Clone(base)
		b[0] |= v << 6
		if _, err := Parse(b); errors.Is(err, ErrVersion) != (v != 0) { // [SDP-7.3.1.1-1]
			t.Errorf("version %d: %v", v, err)
		}
	}
	for ipv := range byte(16) {
		b := bytes.Clone(base)
		b[0] = b[0]&0xf0 | ipv
		if _, err := Parse(b); errors.Is(err, ErrIPVersion) != (ipv != 4 && ipv != 6) { // [SDP-7.3.1.3-1]
			t.Errorf("IPV %d: %v", ipv, err)
		}
	}
	b := bytes.Clone(base)
	b[2], b[3] = 0xff, 0xff                        // [SDP-7.3.1.5-2]
	copy(b[20:32], bytes.Repeat([]byte{0xff}, 12)) // [SDP-7.3.1.3-3]
	copy(b[36:48], bytes.Repeat([]byte{0xff}, 12)) //
	if m, err := Parse(b); err != nil || m != vectors[0].m {
		t.Errorf("ignored bits were not ignored: %+v, %v", m, err)
	}
}

func TestAppendFamilies(t *testing.T) {
	// An IPv4-mapped address counts as IPv6. Zones are not transmitted. [D-58]
	m := Message{Cp: ap("[::ffff:10.0.0.2]:1"), Ap: ap("[2001:db8::1]:2")}
	if got, err := Parse(m.Append(nil)); err != nil || got != m {
		t.Errorf("%+v came back as %+v, %v", m, got, err)
	}
	z := Message{Cp: ap("[fe80::1%eth0]:1"), Ap: ap("[fe80::2%eth0]:2")}
	if got, _ := Parse(z.Append(nil)); got.Cp != ap("[fe80::1]:1") {
		t.Errorf("got %v", got.Cp)
	}
	defer func() {
		if recover() == nil {
			t.Error("two families in one message did not panic")
		}
	}()
	Message{Cp: ap("10.0.0.2:1"), Ap: ap("[::1]:2")}.Append(nil)
}

func FuzzMessage(f *testing.F) {
	for _, v := range vectors {
		f.Add(testkit.Hex(v.wire))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Parse(b)
		if err != nil {
			return
		}
		again, err := Parse(m.Append(nil))
		if err != nil || again != m {
			t.Errorf("%+v came back as %+v, %v", m, again, err)
		}
	})
}
