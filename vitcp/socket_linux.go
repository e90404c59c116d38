package vitcp

import (
	"net"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// setUserTimeout sets TCP_USER_TIMEOUT. It does nothing if nc is no socket.
func setUserTimeout(nc net.Conn, d time.Duration) error {
	return control(nc, func(fd int) error {
		return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(max(1, d.Milliseconds())))
	})
}

// maxSegmentSize returns the maximum payload of a TCP segment of the connection in bytes, or 0 if
// unknown.
func maxSegmentSize(nc net.Conn) int {
	mss := 0
	control(nc, func(fd int) (err error) {
		mss, err = unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_MAXSEG)
		return err
	})
	return mss
}

// latePort makes the system choose the local port when it knows both addresses. A port chosen by
// bind must differ from the ports of all connections, even of connections ended less than a minute
// ago. After some ten thousand connections a free port takes milliseconds to find, and finally
// there is none. A system without the option chooses the port at bind.
func latePort(_, _ string, raw syscall.RawConn) error {
	return raw.Control(func(fd uintptr) {
		unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
	})
}

func control(nc net.Conn, f func(fd int) error) error {
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return err
	}
	var ferr error
	if err := raw.Control(func(fd uintptr) { ferr = f(int(fd)) }); err != nil {
		return err
	}
	return ferr
}

// hungUp checks, without waiting, a connection on which no bytes are expected. It reports whether
// the peer has ended the connection, and whether the peer has sent bytes. Both are false if nc is
// no socket.
func hungUp(nc net.Conn) (ended, sent bool) {
	control(nc, func(fd int) error {
		var b [1]byte
		n, _, err := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&b)),
			1, unix.MSG_PEEK|unix.MSG_DONTWAIT, 0, 0)
		sent = err == 0 && n > 0
		ended = err == 0 && n == 0 || err != 0 && err != unix.EAGAIN && err != unix.EINTR
		return nil
	})
	return ended, sent
}
