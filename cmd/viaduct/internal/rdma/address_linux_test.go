//go:build linux && (amd64 || arm64)

package rdma

import (
	"net"
	"net/netip"
	"strconv"
	"testing"
)

// An address keeps the scope through sockets. The zone is the number of the interface, even where
// Go uses the name.
func TestAddressScope(t *testing.T) {
	all, err := net.Interfaces()
	if err != nil || len(all) == 0 {
		t.Skipf("SKIPPED: no network interface: %v", err)
	}
	want := netip.MustParseAddrPort("[fe80::1%" + strconv.Itoa(all[0].Index) + "]:7")
	if got := addrPort(sockaddr(want)); got != want {
		t.Errorf("%v became %v", want, got)
	}
	end := &net.TCPAddr{IP: want.Addr().AsSlice(), Zone: all[0].Name, Port: 7}
	if got := addrOf(end); got != want {
		t.Errorf("the end %v has the address %v, want %v", end, got, want)
	}
}
