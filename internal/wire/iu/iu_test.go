package iu

import (
	"bytes"
	"errors"
	"io"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"viaduct/internal/testkit"
)

// headerVectors has the vectors of each codec, by the codec's name.
var headerVectors = map[string][]struct {
	h    Header
	wire string
}{
	"ProjectV1": {
		{Header{Handle: 0x00012001, Op: SendRqst, Flags: FlagImm | FlagRspRqd | FlagRR, MsgID: 0x10, Param: 0xCAFEF00D}, "00012001 01 07 0000 00000010 cafef00d"},
		{Header{Handle: 0x00012001, Op: SendResp, Flags: FlagErr, MsgID: 0x10, Param: Status{NoRecvDesc, 1, 2}.Param()}, "00012001 11 01 0000 00000010 40010002"},
		{Header{Handle: 1, Op: WriteRqst, Flags: FlagLastMsg, MsgID: 0xFFFFFFFF, RmtVA: 0x1122334455667788, RmtHandle: 0xAABBCCDD, Total: 9},
			"00000001 02 80 0000 ffffffff 00000000 1122334455667788 aabbccdd 00000009"},
		{Header{Handle: 1, Op: WriteResp, Flags: FlagCum, MsgID: 5}, "00000001 12 02 0000 00000005 00000000"},
		{Header{Handle: 1, Op: ReadRqst, Flags: FlagRspRqd, MsgID: 6, RmtVA: 7, RmtHandle: 8, Total: 9}, "00000001 03 02 0000 00000006 00000000 0000000000000007 00000008 00000009"},
		{Header{Handle: 1, Op: ReadResp, MsgID: 6}, "00000001 13 00 0000 00000006 00000000"},
		{Header{Op: ConnectRqst, Flags: ClientServer.Flags() | FlagRetry, MsgID: 2, Total: 0x1234}, "00000000 20 05 0000 00000002 00000000 0000000000000000 00000000 00001234"},
		{Header{Handle: 3, Op: ConnectResp1, Flags: PeerToPeer.Flags() | FlagPend, MsgID: 1, Param: Status{Reason: Pending}.Param(), Total: 4},
			"00000003 21 12 0000 00000001 03000000 0000000000000000 00000000 00000004"},
		{Header{Handle: 3, Op: ConnectResp2, Flags: ClientServer.Flags() | FlagPos, MsgID: 1, Param: Status{Reason: Confirmed}.Param(), Total: 4},
			"00000003 22 09 0000 00000001 01000000 0000000000000000 00000000 00000004"},
		{Header{Handle: 3, Op: ConnectResp3, Flags: ClientServer.Flags() | FlagPos, MsgID: 1, Param: Status{Reason: Confirmed}.Param(), Total: 4},
			"00000003 23 09 0000 00000001 01000000 0000000000000000 00000000 00000004"},
		{Header{Handle: 3, Op: DisconnectRqst, Flags: FlagErr | FlagMsgID, MsgID: 8, Param: Status{Reason: MsgLost}.Param(), RmtHandle: 9, Total: 4},
			"00000003 30 03 0000 00000008 61000000 0000000000000000 00000009 00000004"},
		{Header{Handle: 3, Op: DisconnectResp, Param: Status{Reason: ULPDisconnect}.Param(), RmtHandle: 9, Total: 4},
			"00000003 31 00 0000 00000000 60000000 0000000000000000 00000009 00000004"},
	},
}

