package vitcpwire

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"viaduct/internal/testkit"
)

func mustDisc(s string) Discriminator {
	d, err := MakeDiscriminator([]byte(s))
	if err != nil {
		panic(err)
	}
	return d
}

// headerVectors were written by hand from the figure in section 3.1 and the numbers in the
// decisions.
var headerVectors = []struct {
	name string
	d    Dialect
	h    Header
	hex  string
}{
	{
		name: "send, one segment, immediate",
		h: Header{Type: Send, Flags: ImmediateValid | EndOfMessage, Length: 29,
			Immediate: 0xdeadbeef, Number: 1, Ack: 0xfffffff0, Posted: 7},
		hex: "01 03 001d 00000000 deadbeef 00000001 fffffff0 0007 00 00",
	},
	{
		name: "send, first segment of several",
		h:    Header{Type: Send, Length: 65535, Number: 0x01020304, Ack: 5, Posted: 0xffff},
		hex:  "01 00 ffff 00000000 00000000 01020304 00000005 ffff 00 00",
	},
	{
		name: "read request",
		h:    Header{Type: ReadRequest, Flags: EndOfMessage, Length: 40, Number: 2, Ack: 1},
		hex:  "01 0a 0028 00000000 00000000 00000002 00000001 0000 00 00",
	},
	{
		name: "read response, last segment",
		h:    Header{Type: ReadResponse, Flags: EndOfMessage, Length: 1064, Offset: 65495, Number: 2, Ack: 9},
		hex:  "01 12 0428 0000ffd7 00000000 00000002 00000009 0000 00 00",
	},
	{
		name: "write, middle segment",
		h:    Header{Type: Write, Flags: ImmediateValid, Length: 65535, Offset: 65495, Immediate: 1, Number: 3},
		hex:  "01 19 ffff 0000ffd7 00000001 00000003 00000000 0000 00 00",
	},
	{
		name: "send ended by a transmit error",
		h:    Header{Type: Send, Flags: EndOfMessage | TransmitError, Length: 24, Offset: 4096, Number: 4},
		hex:  "01 06 0018 00001000 00000000 00000004 00000000 0000 00 00",
	},
	{
		name: "nop with a protection error",
		h: Header{Type: NOP, Flags: EndOfMessage, Length: 24, Number: 7, Ack: 3, Posted: 12,
			Error: MakeRemoteError(ProtectionError, 0)},
		hex: "01 22 0018 00000000 00000000 00000007 00000003 000c 01 00",
	},
	{
		name: "nop with a descriptor error and an implementation-specific code",
		h:    Header{Type: NOP, Flags: EndOfMessage, Length: 24, Error: MakeRemoteError(DescriptorError, 0x7f)},
		hex:  "01 22 0018 00000000 00000000 00000000 00000000 0000 02 7f",
	},
	{
		name: "connect request",
		h:    Header{Type: ConnectRequest, Flags: EndOfMessage, Length: 68, Number: 0xfffffff0, Posted: 16},
		hex:  "01 2a 0044 00000000 00000000 fffffff0 00000000 0010 00 00",
	},
	{
		name: "connect accept",
		h:    Header{Type: ConnectAccept, Flags: EndOfMessage, Length: 68},
		hex:  "01 32 0044 00000000 00000000 00000000 00000000 0000 00 00",
	},
	{
		name: "connect reject with a reason",
		h:    Header{Type: ConnectReject, Flags: EndOfMessage, Length: 68, Error: MakeRemoteError(0, RejectAttributes)},
		hex:  "01 3a 0044 00000000 00000000 00000000 00000000 0000 00 01",
	},
	{
		name: "connect no match",
		h:    Header{Type: ConnectNoMatch, Flags: EndOfMessage, Length: 68},
		hex:  "01 42 0044 00000000 00000000 00000000 00000000 0000 00 00",
	},
	{
		name: "disconnect",
		h:    Header{Type: Disconnect, Flags: EndOfMessage, Length: 24, Number: 9, Ack: 8},
		hex:  "01 fa 0018 00000000 00000000 00000009 00000008 0000 00 00",
	},
	{
		name: "send, types counted from one",
		d:    Dialect{TypeOffset: 1},
		h:    Header{Type: Send, Flags: EndOfMessage, Length: 24},
		hex:  "01 0a 0018 00000000 00000000 00000000 00000000 0000 00 00",
	},
	{
		name: "no match, types counted from one",
		d:    Dialect{TypeOffset: 1},
		h:    Header{Type: ConnectNoMatch, Flags: EndOfMessage, Length: 68},
		hex:  "01 4a 0044 00000000 00000000 00000000 00000000 0000 00 00",
	},
	{
		name: "disconnect stays where it is",
		d:    Dialect{TypeOffset: 1},
		h:    Header{Type: Disconnect, Flags: EndOfMessage, Length: 24},
		hex:  "01 fa 0018 00000000 00000000 00000000 00000000 0000 00 00",
	},
	{
		name: "read response without RDMA header",
		d:    Dialect{BareReadResponse: true},
		h:    Header{Type: ReadResponse, Flags: EndOfMessage, Length: 24, Number: 2},
		hex:  "01 12 0018 00000000 00000000 00000002 00000000 0000 00 00",
	},
}

