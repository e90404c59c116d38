package sock

import (
	"net"
	"net/netip"
	"slices"
)

// Near reports whether the other end of nc is known to be on the same host, by the addresses or
// because the bytes go through shared memory.
func Near(nc net.Conn) bool { return addressedHere(nc) || PathOf(nc).SharedMemory }

// addressedHere reports whether the addresses of nc show both ends on the same host.
func addressedHere(nc net.Conn) bool {
	return isHere(addrPort(nc.LocalAddr()), addrPort(nc.RemoteAddr()))
}

// perHost is the default limit of set-ups in progress with another host. [D-17] [I-70]
const perHost = 32

// PendingPerHost returns how many set-ups with the host of nc a listener may have in progress: set,
// if set > 0. Otherwise the number is all, the listener's total limit, if nc is within this host,
// because all programs of a host share an address. For another host the number is 32.
func PendingPerHost(nc net.Conn, set, all int) int {
	switch {
	case set > 0:
		return set
	case addressedHere(nc):
		return all
	}
	return perHost
}

// addrPort returns the address and port of a TCP address, an IPv4 address in its 4-byte form. For
// other addresses the result is the zero value.
func addrPort(a net.Addr) netip.AddrPort {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	ap := t.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

// isHere reports whether the addresses of a connection prove both ends to be on this host: the
// addresses are equal, or at least one is a loopback address. The result is false for two different
// addresses of the host. Both ends must get the same result, because a listener serves requests
// only for connections within the host: a dialer's request for another connection would wait for
// acceptTimeout.
func isHere(local, remote netip.AddrPort) bool {
	l, r := local.Addr(), remote.Addr()
	return r.IsValid() && r.Zone() == "" && (r == l || r.IsLoopback() || l.IsLoopback())
}

// IsOwn reports whether ip is an address of this host. If the addresses cannot be listed, only
// loopback addresses count.
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
