package iu

import (
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"strings"
	"testing"
)

// The twelve Information Units, each once. [FCVI-5.1-1]
func TestOpcodes(t *testing.T) {
	want := [...]Opcode{SendRqst, WriteRqst, ReadRqst, SendResp, WriteResp, ReadResp,
		ConnectRqst, ConnectResp1, ConnectResp2, ConnectResp3, DisconnectRqst, DisconnectResp}
	n := 0
	for o := range 256 {
		if Opcode(o).Valid() {
			n++
		}
	}
	if n != len(want) {
		t.Errorf("%d opcodes, want %d", n, len(want))
	}
	for _, o := range want {
		if !o.Valid() || strings.HasPrefix(o.String(), "FCVI_OPCODE") {
			t.Errorf("%v is not valid, or has no name", o)
		}
	}
}

// Only an IPv4-mapped IP address is compared as IPv4. [FCVI-7.2-3] [FCVI-7.2-2]
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
	// A Port_Name is compared as it is, whatever stands behind its eight bytes.
	name, marked := NameAddress(0, nil), NameAddress(0, nil)
	marked.Host[10], marked.Host[11] = 0xFF, 0xFF
	if name.SameHost(marked) {
		t.Error("a Port_Name was taken for a mapped address")
	}
	if got, ok := NameAddress(0x2100020000000001, nil).PortName(); !ok || got != 0x2100020000000001 {
		t.Errorf("Port_Name %x, %t", got, ok)
	}
}

// Equal requests beat each other in neither direction. [FCVI-5.3.4-1]
func TestBeatsItself(t *testing.T) {
	if (ProjectV1{}).Beats(1, 1, []byte("a"), []byte("a"), 7, 7) {
		t.Error("a request beats itself")
	}
}

// A CONNECT_RQST that can't be read is refused, with the handle if that could
// be. [FCVI-6.9-2] [FCVI-6.9-3]
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
