package sdp

import (
	"time"

	"golang.org/x/sys/unix"
)

func setKeepAlive(fd uintptr, on bool) error {
	v := 0
	if on {
		v = 1
	}
	return unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_KEEPALIVE, v)
}

func setKeepAlivePeriod(fd uintptr, d time.Duration) error {
	secs := max(1, int((d+time.Second-1)/time.Second))
	if err := unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, secs); err != nil {
		return err
	}
	return unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, secs)
}

// acknowledge makes the kernel send a delayed TCP ACK now (TCP_QUICKACK).
func acknowledge(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_QUICKACK, 1) }
