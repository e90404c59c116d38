package iwarp

import "golang.org/x/sys/unix"

// undelivered returns the number of bytes in the send queue of a socket, or 0 if unknown.
func undelivered(c controller) (n int) {
	_ = c.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
	return n
}
