//go:build !linux

package frameio

import "net"

func readSoon(net.Conn, []byte, bool) (int, error, bool) { return 0, nil, false }
