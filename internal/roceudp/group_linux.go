package roceudp

import (
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// joinGroup opens a socket that receives packets to the group at through the network interface that
// has the address own. Package net would bind the socket to all addresses, which fails while
// sockets of ports are bound.
func joinGroup(own netip.Addr, at netip.AddrPort) (*net.UDPConn, error) {
	index, err := interfaceOf(own)
	if err != nil {
		return nil, err
	}
	family := unix.AF_INET6
	if at.Addr().Is4() {
		family = unix.AF_INET
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	f := os.NewFile(uintptr(fd), "group "+at.String())
	defer f.Close() // net.FileConn duplicates the descriptor
	if err := joinOn(fd, index, at); err != nil {
		return nil, err
	}
	c, err := net.FilePacketConn(f)
	if err != nil {
		return nil, err
	}
	return c.(*net.UDPConn), nil
}

func joinOn(fd, index int, at netip.AddrPort) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, bufferLen)
	if at.Addr().Is4() {
		if err := unix.Bind(fd, &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}); err != nil {
			return os.NewSyscallError("bind", err)
		}
		// By default, the socket would also receive groups joined by other sockets of the host.
		unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MULTICAST_ALL, 0)
		m := unix.IPMreqn{Multiaddr: at.Addr().As4(), Ifindex: int32(index)}
		return os.NewSyscallError("setsockopt", unix.SetsockoptIPMreqn(fd, unix.IPPROTO_IP, unix.IP_ADD_MEMBERSHIP, &m))
	}
	unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_RX, 1)
	if err := unix.Bind(fd, &unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16(), ZoneId: uint32(index)}); err != nil {
		return os.NewSyscallError("bind", err)
	}
	m := unix.IPv6Mreq{Multiaddr: at.Addr().As16(), Interface: uint32(index)}
	return os.NewSyscallError("setsockopt", unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP, &m))
}

// interfaceOf returns the index of the network interface that has the address a. Any loopback
// address belongs to the loopback interface.
func interfaceOf(a netip.Addr) (index int, err error) {
	all, err := net.Interfaces()
	if err != nil {
		return 0, err
	}
	for i := range all {
		if a.IsLoopback() && all[i].Flags&net.FlagLoopback != 0 {
			return all[i].Index, nil
		}
		addrs, err := all[i].Addrs()
		if err != nil {
			continue
		}
		for _, x := range addrs {
			if n, ok := x.(*net.IPNet); ok && n.IP.Equal(a.AsSlice()) {
				return all[i].Index, nil
			}
		}
	}
	return 0, &net.AddrError{Err: "no interface has the address", Addr: a.String()}
}
