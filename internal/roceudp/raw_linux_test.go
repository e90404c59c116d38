package roceudp

import "golang.org/x/sys/unix"

// readRaw reads a packet with its IP header, if there is one.
func readRaw(fd uintptr, b []byte) int {
	n, _, err := unix.Recvfrom(int(fd), b, unix.MSG_DONTWAIT)
	if err != nil {
		return 0
	}
	return n
}
