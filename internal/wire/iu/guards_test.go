package iu

import (
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"testing"
)

// TestOpcodes lists the twelve Information Units, each once, with all properties. [FCVI-5.1-1]
// [FCVI-5.1-2] [FCVI-5.1-4]
func TestOpcodes(t *testing.T) {
	type row struct {
		name              string
		request, response bool
		data              bool
		answer            Opcode
		header            int
		rctl              uint8
	}
	want := map[Opcode]row{
		SendRqst:       {"SEND_RQST", true, false, true, SendResp, 16, 0x04},
		WriteRqst:      {"WRITE_RQST", true, false, true, WriteResp, 32, 0x04},
		ReadRqst:       {"READ_RQST", true, false, false, ReadResp, 32, 0x02},
		SendResp:       {"SEND_RESP", false, true, false, 0, 16, 0x03},
		WriteResp:      {"WRITE_RESP", false, true, false, 0, 16, 0x03},
		ReadResp:       {"READ_RESP", false, true, true, 0, 16, 0x01},
		ConnectRqst:    {"CONNECT_RQST", false, false, false, 0, 32, 0x02},
		ConnectResp1:   {"CONNECT_RESP1", false, false, false, 0, 32, 0x03},
		ConnectResp2:   {"CONNECT_RESP2", false, false, false, 0, 32, 0x03},
		ConnectResp3:   {"CONNECT_RESP3", false, false, false, 0, 32, 0x03},
		DisconnectRqst: {"DISCONNECT_RQST", false, false, false, 0, 32, 0x02},
		DisconnectResp: {"DISCONNECT_RESP", false, false, false, 0, 32, 0x03},
	}
	n := 0
	for v := range 256 {
		if o := Opcode(v); o.Valid() {
			n++
			got := row{o.String(), o.IsRequest(), o.IsResponse(), o.HasData(), o.Response(),
				o.HeaderLen(), messages[o].rctl}
			if got != want[o] {
				t.Errorf("%#x: %+v, want %+v", v, got, want[o])
			}
		}
	}
	if n != len(want) {
		t.Errorf("%d opcodes, want %d", n, len(want))
	}
}

// TestSameHost: only an IPv4-mapped IP address is compared as IPv4. [FCVI-7.2-3] [FCVI-7.2-2]
func TestSameHost(t *testing.T) {
	ip := func(s string) NetAddress { return NetAddress{HostLen: hostIP, Host: netip.MustParseAddr(s).As16()} }
	four := IPAddress(netip.MustParseAddr("192.0.2.1"), nil)
	zero := NetAddress{HostLen: hostIP, Host: [16]byte{12: 192, 13: 0, 14: 2, 15: 1}}
	for _, tc := range []struct {
		name string
		a    NetAddress
		want bool
	}{
		{"IPv4", four, true},
		{"mapped", ip("::ffff:192.0.2.1"), true},
		{"in the last four bytes", zero, true},
		{"first byte set", ip("100::ffff:192.0.2.1"), false},
		{"tenth byte set", ip("::1:ffff:192.0.2.1"), false},
		{"only byte 10", ip("::ff00:192.0.2.1"), false},
		{"only byte 11", ip("::ff:192.0.2.1"), false},
		{"another address", ip("::ffff:192.0.2.2"), false},
	} {
		if got := tc.a.SameHost(four); got != tc.want {
			t.Errorf("%s: %t, want %t", tc.name, got, tc.want)
		}
	}
	// An address with another prefix is compared unchanged.
	if ip("100::ffff:192.0.2.1").SameHost(ip("100::192.0.2.1")) {
		t.Error("an address with other bytes in front was taken for a mapped one")
	}
	// A Port_Name is compared unchanged, whatever bytes follow the eight bytes.
	name, marked := NameAddress(0, nil), NameAddress(0, nil)
	marked.Host[10], marked.Host[11] = 0xFF, 0xFF
	if name.SameHost(marked) {
		t.Error("a Port_Name was taken for a mapped address")
	}
	if got, ok := NameAddress(0x2100020000000001, nil).PortName(); !ok || got != 0x2100020000000001 {
		t.Errorf("Port_Name %x, %t", got, ok)
	}
}

// TestBeatsItself: of two equal requests neither beats the other. [FCVI-5.3.4-1]
func TestBeatsItself(t *testing.T) {
	if (ProjectV1{}).Beats(1, 1, []byte("a"), []byte("a"), 7, 7) {
		t.Error("a request beats itself")
	}
}

// TestBadConnectRqst: an invalid CONNECT_RQST is refused. The result has the payload's handle, if
// any. [FCVI-6.9-2] [FCVI-6.9-3]
func TestBadConnectRqst(t *testing.T) {
	good := rqst.Append(nil)
	for _, tc := range []struct {
		name   string
		b      func() []byte
		err    error
		handle uint32
	}{
		{"seven bytes", func() []byte { return good[:7] }, io.ErrUnexpectedEOF, 0},
		{"eight bytes", func() []byte { return good[:8] }, io.ErrUnexpectedEOF, rqst.Handle},
		{"local address", func() []byte { b := clone(good); binary.BigEndian.PutUint16(b[16:], 5); return b }, ErrFormat, rqst.Handle},
		{"remote address", func() []byte { b := clone(good); binary.BigEndian.PutUint16(b[16+NetAddressLen:], 5); return b }, ErrFormat, rqst.Handle},
	} {
		p, n, err := ParseConnectRqst(tc.b())
		if n != 0 || !errors.Is(err, tc.err) || p.Handle != tc.handle {
			t.Errorf("%s: handle %x, %d, %v", tc.name, p.Handle, n, err)
		}
	}
}

func clone(b []byte) []byte { return append([]byte(nil), b...) }
