package ib

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"viaduct/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestROCE_BTH(t *testing.T) {
	t.Run("ROCE-BTH-1", func(t *testing.T) {
		testkit.CheckVectors(t, []testkit.Vector[BTH]{
			{Name: "plain", Hex: "04 00 ffff 00 002345 00 111111", Value: BTH{Opcode: SendOnly, PKey: 0xffff, QPN: 0x2345, PSN: 0x111111}},
			{Name: "all flags", Hex: "0a f0 7fff 00 fffffe 80 ffffff",
				Value: BTH{Opcode: WriteOnly, Solicited: true, Migrated: true, Pad: 3, PKey: 0x7fff,
					QPN: 0xfffffe, AckReq: true, PSN: 0xffffff}},
			{Name: "version", Hex: "11 1f 8001 00 000001 00 000000", Value: BTH{Opcode: Acknowledge, Pad: 1, Version: 15, PKey: 0x8001, QPN: 1}},
		}, BTH.Append, ParseBTH)
	})
	t.Run("ROCE-BTH-6", func(t *testing.T) { // reserved bits are ignored
		h, _, err := ParseBTH(testkit.Hex("04 00 ffff ff 002345 7f 111111"))
		if want := (BTH{Opcode: SendOnly, PKey: 0xffff, QPN: 0x2345, PSN: 0x111111}); err != nil || h != want {
			t.Errorf("%+v, %v", h, err)
		}
	})
	t.Run("ROCE-BTH-4", func(t *testing.T) {
		for _, c := range []struct {
			a, b uint16
			ok   bool
		}{{0xffff, 0xffff, true}, {0x7fff, 0xffff, true}, {0xffff, 0x7fff, true}, {0x7fff, 0x7fff, false}, {0xfffe, 0xffff, false}, {0x8000, 0x8000, false}} {
			if PKeyMatches(c.a, c.b) != c.ok {
				t.Errorf("%#x and %#x: %t", c.a, c.b, !c.ok)
			}
		}
	})
	t.Run("ROCE-BTH-5", func(t *testing.T) {
		for _, c := range []struct {
			p, q PSN
			d    int
		}{{0, 0, 0}, {1, 0, 1}, {0, 1, -1}, {0, 0xffffff, 1}, {0xffffff, 0, -1}, {0x7fffff, 0, 0x7fffff}, {0x800000, 0, -0x800000}} {
			if d := c.p.Sub(c.q); d != c.d || c.q.Add(d) != c.p || c.p.Less(c.q) != (d < 0) {
				t.Errorf("%#x - %#x = %d", c.p, c.q, d)
			}
		}
		rapid.Check(t, func(t *rapid.T) {
			q := PSN(rapid.Uint32Range(0, psnMask).Draw(t, "q"))
			d := rapid.IntRange(-psnHalf, psnHalf-1).Draw(t, "d")
			if got := q.Add(d).Sub(q); got != d {
				t.Errorf("%d, not %d", got, d)
			}
		})
	})
}

