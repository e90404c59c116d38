package link

import (
	"net/netip"
	"testing"

	"viaduct/internal/testkit"
)

// dataHex is a segment from 10.77.0.1:40000 to 10.77.0.2:80 with 4 bytes of payload.
const dataHex = "4500002c0001000040060000" + "0a4d0001" + "0a4d0002" +
	"9c400050" + "00000064" + "000000c8" + "5018" + "ffff" + "0000" + "0000" + "61626364"

func TestReset(t *testing.T) {
	s, ok := parseTCP(testkit.Hex(dataHex))
	if !ok || s.src != netip.MustParseAddrPort("10.77.0.1:40000") || s.dst != netip.MustParseAddrPort("10.77.0.2:80") ||
		s.seq != 100 || s.ack != 200 || s.length != 4 || s.syn || s.rst || !s.hasAck {
		t.Fatalf("%+v", s)
	}
	r := s.reset()
	back, ok := parseTCP(r)
	if !ok || back.src != s.dst || back.dst != s.src || !back.rst || back.hasAck || back.seq != 200 || back.length != 0 {
		t.Fatalf("%+v", back)
	}
	if checksum(r[:headerEnd], 0) != 0 {
		t.Error("the checksum of the IP header is wrong")
	}
	if checksum(r[headerEnd:], sum(r[12:20], 0)+protocolTCP+tcpLen) != 0 {
		t.Error("the checksum of the TCP header is wrong")
	}
}

func TestTracker(t *testing.T) {
	data := testkit.Hex(dataHex)
	syn := append([]byte(nil), data[:headerEnd+tcpLen]...)
	syn[headerEnd+13] = 2
	tr := tracker{map[[2]netip.AddrPort]bool{}}
	pass := func(what string, p []byte, want, reset bool) {
		t.Helper()
		if ok, r := tr.allow(p); ok != want || (r != nil) != reset {
			t.Errorf("%s: %t, %x", what, ok, r)
		}
	}
	pass("unknown data", data, false, true)
	pass("SYN", syn, true, false)
	pass("data", data, true, false)
	tr.forget()
	pass("forgotten data", data, false, true)
	rst := append([]byte(nil), data...)
	rst[headerEnd+13] = 4
	pass("a reset", rst, false, false)
	pass("no TCP", []byte{0x60, 0, 0}, true, false)
	for n := range data {
		parseTCP(data[:n])
	}
}
