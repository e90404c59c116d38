//go:build !linux

package sock

import "net"

func read(int, []byte) (int, error) { return 0, ErrWouldBlock }

func readSoon(net.Conn, []byte, func(int, []byte) (int, error)) (int, error, bool) {
	return 0, nil, false
}

// PeekSoon is not possible here.
func PeekSoon(net.Conn, []byte, int) (n int, err error, ok bool) { return 0, nil, false }
