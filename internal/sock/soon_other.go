//go:build !linux

package sock

import "net"

type reading struct{}

var plainly reading

func readSoon(net.Conn, []byte, reading) (int, error, bool) {
	return 0, nil, false
}

// PeekSoon is not supported here: ok is false.
func PeekSoon(net.Conn, []byte, int) (n int, err error, ok bool) { return 0, nil, false }