// TestFCVI_5_9 checks the Device_Header of all twelve IUs. [FCVI-5.1-1] [FCVI-5.1-2] [FCVI-5.9.1-1]
// [FCVI-5.9.1-3] [FCVI-5.9.3-1] [FCVI-5.9.4-2] [FCVI-5.9.4-6] [FCVI-5.9.4-7] [FCVI-5.9.4-8]
// [FCVI-5.9.4-9]
func TestFCVI_5_9(t *testing.T) {
	c := ProjectV1{}
	seen := map[Opcode]bool{}
	for _, v := range headerVectors[c.Name()] {
		wire := testkit.Hex(v.wire)
		seen[v.h.Op] = true
		if b := c.AppendHeader(nil, &v.h); !bytes.Equal(b, wire) {
			t.Errorf("%v: %x, want %x", v.h, b, wire)
		}
		h := Header{RmtVA: 1, RmtHandle: 2, Total: 3, Param: 4}
		n, err := c.ParseHeader(wire, &h)
		if err != nil || n != len(wire) || h != v.h {
			t.Errorf("%x: %v, %d, %v", wire, h, n, err)
		}
		for n := range wire {
			if _, err := c.ParseHeader(wire[:n], &h); err != io.ErrUnexpectedEOF {
				t.Errorf("%v: the first %d bytes: %v", v.h.Op, n, err)
			}
		}
		wire[6], wire[7] = 0xAA, 0x55 // these bytes are reserved and ignored [FCVI-5.9.5-1]
		if _, err := c.ParseHeader(wire, &h); err != nil || h != v.h {
			t.Errorf("reserved bytes count: %v, %v", h, err)
		}
		if int(c.DFCtl(v.h.Op))*16 != v.h.Op.HeaderLen() { // [FCVI-5.8-4]
			t.Errorf("%v: DF_CTL %d", v.h.Op, c.DFCtl(v.h.Op))
		}
	}
	if len(seen) != 12 {
		t.Errorf("%d opcodes have vectors", len(seen))
	}
	for o := range 256 {
		if Opcode(o).Valid() != seen[Opcode(o)] { // [FCVI-5.9.3-2]
			t.Errorf("opcode %02x: valid %v", o, Opcode(o).Valid())
		}
	}
}

// TestFCVI_5_8 checks R_CTL and F_CTL for each IU. [FCVI-5.1-4] [FCVI-5.8-7] [FCVI-5.8-8]
// [FCVI-5.8-9]
func TestFCVI_5_8(t *testing.T) {
	c := ProjectV1{}
	for _, v := range []struct {
		o    Opcode
		u    Use
		rctl uint8
		fctl uint32
	}{
		{SendRqst, Use{}, 4, 0x200008}, {SendRqst, Use{Last: true}, 4, 0x380008}, {SendRqst, Use{Last: true, Answered: true}, 4, 0x290008},
		{WriteRqst, Use{Answered: true}, 4, 0x200008}, {WriteRqst, Use{Last: true}, 4, 0x380008},
		{SendRqst, Use{Stream: StreamFirst, Last: true}, 4, 0x280008}, {SendRqst, Use{Stream: StreamNext, Last: true}, 4, 0x080008},
		{SendRqst, Use{Stream: StreamLast, Last: true}, 4, 0x180008}, {SendRqst, Use{Stream: StreamNext}, 4, 0x000008},
		{ReadRqst, Use{Last: true}, 2, 0x290000}, {ConnectRqst, Use{Last: true}, 2, 0x290000}, {DisconnectRqst, Use{Last: true}, 2, 0x290000},
		{SendResp, Use{Last: true}, 3, 0x980000}, {WriteResp, Use{Last: true}, 3, 0x980000}, {ConnectResp3, Use{Last: true, End: true}, 3, 0x980000},
		{DisconnectResp, Use{Last: true}, 3, 0x980000}, {ReadResp, Use{}, 1, 0x800008}, {ReadResp, Use{Last: true}, 1, 0x980008},
		{ConnectResp1, Use{Last: true}, 3, 0x890000}, {ConnectResp1, Use{Last: true, Pending: true}, 3, 0x880000},
		{ConnectResp1, Use{Last: true, End: true}, 3, 0x980000}, {ConnectResp2, Use{Last: true}, 3, 0x090000}, {ConnectResp2, Use{Last: true, End: true}, 3, 0x180000},
	} {
		if r, f := c.RCtl(v.o), c.FCtl(v.o, v.u); r != v.rctl || f != v.fctl {
			t.Errorf("%v %+v: R_CTL %02x F_CTL %06x, want %02x %06x", v.o, v.u, r, f, v.rctl, v.fctl)
		}
	}
}

