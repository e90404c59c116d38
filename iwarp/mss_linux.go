package iwarp

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"

	"viaduct/iwarp/mpa"
)

// segmentSize returns the payload in bytes that a TCP segment of the connection
// carries now. [MPA-5.1-1] [I-27]
func segmentSize(c net.Conn) int {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return usualSegment(c)
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return usualSegment(c)
	}
	size := 0
	raw.Control(func(fd uintptr) {
		if ti, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			size = int(ti.Snd_mss)
		} else if m, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG); err == nil {
			size = m
		}
	})
	if size < mpa.MinMULPDU {
		if size > 0 {
			return mpa.MinMULPDU
		}
		return usualSegment(c)
	}
	return size
}
