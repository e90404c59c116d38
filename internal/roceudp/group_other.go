//go:build !linux

package roceudp

import (
	"errors"
	"net"
	"net/netip"
)

// joinGroup returns errors.ErrUnsupported, because groups are implemented for Linux only.
func joinGroup(netip.Addr, netip.AddrPort) (*net.UDPConn, error) {
	return nil, errors.ErrUnsupported
}