// TestFCVI_5_9_7 checks the ranges of reason codes. [FCVI-5.9.7-2] [FCVI-5.9.7-4] [FCVI-5.9.7-9]
func TestFCVI_5_9_7(t *testing.T) {
	for r, c := range map[Reason]ReasonClass{0: ConnectGood, 0x0F: ConnectGood, 0x10: ConnectError, 0x3F: ConnectError, 0x40: DescriptorError,
		0x5F: DescriptorError, 0x60: PortError, 0x7F: PortError, 0x80: ReservedReason, 0xEF: ReservedReason, 0xF0: VendorReason, 0xFF: VendorReason} {
		if r.Class() != c {
			t.Errorf("%02x: class %d", uint8(r), r.Class())
		}
	}
	if Reason(0x90).Known() != PortInternal || Reason(0xF5).Known() != PortInternal || MsgLost.Known() != MsgLost {
		t.Error("codes without a meaning")
	}
	// [FCVI-5.9.7-5] [FCVI-5.9.7-8]
	for base, names := range map[Reason]string{
		0x00: "ACCEPTED CONFIRMED PEER_YIELD PENDING ALREADY_CONNECTED",
		0x10: "NO_MATCH ULP_REJECT ULP_TIMEOUT INVALID_RELIABILITY INVALID_MTS INVALID_QOS INVALID_RDMA_READ NO_RESOURCES BAD_STATE BAD_MODE BAD_FORMAT STALE CANCELLED ADDRESS_MISMATCH",
		0x40: "NO_RECV_DESC LENGTH RECV_PROT RECV_FORMAT RDMA_WRITE_PROT RDMA_WRITE_OFF RDMA_READ_PROT RDMA_READ_OFF TOO_LONG",
		0x60: "ULP_DISCONNECT MSG_LOST FRAME_LOST RESP_TIMEOUT NOT_CONNECTED PROTOCOL UNEXPECTED_RESP PORT_INTERNAL PORT_RESOURCES LOGGED_OUT CLASS2_FAIL DATA_ERROR",
	} {
		for i, n := range strings.Fields(names) {
			if r := base + Reason(i); r.String() != n {
				t.Errorf("%02x is %v, want %s", uint8(r), r, n)
			}
		}
	}
	s := Status{FrameLost, 0x12, 0x3456}
	if s.Param() != 0x62123456 || ParseStatus(s.Param()) != s {
		t.Errorf("%08x", s.Param())
	}
	// [FCVI-5.9.6-2]
	for _, v := range []struct {
		a, b MsgID
		want bool
	}{{1, 0, true}, {0, 1, false}, {0, 0xFFFFFFFF, true}, {5, 5, false}, {1 << 31, 0, false}, {1<<31 - 1, 0, true}} {
		if v.a.After(v.b) != v.want {
			t.Errorf("%d after %d: %v", v.a, v.b, !v.want)
		}
	}
}

var (
	rqst = ConnectPayload{Version: 1, Handle: 0x1001, InitialMsgID: 0xABCD, Timeout: 5000,
		Local:  IPAddress(netip.MustParseAddr("192.0.2.1"), []byte("me")),
		Remote: IPAddress(netip.MustParseAddr("2001:db8::2"), []byte("you")),
		Attributes: Attributes{Reliability: ReliableReception, Write: true, Streaming: true,
			MaxTransfer: 1 << 20, MaxReads: 4, MaxUnacked: 8, QoS: QoS{Class: 3}}}
	resp = AcceptPayload{Version: 1, Handle: 0x2001, InitialMsgID: 7, Local: NameAddress(0x2100020000000001, nil),
		Attributes: Attributes{Reliability: Unreliable, MaxTransfer: 4096, MaxUnacked: 1}}
)

