package sock

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

func setCongestion(tc *net.TCPConn, name string) error {
	raw, err := tc.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	if err := raw.Control(func(fd uintptr) {
		serr = congestion(int(fd), name)
	}); err != nil {
		return err
	}
	return serr
}

func congestion(fd int, name string) error {
	if err := unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, name); err != nil {
		return fmt.Errorf("sock: congestion control %q: %w", name, err)
	}
	return nil
}