func TestROCE_OP(t *testing.T) {
	t.Run("ROCE-OP-4", func(t *testing.T) {
		testkit.CheckVectors(t, []testkit.Vector[RETH]{{Name: "reth", Hex: "0102030405060708 1a2b3c4d 00010000",
			Value: RETH{VA: 0x0102030405060708, RKey: 0x1a2b3c4d, Length: 65536}}}, RETH.Append, ParseRETH)
	})
	t.Run("ROCE-OP-5", func(t *testing.T) {
		testkit.CheckVectors(t, []testkit.Vector[AETH]{{Name: "ack", Hex: "1f 000102", Value: AETH{ACK, 0x102}}, {Name: "nak", Hex: "62 ffffff", Value: AETH{NAKRemoteAccess, 0xffffff}}}, AETH.Append, ParseAETH)
	})
	t.Run("ROCE-OP-6", func(t *testing.T) {
		testkit.CheckVectors(t, []testkit.Vector[AtomicETH]{{Name: "atomic",
			Hex:   "1000000000000008 aabbccdd 0000000000000001 0000000000000002",
			Value: AtomicETH{VA: 0x1000000000000008, RKey: 0xaabbccdd, SwapAdd: 1, Compare: 2}}},
			AtomicETH.Append, ParseAtomicETH)
	})
	t.Run("ROCE-OP-7", func(t *testing.T) {
		testkit.CheckVectors(t, []testkit.Vector[AtomicAckETH]{{Name: "ack", Hex: "1122334455667788", Value: 0x1122334455667788}}, AtomicAckETH.Append, ParseAtomicAckETH)
	})
	t.Run("ROCE-OP-8", func(t *testing.T) {
		testkit.CheckVectors(t, []testkit.Vector[ImmDt]{{Name: "imm", Hex: "01020304", Value: ImmDt{1, 2, 3, 4}}},
			ImmDt.Append, ParseImmDt)
	})
	t.Run("ROCE-OP-9", func(t *testing.T) {
		testkit.CheckVectors(t, []testkit.Vector[IETH]{{Name: "inv", Hex: "01020304", Value: 0x01020304}},
			IETH.Append, ParseIETH)
	})
	t.Run("ROCE-OP-10", func(t *testing.T) {
		testkit.CheckVectors(t, []testkit.Vector[DETH]{{Name: "deth", Hex: "11111111 00 2345ab", Value: DETH{0x11111111, 0x2345ab}}}, DETH.Append, ParseDETH)
	})
	t.Run("ROCE-OP-11", func(t *testing.T) {
		a4, b4 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
		a6, b6 := netip.MustParseAddr("fe80::1"), netip.MustParseAddr("fe80::2")
		testkit.CheckVectors(t, []testkit.Vector[GRH]{
			{Name: "IPv4", Hex: "00000000 00000000 00000000 00000000 00000000  45 02 0030 0000 0000 40 11 0000 c0000201 c0000202", Value: GRH{a4, b4, 2, 64, 48}},
			{Name: "IPv6", Hex: "60 20 0000 0030 11 40 fe800000000000000000000000000001 fe800000000000000000000000000002", Value: GRH{a6, b6, 2, 64, 48}},
		}, GRH.Append, ParseGRH, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }))
	})
}

// TestROCE_OP_2 is the table of opcodes: the numbers and headers of ib_pack.h and rxe_opcode.c. [ROCE-OP-2]
func TestROCE_OP_2(t *testing.T) {
	const (
		first = 1 << iota
		last
		request
	)
	for _, c := range []struct {
		op    Opcode
		name  string
		len   int // with BTH
		flags int
	}{
		{0x00, "RC Send First", 12, first | request},
		{0x01, "RC Send Middle", 12, request},
		{0x02, "RC Send Last", 12, last | request},
		{0x03, "RC Send Last with Immediate", 16, last | request},
		{0x04, "RC Send Only", 12, first | last | request},
		{0x05, "RC Send Only with Immediate", 16, first | last | request},
		{0x06, "RC RDMA Write First", 28, first | request},
		{0x07, "RC RDMA Write Middle", 12, request},
		{0x08, "RC RDMA Write Last", 12, last | request},
		{0x09, "RC RDMA Write Last with Immediate", 16, last | request},
		{0x0a, "RC RDMA Write Only", 28, first | last | request},
		{0x0b, "RC RDMA Write Only with Immediate", 32, first | last | request},
		{0x0c, "RC RDMA Read Request", 28, first | last | request},
		{0x0d, "RC RDMA Read Response First", 16, first},
		{0x0e, "RC RDMA Read Response Middle", 12, 0},
		{0x0f, "RC RDMA Read Response Last", 16, last},
		{0x10, "RC RDMA Read Response Only", 16, first | last},
		{0x11, "RC Acknowledge", 16, first | last},
		{0x12, "RC Atomic Acknowledge", 24, first | last},
		{0x13, "RC Compare and Swap", 40, first | last | request},
		{0x14, "RC Fetch and Add", 40, first | last | request},
		{0x16, "RC Send Last with Invalidate", 16, last | request},
		{0x17, "RC Send Only with Invalidate", 16, first | last | request},
		{0x20, "UC Send First", 12, first | request},
		{0x25, "UC Send Only with Immediate", 16, first | last | request},
		{0x26, "UC RDMA Write First", 28, first | request},
		{0x2b, "UC RDMA Write Only with Immediate", 32, first | last | request},
		{0x64, "UD Send Only", 20, first | last | request},
		{0x65, "UD Send Only with Immediate", 24, first | last | request},
	} {
		if !c.op.Assigned() || c.op.String() != c.name || c.op.HeaderLen() != c.len ||
			c.op.Begins() != (c.flags&first != 0) || c.op.Ends() != (c.flags&last != 0) ||
			c.op.Kind().Request() != (c.flags&request != 0) {
			t.Errorf("%#02x: %v, %d bytes, begins %t, ends %t, request %t", uint8(c.op), c.op,
				c.op.HeaderLen(), c.op.Begins(), c.op.Ends(), c.op.Kind().Request())
		}
	}
	assigned := 0
	for o := range 256 {
		if Opcode(o).Assigned() {
			assigned++
		}
	}
	if assigned != 23+12+2 { // [ROCE-OP-1]
		t.Errorf("%d opcodes are assigned", assigned)
	}
	t.Run("ROCE-OP-1", func(t *testing.T) {
		if o := WriteOnly.On(UC); o != 0x2a || o.Transport() != UC || o.Operation() != WriteOnly {
			t.Errorf("%#x", uint8(o))
		}
	})
	t.Run("ROCE-OP-12", func(t *testing.T) {
		for _, c := range []struct {
			prev int
			next Opcode
			ok   bool
		}{
			{-1, SendFirst, true}, {-1, SendMiddle, false}, {-1, SendLast, false}, {-1, ReadRequest, true},
			{int(SendFirst), SendMiddle, true}, {int(SendFirst), SendLastInv, true}, {int(SendFirst), SendOnly, false},
			{int(SendFirst), WriteMiddle, false}, {int(WriteMiddle), WriteLastImm, true}, {int(WriteMiddle), SendLast, false},
			{int(SendMiddle), ReadRequest, false}, {int(SendLast), WriteFirst, true}, {int(FetchAdd), SendOnly, true}, {int(SendOnly), SendLast, false},
		} {
			if c.next.Follows(c.prev) != c.ok {
				t.Errorf("%v after %v: %t", c.next, c.prev, !c.ok)
			}
		}
	})
	t.Run("ROCE-OP-14", func(t *testing.T) {
		for code, want := range map[uint8]time.Duration{0: 655360 * time.Microsecond, 1: 10 * time.Microsecond, 12: 640 * time.Microsecond, 31: 491520 * time.Microsecond, 0x2c: 640 * time.Microsecond} {
			if d := RNRTime(code); d != want {
				t.Errorf("code %d: %v", code, d)
			}
		}
	})
	t.Run("ROCE-OP-13", func(t *testing.T) {
		for s, want := range map[Syndrome]SyndromeType{ACK: TypeACK, 0: TypeACK, RNR(5): TypeRNR, RNR(31): TypeRNR, NAKSequence: TypeNAK, NAKRemoteOp: TypeNAK} {
			if s.Type() != want {
				t.Errorf("%#x is of type %d", uint8(s), s.Type())
			}
		}
	})
}

