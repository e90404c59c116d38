package roceudp

import "golang.org/x/sys/unix"

// readRaw reads a packet with its IP header into b and returns its length, or 0 if there is none.
func readRaw(fd uintptr, b []byte) int {
	n, _, err := unix.Recvfrom(int(fd), b, unix.MSG_DONTWAIT)
	if err != nil {
		return 0
	}
	return n
}

// withoutChecksum makes a socket send UDP over IPv6 without a checksum.
func withoutChecksum(fd uintptr) error {
	return unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_TX, 1)
}
