//go:build !linux

package roceudp

import (
	"errors"
	"net"
	"net/netip"
)

// joinGroup is not written for this system.
func joinGroup(netip.Addr, netip.AddrPort) (*net.UDPConn, error) {
	return nil, errors.ErrUnsupported
}
