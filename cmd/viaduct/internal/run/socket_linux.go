//go:build linux && (amd64 || arm64)

package run

import (
	"fmt"
	"net"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"viaduct/internal/notify"
	"viaduct/internal/sock"
)

const ipprotoMPTCP = 262 // Go's listeners use it

// TCP's states, as numbered in tcp_info.
const (
	tcpEstablished = 1
	tcpClose       = 7
)

// A borrowed socket is a copy of a socket of the program, for the duration of a call. It is closed
// before the call is answered. The program may close the original descriptor right after the call,
// and expects the close of the socket, for example so that the port can be bound again.
type borrowed struct {
	fd     int
	family int
	cookie uint64
	mptcp  bool
}

// close may be called twice.
func (b *borrowed) close() {
	if b.fd >= 0 {
		unix.Close(b.fd)
		b.fd = -1
	}
}

// A notCarried error is the reason why a connection stays plain TCP. Its text completes "plain tcp:
// ".
type notCarried struct {
	why   string
	quiet bool // no line of --explain: it is no TCP connection at all
}

func (e *notCarried) Error() string { return e.why }

// borrow copies the socket of a call's first argument. The error is a *notCarried unless the socket
// is a TCP socket fit to be carried.
func (s *supervisor) borrow(c *notify.Call) (*borrowed, error) {
	if !s.spare.whole() {
		return nil, &notCarried{why: unix.EMFILE.Error()}
	}
	fd, err := c.Borrow(int(int32(c.Args[0])))
	switch err {
	case nil:
	case unix.EPERM:
		return nil, &notCarried{why: "the process can't be looked into"}
	case unix.EMFILE, unix.ENFILE: // see spare
		return nil, &notCarried{why: err.Error()}
	default:
		return nil, &notCarried{why: err.Error(), quiet: true}
	}
	b := &borrowed{fd: fd}
	if err := b.identify(s.netns); err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

func (b *borrowed) identify(netns uint64) error {
	proto, err := unix.GetsockoptInt(b.fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	if err != nil || proto != unix.IPPROTO_TCP && proto != ipprotoMPTCP {
		return &notCarried{why: "no tcp socket", quiet: true}
	}
	b.mptcp = proto == ipprotoMPTCP
	if b.family, err = unix.GetsockoptInt(b.fd, unix.SOL_SOCKET, unix.SO_DOMAIN); err != nil {
		return &notCarried{why: err.Error()}
	}
	if b.cookie, err = unix.GetsockoptUint64(b.fd, unix.SOL_SOCKET, unix.SO_COOKIE); err != nil {
		return &notCarried{why: err.Error()}
	}
	if netns != 0 {
		if n, err := unix.GetsockoptUint64(b.fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE); err == nil && n != netns {
			return &notCarried{why: "another network namespace"}
		}
	}
	return nil
}

// netnsCookie identifies our network namespace; 0 on kernels before 5.14.
func netnsCookie() uint64 {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	n, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0
	}
	return n
}

// tcpState returns the state of a TCP socket, or 0 if unknown.
func tcpState(fd int) int {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return 0
	}
	return int(info.State)
}

// hasError reports whether a socket has an unreported error.
func hasError(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd)}}
	n, err := sock.Poll(p, 0)
	return err == nil && n > 0 && p[0].Revents&unix.POLLERR != 0
}

// setMostHops sets the greatest hop limit, because sockets that accept only packets of direct
// neighbours (IP_MINTTL, IPV6_MINHOPCOUNT) require the limit.
func setMostHops(fd, family int) {
	if family == unix.AF_INET6 {
		unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, 255)
		return
	}
	unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TTL, 255)
}

// disconnect makes a socket unconnected again.
func disconnect(fd int) {
	var none unix.RawSockaddr // an address of family AF_UNSPEC
	unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&none)), unsafe.Sizeof(none))
}

func isNonblock(fd int) bool {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	return err == nil && flags&unix.O_NONBLOCK != 0
}

// withNonblock runs f while the socket has O_NONBLOCK set. The flag belongs to the program's
// socket. It is changed for the microseconds of a call.
func withNonblock(fd int, f func() error) error {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return err
	}
	if flags&unix.O_NONBLOCK != 0 {
		return f()
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags|unix.O_NONBLOCK); err != nil {
		return err
	}
	defer unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags)
	return f()
}

// toConn makes a TCP connection of a descriptor. It takes ownership of fd, even on an error.
func toConn(fd int) (*net.TCPConn, error) {
	boundNear(fd)
	f := os.NewFile(uintptr(fd), "tcp")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	tc, ok := c.(*net.TCPConn)
	if !ok {
		c.Close()
		return nil, fmt.Errorf("run: %T is no TCP connection", c)
	}
	return tc, nil
}

// A nearSocket becomes this process's end of a connection with a socket of the program. toConn
// needs a second descriptor for a moment. The nearSocket reserves the second descriptor, because
// none may be free after the program's socket is connected.
type nearSocket struct {
	fd, room int // -1 once they are closed or passed on
}

// newNear takes ownership of fd, even on an error.
func newNear(fd int) (*nearSocket, error) {
	room, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return &nearSocket{fd, room}, nil
}

// conn converts the socket to a connection. It closes the reserved descriptor.
func (n *nearSocket) conn() (*net.TCPConn, error) {
	fd := n.fd
	unix.Close(n.room)
	n.fd, n.room = -1, -1
	return toConn(fd)
}

// close may be called twice, and after conn.
func (n *nearSocket) close() {
	if n.fd >= 0 {
		unix.Close(n.fd)
		unix.Close(n.room)
		n.fd, n.room = -1, -1
	}
}

// abort closes a connection with a reset.
func abort(c net.Conn) {
	if h, ok := c.(interface{ SetLinger(int) error }); ok {
		h.SetLinger(0)
	}
	c.Close()
}

// waitFor polls a descriptor for events, at most ms milliseconds.
func waitFor(fd int, events int16, ms int) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: events}}
	n, err := sock.Poll(p, ms)
	return err == nil && n > 0
}
