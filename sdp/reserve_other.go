//go:build !linux

package sdp

import (
	"net"
	"net/netip"
	"syscall"
)

func reuse(string, string, syscall.RawConn) error { return nil }

// reserve returns the local address the caller fixed, or port 0 if the caller fixed none, because
// this system cannot bind sockets in advance. [D-57]
func (d *Dialer) reserve(netip.AddrPort) (local netip.AddrPort, release func(), err error) {
	if la, ok := d.Net.LocalAddr.(*net.TCPAddr); ok && la != nil {
		local = la.AddrPort()
	}
	if d.NoCpPort { // the connection is bound to the port even so
		local = netip.AddrPortFrom(local.Addr(), 0)
	}
	return local, func() {}, nil
}