// packets are whole packets, with the bytes from the front of the BTH.
var packets = []struct {
	name, hex string
	p         Packet
}{
	{"Send of 5 bytes", "04 b0 ffff 00 000011 80 000007  68656c6c6f 000000",
		Packet{BTH: BTH{Opcode: SendOnly, Solicited: true, Pad: 3, PKey: DefaultPKey, QPN: 17, AckReq: true, PSN: 7},
			Payload: []byte("hello")}},
	{"Write with immediate", "0b 00 ffff 00 000011 80 000008  0000000000001000 00000105 00000004  cafe0001  01020304",
		Packet{BTH: BTH{Opcode: WriteOnlyImm, PKey: DefaultPKey, QPN: 17, AckReq: true, PSN: 8},
			RETH: RETH{0x1000, 0x105, 4}, Imm: ImmDt{0xca, 0xfe, 0, 1}, Payload: []byte{1, 2, 3, 4}}},
	{"Read Request", "0c 00 ffff 00 000011 80 000009  0000000000001000 00000105 00002000",
		Packet{BTH: BTH{Opcode: ReadRequest, PKey: DefaultPKey, QPN: 17, AckReq: true, PSN: 9},
			RETH: RETH{0x1000, 0x105, 0x2000}}},
	{"Atomic Acknowledge", "12 00 ffff 00 000012 00 000009  1f000003 00000000000000ff",
		Packet{BTH: BTH{Opcode: AtomicAcknowledge, PKey: DefaultPKey, QPN: 18, PSN: 9},
			AETH: AETH{ACK, 3}, AtomicAck: 255}},
	{"Fetch and Add", "14 00 ffff 00 000011 80 00000a  0000000000001000 00000105 0000000000000001 0000000000000000",
		Packet{BTH: BTH{Opcode: FetchAdd, PKey: DefaultPKey, QPN: 17, AckReq: true, PSN: 10},
			Atomic: AtomicETH{VA: 0x1000, RKey: 0x105, SwapAdd: 1}}},
	{"datagram with immediate", "65 00 ffff 00 000011 00 00000b  11111111 00000013  00000001  ff000000",
		Packet{BTH: BTH{Opcode: SendOnlyImm.On(UD), PKey: DefaultPKey, QPN: 17, PSN: 11},
			DETH: DETH{0x11111111, 19}, Imm: ImmDt{0, 0, 0, 1}, Payload: []byte{0xff, 0, 0, 0}}},
	{"Send with invalidate", "17 00 ffff 00 000011 80 00000c  0000a105",
		Packet{BTH: BTH{Opcode: SendOnlyInv, PKey: DefaultPKey, QPN: 17, AckReq: true, PSN: 12}, Inv: 0xa105}},
}

