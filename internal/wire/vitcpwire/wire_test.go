package vitcpwire

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"viaduct/internal/testkit"
)

// The greatest payload is what the 16-bit field Segment Length leaves after the header. [V-07]
// [VIT-3-4]
func TestHeaderLens(t *testing.T) {
	bare := Dialect{BareReadResponse: true}
	for _, v := range []struct {
		d    Dialect
		t    Type
		want int
	}{
		{Dialect{}, Send, 24}, {Dialect{}, NOP, 24}, {Dialect{}, Disconnect, 24},
		{Dialect{}, Write, 40}, {Dialect{}, ReadRequest, 40}, {Dialect{}, ReadResponse, 40}, {bare, ReadResponse, 24}, {bare, Write, 40},
		{Dialect{}, ConnectRequest, 68}, {Dialect{}, ConnectAccept, 68}, {Dialect{}, ConnectReject, 68}, {Dialect{}, ConnectNoMatch, 68},
	} {
		if got := v.d.HeaderLen(v.t); got != v.want {
			t.Errorf("HeaderLen(%v) = %d, want %d", v.t, got, v.want)
		}
		if got := v.d.MaxPayload(v.t); got != 65535-v.want {
			t.Errorf("MaxPayload(%v) = %d, want %d", v.t, got, 65535-v.want)
		}
	}
	if MaxSecurity != 65467 { // [V-06]
		t.Errorf("MaxSecurity = %d", MaxSecurity)
	}
}

func TestStrings(t *testing.T) {
	for _, v := range []struct {
		got  fmt.Stringer
		want string
	}{
		{Send, "Send"}, {ConnectNoMatch, "Connect No Match"}, {Disconnect, "Disconnect"}, {Type(9), "Type(0x9)"}, {Type(255), "Type(0xff)"},
		{Flags(0), "-"}, {ImmediateValid | EndOfMessage | TransmitError, "immediate|end|transmit-error"}, {Flags(0x0a), "end|0x8"},
		{Attributes(0), "-"}, {Reliable | ReliableDelivery | 0x8000, "reliable|reliable-delivery|0x8000"},
		{RemoteError(0), "no error"}, {MakeRemoteError(1, 0), "RDMA memory protection error"},
		{MakeRemoteError(2, 9), "VI descriptor error (0x9)"}, {MakeRemoteError(7, 0), "VI error 0x7"},
		{mustDisc("abc"), `"abc"`}, {mustDisc("\x00\xff"), "0x00ff"}, {mustDisc(""), `""`},
	} {
		if got := v.got.String(); got != v.want {
			t.Errorf("%T String() = %q, want %q", v.got, got, v.want)
		}
	}
	for code, want := range map[uint8]string{0: "no reason given", RejectAttributes: "attributes", RejectApplication: "refused",
		RejectResources: "resources", RejectVersion: "version", RejectCrossed: "crossed", 99: "0x63"} {
		if got := MakeRemoteError(0, code).RejectReason(); !strings.Contains(got, want) {
			t.Errorf("reason %d = %q", code, got)
		}
	}
}

// A log value has all fields except the key.
func TestLogValue(t *testing.T) {
	var out strings.Builder
	log := slog.New(slog.NewTextHandler(&out, nil))
	h := Header{Type: Write, Flags: ImmediateValid | EndOfMessage, Length: 44, Immediate: 77,
		Number: 5, Ack: 4, Posted: 3, Error: MakeRemoteError(1, 0)}
	r := RDMA{Address: 0x1000, Handle: 0xaabbccdd, Length: 4}
	c := CE{Attributes: Reliable, MTU: 4096, Calling: mustDisc("me"), Called: mustDisc("you"), ReadWindow: 2}
	log.Info("x", "h", h, "r", r, "c", c)
	got := out.String() + h.String() + r.String() + c.String()
	for _, want := range []string{"RDMA Write", "immediate=77", "protection", "address=0x1000", "mtu=4096", "reliable", "number=5"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in %s", want, got)
		}
	}
	if strings.Contains(strings.ToLower(got), "aabbcc") || strings.Contains(got, fmt.Sprint(0xaabbccdd)) {
		t.Errorf("the handle is logged: %s", got)
	}
}

