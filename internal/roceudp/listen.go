package roceudp

import (
	"fmt"
	"net"
	"net/netip"

	"viaduct/internal/wire/ib"
)

// Listen opens port 4791 of addr with the socket options Open uses. The caller encodes and decodes
// the packets.
func Listen(addr netip.Addr) (*net.UDPConn, error) {
	c, err := listen(netip.AddrPortFrom(addr.Unmap(), ib.Port))
	if err != nil {
		return nil, fmt.Errorf("roceudp: port %d of %v: %w", ib.Port, addr, err)
	}
	return c, nil
}
