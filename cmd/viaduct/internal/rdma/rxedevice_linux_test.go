//go:build linux && (amd64 || arm64)

package rdma

import (
	"net"
	"testing"
)

// A device reports the path MTU of its interface. Programs derive the size of packets from the path
// MTU, and larger packets would be refused.
func TestPathMTU(t *testing.T) {
	all, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	if code := pathMTU([]gidEntry{{ndev: "no such interface"}}); code != mtu4096 {
		t.Errorf("code %d without an interface", code)
	}
	for _, n := range all {
		code := pathMTU([]gidEntry{{ndev: n.Name}})
		payload := 128 << code
		if code < mtu256 || code > mtu4096 || code > mtu256 && payload > n.MTU-80 ||
			code < mtu4096 && 2*payload <= n.MTU-80 {
			t.Errorf("%s: MTU %d, path MTU %d", n.Name, n.MTU, payload)
		}
	}
}
