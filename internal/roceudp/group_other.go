//go:build !linux

package roceudp

import (
	"errors"
	"net"
	"net/netip"
)

// joinGroup returns errors.ErrUnsupported: it is only written for Linux.
func joinGroup(netip.Addr, netip.AddrPort) (*net.UDPConn, error) {
	return nil, errors.ErrUnsupported
}