// TestVIT_3_1 compares the layout of the segment header with given bytes. [VIT-3.1-1] [VIT-3.1-2]
// [VIT-3.1-3] [VIT-3.1-4] [VIT-3.1-5] [VIT-3.1-6] [VIT-3-1] [VIT-3-3] [VIT-3-4] [V-01] [V-02]
// [V-03] [V-13]
func TestVIT_3_1(t *testing.T) {
	for _, v := range headerVectors {
		t.Run(v.name, func(t *testing.T) {
			want := testkit.Hex(v.hex)
			if got := v.d.AppendHeader([]byte{0xaa}, v.h); !bytes.Equal(got[1:], want) || got[0] != 0xaa {
				t.Errorf("AppendHeader\n got %x\nwant aa%x", got, want)
			}
			h, n, err := v.d.ParseHeader(append(want, 0xbb))
			if err != nil || n != HeaderLen || h != v.h {
				t.Errorf("ParseHeader = %+v, %d, %v\nwant %+v", h, n, err, v.h)
			}
			for i := range want {
				if _, n, err := v.d.ParseHeader(want[:i]); err != io.ErrUnexpectedEOF || n != 0 {
					t.Errorf("ParseHeader of %d bytes: n=%d, %v", i, n, err)
				}
			}
		})
	}
}

// TestVIT_3_1_Refused: ParseHeader refuses invalid headers. [V-02] [V-07]
func TestVIT_3_1_Refused(t *testing.T) {
	for _, v := range []struct {
		name string
		d    Dialect
		hex  string
		want error
	}{
		{"version 0 [V-01]", Dialect{}, "00 22 0018 00000000 00000000 00000000 00000000 0000 0000", ErrVersion},
		{"version 2 [V-01]", Dialect{}, "02 22 0018 00000000 00000000 00000000 00000000 0000 0000", ErrVersion},
		{"zeroed memory", Dialect{}, "00 00 0000 00000000 00000000 00000000 00000000 0000 0000", ErrVersion},
		{"type 9 [V-02]", Dialect{}, "01 4a 0044 00000000 00000000 00000000 00000000 0000 0000", ErrType},
		{"type 30 [V-02]", Dialect{}, "01 f2 0044 00000000 00000000 00000000 00000000 0000 0000", ErrType},
		{"type 0 where types start at 1", Dialect{TypeOffset: 1}, "01 02 0018 00000000 00000000 00000000 00000000 0000 0000", ErrType},
		{"length 0 [V-07]", Dialect{}, "01 02 0000 00000000 00000000 00000000 00000000 0000 0000", ErrLength},
		{"length 23 [V-07]", Dialect{}, "01 02 0017 00000000 00000000 00000000 00000000 0000 0000", ErrLength},
		{"write without RDMA header [VIT-3-3]", Dialect{}, "01 1a 0027 00000000 00000000 00000000 00000000 0000 0000", ErrLength},
		{"read request without RDMA header [VIT-3-3]", Dialect{}, "01 0a 0018 00000000 00000000 00000000 00000000 0000 0000", ErrLength},
		{"read response without RDMA header [V-23]", Dialect{}, "01 12 0018 00000000 00000000 00000000 00000000 0000 0000", ErrLength},
		{"connect request without CE header [VIT-3-4]", Dialect{}, "01 2a 0043 00000000 00000000 00000000 00000000 0000 0000", ErrLength},
		{"connect accept without CE header [VIT-3-4]", Dialect{}, "01 32 0018 00000000 00000000 00000000 00000000 0000 0000", ErrLength},
	} {
		t.Run(v.name, func(t *testing.T) {
			if _, _, err := v.d.ParseHeader(testkit.Hex(v.hex)); !errors.Is(err, v.want) {
				t.Errorf("error %v, want %v", err, v.want)
			}
		})
	}
}

var ceVectors = []struct {
	name string
	c    CE
	hex  string
}{
	{
		name: "text discriminators",
		c: CE{Attributes: Reliable | RDMAWrite | FlowControl, MTU: 1 << 20, Calling: mustDisc("client"),
			ReadWindow: 16, Called: mustDisc("files")},
		hex: `000b 0006 00100000 636c69656e740000 0000000000000000
		      0010 0005 66696c6573000000 0000000000000000`,
	},
	{
		name: "full and empty discriminator, every attribute",
		c: CE{Attributes: KnownAttributes, MTU: 0xffffffff, Calling: mustDisc("0123456789abcdef"),
			ReadWindow: 0xffff},
		hex: `003f 0010 ffffffff 3031323334353637 3839616263646566
		      ffff 0000 0000000000000000 0000000000000000`,
	},
	{
		name: "unknown attribute is kept",
		c:    CE{Attributes: 0x8001, MTU: 1},
		hex: `8001 0000 00000001 0000000000000000 0000000000000000
		      0000 0000 0000000000000000 0000000000000000`,
	},
}

