package sdp

import (
	"net"
	"net/netip"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// reuse lets the connection's socket use the address held by reserve.
func reuse(_, _ string, raw syscall.RawConn) (err error) {
	cerr := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	})
	if cerr != nil {
		return cerr
	}
	return err
}

// reserve binds the local address of a later connection to service, because the request to the Port
// Mapper names the connection's port. No other program gets the port until release is called. With
// NoCpPort, reserve binds nothing, and local is zero. [D-57] [D-58] [SDP-7.5.1-6]
func (d *Dialer) reserve(service netip.AddrPort) (local netip.AddrPort, release func(), err error) {
	release = func() {}
	if d.NoCpPort {
		return local, release, nil
	}
	ip := netip.Addr{}
	port := uint16(0)
	if la, _ := d.Net.LocalAddr.(*net.TCPAddr); la != nil {
		ap := la.AddrPort()
		ip, port = ap.Addr().Unmap(), ap.Port()
	}
	if !ip.IsValid() || ip.IsUnspecified() {
		// Connecting a UDP socket sends nothing, and shows the address chosen by the routing table.
		uc, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(service))
		if err != nil {
			return local, release, err
		}
		ip = uc.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
		uc.Close()
	}
	family := unix.AF_INET
	if ip.Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return local, release, err
	}
	release = sync.OnceFunc(func() { unix.Close(fd) })
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		release()
		return local, release, err
	}
	var sa unix.Sockaddr
	if ip.Is4() {
		sa = &unix.SockaddrInet4{Port: int(port), Addr: ip.As4()}
	} else {
		s6 := &unix.SockaddrInet6{Port: int(port), Addr: ip.As16()}
		if z := ip.Zone(); z != "" {
			if ifi, err := net.InterfaceByName(z); err == nil {
				s6.ZoneId = uint32(ifi.Index)
			}
		}
		sa = s6
	}
	if err := unix.Bind(fd, sa); err != nil {
		release()
		return local, release, &net.OpError{Op: "bind", Net: "tcp", Err: err}
	}
	got, err := unix.Getsockname(fd)
	if err != nil {
		release()
		return local, release, err
	}
	switch sa := got.(type) {
	case *unix.SockaddrInet4:
		port = uint16(sa.Port)
	case *unix.SockaddrInet6:
		port = uint16(sa.Port)
	}
	return netip.AddrPortFrom(ip, port), release, nil
}
