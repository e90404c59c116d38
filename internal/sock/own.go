package sock

import (
	"net"
	"net/netip"
	"slices"
)

// Near reports whether the other end of nc is known to be on this host.
func Near(nc net.Conn) bool { return addressedHere(nc) || PathOf(nc).SharedMemory }

// addressedHere reports whether the addresses of nc are those of one host.
func addressedHere(nc net.Conn) bool {
	return isHere(addrPort(nc.LocalAddr()), addrPort(nc.RemoteAddr()))
}

// perHost bounds the set-ups in progress of another host. [D-17] [I-70]
const perHost = 32

// PendingPerHost is how many set-ups of the host of nc a listener may have in progress: set,
// unless that is 0; else as many as it may have in all if that is this host, whose programs
// share one address, and 32 if it is another one.
func PendingPerHost(nc net.Conn, set, all int) int {
	switch {
	case set > 0:
		return set
	case addressedHere(nc):
		return all
	}
	return perHost
}

// addrPort returns the address of a TCP socket.
func addrPort(a net.Addr) netip.AddrPort {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	ap := t.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

// isHere reports whether a connection may be one within this host. One that is, and
// is not found to be here, goes between two addresses that other hosts may have. Both
// ends find the same: a dialer that asks in vain waits for acceptTimeout.
func isHere(local, remote netip.AddrPort) bool {
	l, r := local.Addr(), remote.Addr()
	return r.IsValid() && r.Zone() == "" && (r == l || r.IsLoopback() || l.IsLoopback())
}

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
