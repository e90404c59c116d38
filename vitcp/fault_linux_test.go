package vitcp

import (
	"net"
	"unsafe"

	"golang.org/x/sys/unix"
)

func rawConnect(fd uintptr, sa *unix.RawSockaddr) {
	unix.Syscall(unix.SYS_CONNECT, fd, uintptr(unsafe.Pointer(sa)), unix.SizeofSockaddrAny)
}

// hideDescriptor takes the descriptor away from a connection, so that the
// portable path is used.
func hideDescriptor(c net.Conn) net.Conn { return struct{ net.Conn }{c} }
