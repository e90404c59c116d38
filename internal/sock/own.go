package sock

import (
	"net"
	"net/netip"
	"slices"
)

// IsOwn reports whether an address is one of this host.
func IsOwn(ip netip.Addr) bool {
	if ip.IsLoopback() {
		return true
	}
	as, _ := net.InterfaceAddrs()
	return slices.ContainsFunc(as, func(a net.Addr) bool {
		p, err := netip.ParsePrefix(a.String())
		return err == nil && p.Addr().Unmap() == ip.Unmap()
	})
}
