package transport

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// congestionControl returns a hook that sets the congestion control algorithm on a new socket. For
// the system's default, "", congestionControl returns nil.
func congestionControl(name string) func(network, address string, c syscall.RawConn) error {
	if name == "" {
		return nil
	}
	return func(_, _ string, c syscall.RawConn) error {
		var serr error
		err := c.Control(func(fd uintptr) {
			serr = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, name)
		})
		if err == nil && serr != nil {
			err = fmt.Errorf("congestion control %q: %w", name, serr)
		}
		return err
	}
}