// TestFCVI_6_8 checks the payloads of set-up IUs. [FCVI-6.8-1] [FCVI-6.8-4] [FCVI-6.9-1]
// [FCVI-7.2-1] [FCVI-7.2-2] [FCVI-7.3-1] [FCVI-7.3-2]
func TestFCVI_6_8(t *testing.T) {
	b := rqst.Append(nil)
	if len(b) != ConnectRqstLen || len(b)+LongLen > 256 {
		t.Fatalf("CONNECT_RQST payload of %d bytes", len(b))
	}
	if want := testkit.Hex("0100 00d8 00001001 0000abcd 00001388 0010 0002 000000000000000000000000c0000201 6d65 00"); !bytes.Equal(b[:len(want)], want) {
		t.Errorf("begins %x", b[:len(want)])
	}
	if want := testkit.Hex("0000004c 00100000 0004 0008 00000000 03"); !bytes.Equal(b[184:184+len(want)], want) {
		t.Errorf("attributes %x", b[184:])
	}
	got, n, err := ParseConnectRqst(b)
	if err != nil || n != len(b) {
		t.Fatal(n, err)
	}
	if d := cmp.Diff(rqst, got); d != "" {
		t.Error(d)
	}
	a := resp.Append(nil)
	acc, n, err := ParseConnectResp1(a)
	if err != nil || n != ConnectResp1Len || len(a) != n {
		t.Fatal(n, err)
	}
	resp := resp
	resp.Local.Discriminator = []byte{}
	if d := cmp.Diff(resp, acc); d != "" {
		t.Error(d)
	}
	for n := range b {
		if _, _, err := ParseConnectRqst(b[:n]); err == nil {
			t.Errorf("the first %d bytes of a request parse", n)
		}
	}
	for n := range a {
		if _, _, err := ParseConnectResp1(a[:n]); err == nil {
			t.Errorf("the first %d bytes of a response parse", n)
		}
	}
	t.Run("FCVI-6.9-2", func(t *testing.T) {
		long := rqst
		long.Security = []byte("opaque")
		got, n, err := ParseConnectRqst(long.Append(nil))
		if err != nil || n != ConnectRqstLen+6 || string(got.Security) != "opaque" || got.Handle != long.Handle {
			t.Errorf("%d, %q, %v", n, got.Security, err)
		}
		short := bytes.Clone(b)
		short[3]--
		if _, _, err := ParseConnectRqst(short); !errors.Is(err, ErrFormat) {
			t.Errorf("a length field too small: %v", err)
		}
	})
	t.Run("FCVI-6.9-3", func(t *testing.T) {
		other := bytes.Clone(b)
		other[0] = 9
		if p, _, err := ParseConnectRqst(other); !errors.Is(err, ErrVersion) || p.Handle != rqst.Handle {
			t.Errorf("version 9: %v, handle %x", err, p.Handle)
		}
	})
	t.Run("FCVI-7.2-3", func(t *testing.T) {
		m := NetAddress{HostLen: 16}
		copy(m.Host[:], testkit.Hex("00000000000000000000ffffc0000201"))
		if !m.SameHost(rqst.Local) || m.IP() != netip.MustParseAddr("192.0.2.1") {
			t.Errorf("%v is not %v", m, rqst.Local)
		}
	})
	bad := bytes.Clone(b)
	bad[16+2] = 1 // the length of the discriminator is then 258 bytes
	if _, _, err := ParseConnectRqst(bad); !errors.Is(err, ErrFormat) {
		t.Errorf("a discriminator too long: %v", err)
	}
}

// TestFCVI_5_3_4 checks the tie-break. [FCVI-5.3.4-1]
func TestFCVI_5_3_4(t *testing.T) {
	c := ProjectV1{}
	for _, v := range []struct {
		an, bn uint64
		ad, bd string
		ah, bh uint32
		want   bool
	}{{2, 1, "a", "b", 1, 2, true}, {1, 2, "b", "a", 2, 1, false}, {1, 1, "b", "a", 1, 2, true}, {1, 1, "a", "a", 2, 1, true}, {1, 1, "a", "a", 1, 2, false}} {
		if c.Beats(v.an, v.bn, []byte(v.ad), []byte(v.bd), v.ah, v.bh) != v.want {
			t.Errorf("%+v", v)
		}
	}
}

func FuzzHeader(f *testing.F) {
	for _, v := range headerVectors["ProjectV1"] {
		f.Add(testkit.Hex(v.wire))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, n, err := ParseHeader(b)
		if err != nil || !h.Op.Valid() {
			return
		}
		again, m, err := ParseHeader(h.Append(nil))
		if err != nil || m != n || again != h {
			t.Fatalf("%v, %v, %v", h, again, err)
		}
		_ = h.String() + h.Status().Reason.String()
	})
}

func FuzzConnect(f *testing.F) {
	f.Add(rqst.Append(nil))
	f.Add(resp.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, n, err := ParseConnectRqst(b); err == nil {
			again, m, err := ParseConnectRqst(p.Append(nil))
			if err != nil || m > n || cmp.Diff(p, again) != "" {
				t.Fatalf("%+v, %+v, %v", p, again, err)
			}
		}
		if p, n, err := ParseConnectResp1(b); err == nil {
			again, m, err := ParseConnectResp1(p.Append(nil))
			if err != nil || m > n || cmp.Diff(p, again) != "" {
				t.Fatalf("%+v, %+v, %v", p, again, err)
			}
		}
	})
}