func TestPacket(t *testing.T) {
	for _, v := range packets {
		t.Run(v.name, func(t *testing.T) {
			want := testkit.Hex(v.hex)
			testkit.EqualBytes(t, v.p.Append(nil), want)
			got, err := Parse(want)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(v.p, got, cmp.Transformer("bytes", func(b []byte) string { return hex.EncodeToString(b) })); d != "" {
				t.Error(d)
			}
			for i := range v.p.Opcode.HeaderLen() {
				if _, err := Parse(want[:i]); !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Errorf("%d bytes: %v", i, err)
				}
			}
		})
	}
	t.Run("ROCE-BTH-2", func(t *testing.T) {
		if _, err := Parse(testkit.Hex("04 01 ffff 00 002345 00 111111")); !errors.Is(err, ErrVersion) {
			t.Error(err)
		}
	})
	t.Run("ROCE-OP-3", func(t *testing.T) {
		for _, op := range []Opcode{0x15, 0x18, 0x2c, 0x40, 0x60, 0x66, 0xff} {
			p := Packet{BTH: BTH{Opcode: op}}
			if _, err := Parse(append(p.Append(nil), make([]byte, 64)...)); !errors.Is(err, ErrOpcode) {
				t.Errorf("%v: %v", op, err)
			}
		}
	})
	t.Run("ROCE-BTH-3", func(t *testing.T) {
		for _, c := range []string{
			"04 00 ffff 00 000001 00 000000 0102",              // no multiple of four
			"04 30 ffff 00 000001 00 000000",                   // pad without payload
			"11 00 ffff 00 000001 00 000000 1f000001 00000000", // an acknowledgement has no payload
		} {
			if _, err := Parse(testkit.Hex(c)); !errors.Is(err, ErrPayload) {
				t.Errorf("%s: %v", c, err)
			}
		}
		for n := range 9 {
			p := Packet{BTH: BTH{Opcode: SendOnly}, Payload: bytes.Repeat([]byte{7}, n)}
			b := p.Append(nil)
			if got, err := Parse(b); err != nil || len(b)%4 != 0 || !bytes.Equal(got.Payload, p.Payload) {
				t.Errorf("%d bytes: %d, %v", n, len(got.Payload), err)
			}
		}
	})
}

func flow4(id uint16) Flow {
	return Flow{Source: netip.MustParseAddrPort("192.168.9.1:49152"),
		Destination: netip.MustParseAddrPort("192.168.9.2:4791"), ID: id}
}

func flow6() Flow {
	return Flow{Source: netip.MustParseAddrPort("[fd00::1]:49152"),
		Destination: netip.MustParseAddrPort("[fd00::2]:4791")}
}

// bitwise computes the CRC as described in the sources: bit by bit, over a single run of bytes.
func bitwise(p []byte) uint32 {
	c := ^uint32(0)
	for _, b := range p {
		c ^= uint32(b)
		for range 8 {
			if c&1 != 0 {
				c = c>>1 ^ 0xedb88320
			} else {
				c >>= 1
			}
		}
	}
	return ^c
}

