//go:build linux && (amd64 || arm64)

package rdma

import (
	"net"
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"
)

// In this file, the zone of an address is the number of the interface, as in a sockaddr, instead of
// the name.

// sockaddr returns an address in the form for the kernel's calls.
func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	scope, _ := strconv.ParseUint(a.Addr().Zone(), 10, 32)
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16(), ZoneId: uint32(scope)}
}

func addrPort(sa unix.Sockaddr) netip.AddrPort {
	switch a := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		ip := netip.AddrFrom16(a.Addr)
		if a.ZoneId != 0 {
			ip = ip.WithZone(strconv.FormatUint(uint64(a.ZoneId), 10))
		}
		return netip.AddrPortFrom(ip, uint16(a.Port))
	}
	return netip.AddrPort{}
}

// addrOf returns the address of an end of a TCP connection, with the zone as a number. If the
// interface no longer exists, the name stays.
func addrOf(end net.Addr) netip.AddrPort {
	a := end.(*net.TCPAddr).AddrPort()
	ip := a.Addr().Unmap()
	if name := ip.Zone(); name != "" {
		if n, err := net.InterfaceByName(name); err == nil {
			ip = ip.WithZone(strconv.Itoa(n.Index))
		}
	}
	return netip.AddrPortFrom(ip, a.Port())
}
