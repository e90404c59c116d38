//go:build !linux

package sdp

import (
	"net"
	"net/netip"
	"syscall"
)

func reuse(string, string, syscall.RawConn) error { return nil }

// reserve returns the local address the caller fixed; the port is left open
// where sockets can't be bound ahead of time. [D-57]
func (d *Dialer) reserve(netip.AddrPort) (local netip.AddrPort, release func(), err error) {
	if la, ok := d.Net.LocalAddr.(*net.TCPAddr); ok && la != nil {
		local = la.AddrPort()
	}
	if d.NoCpPort { // the connection is bound to it nevertheless
		local = netip.AddrPortFrom(local.Addr(), 0)
	}
	return local, func() {}, nil
}
