package iwarp

import "golang.org/x/sys/unix"

// undelivered returns how many bytes are in the send queue of a socket.
func undelivered(c controller) (n int) {
	_ = c.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
	return n
}
