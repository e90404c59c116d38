//go:build !linux

package portmap

import (
	"net"
	"net/netip"
)

const oobLen = 0

// wantDestination does nothing. On this system the routing table chooses the source address of an
// answer, so on a host with several addresses bind the server to a single address.
func wantDestination(*net.UDPConn, net.IP) error { return nil }

func replyFrom([]byte) []byte { return nil }

func destination([]byte) netip.Addr { return netip.Addr{} }
