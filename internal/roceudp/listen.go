package roceudp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"viaduct/internal/wire/ib"
)

// Check returns the error that Open would return for the port of addr.
func Check(addr netip.Addr) error {
	at := netip.AddrPortFrom(addr.Unmap(), ib.Port)
	c, err := listen(at, false)
	if errors.Is(err, syscall.EADDRINUSE) { // perhaps by a port that can be shared
		c, err = listen(at, true)
	}
	if err != nil {
		return err
	}
	return c.Close()
}

// Listen opens port 4791 of addr with the socket options Open uses, for this socket alone. The
// caller encodes and decodes the packets.
func Listen(addr netip.Addr) (*net.UDPConn, error) {
	c, err := listen(netip.AddrPortFrom(addr.Unmap(), ib.Port), false)
	if err != nil {
		return nil, fmt.Errorf("roceudp: port %d of %v: %w", ib.Port, addr, err)
	}
	return c, nil
}
