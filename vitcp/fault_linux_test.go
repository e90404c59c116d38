package vitcp

import (
	"io"
	"net"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"viaduct/internal/sock"
	"viaduct/vi"
)

// cut resets the TCP connection of a VI, although neither side has closed it.
func cut(v *vi.VI) {
	nc := v.Link().(*link).c.NetConn()
	if sock.Cut(nc) {
		return
	}
	raw, err := nc.(syscall.Conn).SyscallConn()
	if err != nil {
		panic(err)
	}
	raw.Control(func(fd uintptr) {
		// Connecting a connected TCP socket to AF_UNSPEC makes the kernel send a reset.
		sa := unix.RawSockaddr{Family: unix.AF_UNSPEC}
		rawConnect(fd, &sa)
	})
}

func rawConnect(fd uintptr, sa *unix.RawSockaddr) {
	unix.Syscall(unix.SYS_CONNECT, fd, uintptr(unsafe.Pointer(sa)), unix.SizeofSockaddrAny)
}

// readSpinning is io.ReadFull, but polls instead of sleeping, as the consumers of BenchmarkPingPong
// do.
func readSpinning(c net.Conn, buf []byte) error {
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		return err
	}
	var rerr error
	got := 0
	err = raw.Read(func(fd uintptr) bool {
		for got < len(buf) {
			n, err := syscall.Read(int(fd), buf[got:])
			switch {
			case err == syscall.EAGAIN || err == syscall.EINTR:
			case err != nil:
				rerr = err
				return true
			case n == 0:
				rerr = io.EOF
				return true
			default:
				got += n
			}
		}
		return true
	})
	if err != nil {
		return err
	}
	return rerr
}