// TestVIT_3_2 compares the layout of the CE header with given bytes. [VIT-3.2-1] [VIT-3.2-2] [V-04]
// [V-05]
func TestVIT_3_2(t *testing.T) {
	for _, v := range ceVectors {
		t.Run(v.name, func(t *testing.T) {
			want := testkit.Hex(v.hex)
			if got := v.c.Append(nil); !bytes.Equal(got, want) {
				t.Errorf("Append\n got %x\nwant %x", got, want)
			}
			c, n, err := ParseCE(append(want, 1, 2, 3))
			if err != nil || n != CELen || c != v.c {
				t.Errorf("ParseCE = %+v, %d, %v\nwant %+v", c, n, err, v.c)
			}
			for i := range want {
				if _, n, err := ParseCE(want[:i]); err != io.ErrUnexpectedEOF || n != 0 {
					t.Errorf("ParseCE of %d bytes: n=%d, %v", i, n, err)
				}
			}
		})
	}
}

// Two discriminators are equal if their lengths and bytes are. Padding is ignored, and a length
// above 16 is refused. [V-04] [VIT-3.2-3]
func TestVIT_3_2_Discriminators(t *testing.T) {
	ce := CE{MTU: 1, Calling: mustDisc("a"), Called: mustDisc("b")}.Append(nil)
	ce[9], ce[23], ce[43] = 0xff, 0xee, 0xdd
	c, _, err := ParseCE(ce)
	if err != nil || c.Calling != mustDisc("a") || c.Called != mustDisc("b") {
		t.Errorf("padding counted: %v, %v", c, err)
	}
	if mustDisc("a") == mustDisc("a\x00") {
		t.Error("a trailing zero byte does not count")
	}
	for _, at := range []int{3, 27} {
		for _, n := range []uint16{17, 0x100, 0x110, 0xffff} {
			b := bytes.Clone(ce)
			b[at-1], b[at] = byte(n>>8), byte(n)
			if _, n, err := ParseCE(b); err != ErrDiscriminator || n != CELen {
				t.Errorf("length %#x at %d: n=%d, %v", n, at-1, n, err)
			}
		}
	}
	if _, err := MakeDiscriminator(make([]byte, 17)); err != ErrDiscriminator {
		t.Errorf("17 bytes: %v", err)
	}
	d := mustDisc("xyz")
	if d.Len() != 3 || string(d.Append([]byte("-"))) != "-xyz" {
		t.Errorf("Len %d, Append %q", d.Len(), d.Append([]byte("-")))
	}
}

// Compare orders discriminators by their padded bytes, and then by length. [V-32]
func TestDiscriminatorCompare(t *testing.T) {
	asc := []Discriminator{mustDisc(""), mustDisc("\x00"), mustDisc("\x00\x00"), mustDisc("\x00\x01"), mustDisc("a"),
		mustDisc("a\x00"), mustDisc("ab"), mustDisc("b"), mustDisc("b0123456789abcde"), mustDisc("\xff")}
	for i, d := range asc {
		for j, e := range asc {
			if got, want := d.Compare(e), sign(i-j); got != want {
				t.Errorf("%v.Compare(%v) = %d, want %d", d, e, got, want)
			}
		}
	}
}

// TestVIT_3_2_1 compares the layout of the RDMA header with given bytes. [VIT-3.2.1-1]
// [VIT-3.2.1-2] [VIT-3.2.1-3] [VIT-3.2.1-4]
func TestVIT_3_2_1(t *testing.T) {
	for _, v := range []struct {
		name string
		r    RDMA
		hex  string
	}{
		{"all fields", RDMA{0x0123456789abcdef, 0xdeadbeef, 0x00010203}, "0123456789abcdef deadbeef 00010203"},
		{"zero", RDMA{}, "0000000000000000 00000000 00000000"},
		{"greatest", RDMA{^uint64(0), ^uint32(0), ^uint32(0)}, "ffffffffffffffff ffffffff ffffffff"},
	} {
		t.Run(v.name, func(t *testing.T) {
			want := testkit.Hex(v.hex)
			if got := v.r.Append(nil); !bytes.Equal(got, want) {
				t.Errorf("Append\n got %x\nwant %x", got, want)
			}
			r, n, err := ParseRDMA(append(want, 9))
			if err != nil || n != RDMALen || r != v.r {
				t.Errorf("ParseRDMA = %+v, %d, %v", r, n, err)
			}
			for i := range want {
				if _, n, err := ParseRDMA(want[:i]); err != io.ErrUnexpectedEOF || n != 0 {
					t.Errorf("ParseRDMA of %d bytes: n=%d, %v", i, n, err)
				}
			}
		})
	}
}