// Numbers and counts compare in serial arithmetic across the wrap.
// [VIT-3.1-10] [VIT-3.1-16] [V-20] [V-37]
func TestSerialArithmetic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := Number(rapid.Uint32().Draw(t, "n"))
		k := rapid.IntRange(1, 1<<31-1).Draw(t, "k")
		if m := n.Add(k); !n.Less(m) || m.Less(n) || m.Sub(n) != k || n.Sub(m) != -k {
			t.Fatalf("%d and %d", n, m)
		}
		c := Count(rapid.Uint16().Draw(t, "c"))
		j := rapid.IntRange(1, 1<<15-1).Draw(t, "j")
		if d := c.Add(j); !c.Less(d) || d.Less(c) || d.Sub(c) != j || c.Sub(d) != -j {
			t.Fatalf("%d and %d", c, d)
		}
		if n.Less(n) || c.Less(c) || n.Sub(n) != 0 || c.Sub(c) != 0 {
			t.Fatal("not irreflexive")
		}
	})
}

func TestDialectValid(t *testing.T) {
	for off := range uint8(32) {
		d := Dialect{TypeOffset: off}
		if d.Valid() != (off <= 22) {
			t.Errorf("offset %d: %v", off, d.Valid())
		}
		if !d.Valid() {
			continue
		}
		for typ := Send; typ <= ConnectNoMatch; typ++ {
			h := Header{Type: typ, Length: 100}
			if got, _, err := d.ParseHeader(d.AppendHeader(nil, h)); err != nil || got != h {
				t.Errorf("offset %d, %v: %v, %v", off, typ, got, err)
			}
		}
	}
}

// TestTypeProperties checks the properties of every value of the five bits, and of larger values.
// [VIT-3-3] [VIT-3-4] [V-11] [V-23] [V-37]
func TestTypeProperties(t *testing.T) {
	for v := range 256 {
		typ := Type(v)
		if typ.Known() != (v <= 8 || v == 31) || typ.HasCE() != (v >= 5 && v <= 8) ||
			typ.HasRDMA() != (v >= 1 && v <= 3) ||
			typ.Numbered() != (v == 0 || v == 1 || v == 3) {
			t.Errorf("%v: known %v, CE %v, RDMA %v, numbered %v", typ, typ.Known(), typ.HasCE(),
				typ.HasRDMA(), typ.Numbered())
		}
	}
}

// Parsing allocates nothing.
func TestParseAllocs(t *testing.T) {
	b := Dialect{}.AppendHeader(nil, Header{Type: ConnectRequest, Length: 68})
	b = CE{Calling: mustDisc("a")}.Append(b)
	r := RDMA{1, 2, 3}.Append(nil)
	buf := make([]byte, 0, 128)
	if n := testing.AllocsPerRun(100, func() {
		h, n, _ := Dialect{}.ParseHeader(b)
		c, _, _ := ParseCE(b[n:])
		x, _, _ := ParseRDMA(r)
		buf = x.Append(c.Append(Dialect{}.AppendHeader(buf[:0], h)))
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzParseHeader(f *testing.F) {
	for _, v := range headerVectors {
		f.Add(testkit.Hex(v.hex), v.d.TypeOffset, v.d.BareReadResponse)
	}
	f.Fuzz(func(t *testing.T, b []byte, off uint8, bare bool) {
		d := Dialect{TypeOffset: off % 23, BareReadResponse: bare}
		h, n, err := d.ParseHeader(b)
		_ = h.String() + h.LogValue().String()
		if err != nil {
			if err == io.ErrUnexpectedEOF != (len(b) < HeaderLen) {
				t.Fatalf("%d bytes: %v", len(b), err)
			}
			return
		}
		if !h.Type.Known() || int(h.Length) < d.HeaderLen(h.Type) {
			t.Fatalf("accepted %v", h)
		}
		if got := d.AppendHeader(nil, h); !bytes.Equal(got, b[:n]) {
			t.Fatalf("%x parsed to %+v, which encodes to %x", b[:n], h, got)
		}
	})
}

func FuzzParseCE(f *testing.F) {
	for _, v := range ceVectors {
		f.Add(testkit.Hex(v.hex))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c, n, err := ParseCE(b)
		_ = c.String() + c.LogValue().String()
		if err != nil {
			return
		}
		if n != CELen {
			t.Fatalf("length %d", n)
		}
		if c2, _, err := ParseCE(c.Append(nil)); err != nil || c2 != c {
			t.Fatalf("%+v became %+v, %v", c, c2, err)
		}
	})
}

func FuzzParseRDMA(f *testing.F) {
	f.Add(RDMA{1, 2, 3}.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, n, err := ParseRDMA(b)
		_ = r.String() + r.LogValue().String()
		if err == nil && !bytes.Equal(r.Append(nil), b[:n]) {
			t.Fatalf("%x became %+v", b[:n], r)
		}
	})
}