func TestROCE_ICRC(t *testing.T) {
	body := packets[0].p.Append(nil)
	t.Run("ROCE-ICRC-1", func(t *testing.T) {
		if c := bitwise(bytes.Repeat([]byte{0xff}, 8)); ^c != 0xdebb20e3 { // the seed of rxe_icrc.c
			t.Errorf("%#x", ^c)
		}
		// The headers as on the wire, with ones for the masked fields. [ROCE-ICRC-2]
		for name, c := range map[string]struct {
			f      Flow
			header string
		}{
			"IPv4": {flow4(0x1234), "45ff0034 12344000 ff11ffff c0a80901 c0a80902  c000 12b7 0020 ffff"},
			"IPv6": {flow6(), "6fffffff 0020 11 ff fd000000000000000000000000000001 fd000000000000000000000000000002  c000 12b7 0020 ffff"},
		} {
			all := append(bytes.Repeat([]byte{0xff}, 8), testkit.Hex(c.header)...)
			all = append(all, body...)
			all[len(all)-len(body)+4] = 0xff
			want := bitwise(all)
			sealed := c.f.Seal(bytes.Clone(body))
			testkit.EqualBytes(t, sealed[len(body):],
				[]byte{byte(want), byte(want >> 8), byte(want >> 16), byte(want >> 24)})
			if err := c.f.Check(sealed); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
	t.Run("ROCE-ICRC-2", func(t *testing.T) {
		f := flow4(0)
		other := bytes.Clone(body)
		other[4] = 0x5a // reserved 8a
		testkit.EqualBytes(t, f.Seal(other)[len(body):], f.Seal(bytes.Clone(body))[len(body):])
	})
	t.Run("ROCE-ICRC-3", func(t *testing.T) {
		for _, f := range []Flow{flow4(0), flow6()} {
			sealed := f.Seal(bytes.Clone(body))
			for i := range len(sealed) * 8 {
				bad := bytes.Clone(sealed)
				bad[i/8] ^= 1 << (i % 8)
				if err := f.Check(bad); i/8 != 4 && !errors.Is(err, ErrICRC) {
					t.Errorf("bit %d: %v", i, err)
				}
			}
			for n := range BTHLen + ICRCLen {
				if err := f.Check(sealed[:n]); !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Errorf("%d bytes: %v", n, err)
				}
			}
			moved := f
			moved.Source = netip.AddrPortFrom(f.Source.Addr().Next().Next().Next().Next(), f.Source.Port())
			if err := moved.Check(sealed); !errors.Is(err, ErrICRC) {
				t.Errorf("from another address: %v", err)
			}
		}
	})
	// A packet passes with any identification, since a program cannot read the identification from
	// a socket. Of random CRCs, one in 65536 passes.
	t.Run("ROCE-ICRC-4", func(t *testing.T) {
		unknown := flow4(0)
		r := rand.New(rand.NewPCG(1, 2))
		for range 2000 {
			id := uint16(r.Uint32())
			f := flow4(id)
			b := make([]byte, BTHLen+r.IntN(4200))
			for i := range b {
				b[i] = byte(r.Uint32())
			}
			if got, err := unknown.Identification(f.Seal(b)); err != nil || got != id {
				t.Fatalf("identification %#x, %d bytes: %#x, %v", id, len(b), got, err)
			}
			if got, ok := identification(f.icrc(b)^unknown.icrc(b), len(b)); !ok || got != id {
				t.Fatalf("identification %#x, not %#x", got, id)
			}
		}
		passed := 0
		for range 1 << 18 {
			if _, ok := identification(r.Uint32(), 100); ok {
				passed++
			}
		}
		if passed > 40 { // about 4 are expected
			t.Errorf("%d of 2^18 random CRCs pass", passed)
		}
	})
}

func TestRewind(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rapid.Uint32().Draw(t, "register")
		n := rapid.IntRange(0, 65535).Draw(t, "bytes")
		c := r
		for range n {
			for range 8 {
				c = c>>1 ^ 0xedb88320&-(c&1)
			}
		}
		if got := rewind(c, n); got != r {
			t.Errorf("%#x, not %#x", got, r)
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, v := range packets {
		f.Add(testkit.Hex(v.hex))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := Parse(b)
		if err != nil {
			return
		}
		again, err := Parse(p.Append(nil))
		if err != nil {
			t.Fatal(err)
		}
		p.Pad = again.Pad // the payload may have a pad of four bytes more than necessary
		if d := cmp.Diff(p, again, cmp.Transformer("bytes", func(b []byte) string { return hex.EncodeToString(b) })); d != "" {
			t.Error(d)
		}
	})
}

func BenchmarkCheck(b *testing.B) {
	for name, id := range map[string]uint16{"known": 0, "unknown": 77} {
		b.Run(name, func(b *testing.B) {
			f, unknown := flow4(id), flow4(0)
			p := f.Seal(make([]byte, 4096+28))
			b.SetBytes(int64(len(p)))
			for b.Loop() {
				if err := unknown.Check(p); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
