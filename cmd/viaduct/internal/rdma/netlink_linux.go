//go:build linux && (amd64 || arm64)

package rdma

import (
	"errors"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
	"viaduct/internal/notify"
)

// socket installs a netlink socket in the program, instead of RDMA's. The family of the socket
// exists in every kernel. The kernel serves bind, receive and poll. Only sent messages are
// intercepted, and answered by unicast.
func (s *Service) socket(c *notify.Call) {
	const flags = unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|int(c.Args[1])&flags, unix.NETLINK_USERSOCK)
	if err != nil {
		c.Return(0, errnoOf(err))
		return
	}
	defer unix.Close(fd)
	s.place(c, fd, int(c.Args[1])&unix.SOCK_CLOEXEC)
}

// netlink answers a message sent on a socket of the reserved range. Other files there are left to
// the kernel.
func (s *Service) netlink(c *notify.Call) {
	fd, err := c.Borrow(int(int32(c.Args[0])))
	if err != nil {
		c.Continue()
		return
	}
	defer unix.Close(fd)
	domain, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	proto, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	if domain != unix.AF_NETLINK || proto != unix.NETLINK_USERSOCK {
		c.Continue()
		return
	}
	b, err := sent(c)
	if err != nil {
		c.Return(0, errnoOf(err))
		return
	}
	pid, err := portID(fd)
	if err == nil {
		err = s.answerNetlink(b, pid)
	}
	if err != nil {
		c.Return(0, errnoOf(err))
		return
	}
	c.Return(int64(len(b)), 0)
}

// maxNetlink is the length of the longest message. A longer message is cut (sendto) or refused
// (sendmsg).
const maxNetlink = 16 << 10

// sent reads the message of a sendto or sendmsg.
func sent(c *notify.Call) ([]byte, error) {
	if c.Nr == unix.SYS_SENDTO {
		b := make([]byte, min(c.Args[2], maxNetlink))
		_, err := c.ReadMem(c.Args[1], b)
		return b, err
	}
	h := make(abi.Body, 56)
	if _, err := c.ReadMem(c.Args[1], h); err != nil {
		return nil, unix.EFAULT
	}
	vec := make(abi.Body, 16*min(h.U64(24), 16))
	if _, err := c.ReadMem(h.U64(16), vec); err != nil {
		return nil, unix.EFAULT
	}
	var out []byte
	for at := 0; at < len(vec); at += 16 {
		n := vec.U64(at + 8)
		if n > maxNetlink || len(out)+int(n) > maxNetlink {
			return nil, unix.EMSGSIZE
		}
		p := make([]byte, n)
		if _, err := c.ReadMem(vec.U64(at), p); err != nil {
			return nil, unix.EFAULT
		}
		out = append(out, p...)
	}
	return out, nil
}

// portID returns the address of the program's socket. If the socket has none, portID binds the
// socket, as the kernel does at the first send.
func portID(fd int) (uint32, error) {
	for range 2 {
		sa, err := unix.Getsockname(fd)
		if err != nil {
			return 0, err
		}
		nl, ok := sa.(*unix.SockaddrNetlink)
		if !ok {
			return 0, errors.ErrUnsupported
		}
		if nl.Pid != 0 {
			return nl.Pid, nil
		}
		if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
			return 0, err
		}
	}
	return 0, unix.EINVAL
}

func (s *Service) answerNetlink(b []byte, pid uint32) error {
	out, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_USERSOCK)
	if err != nil {
		return err
	}
	defer unix.Close(out)
	found := make([]abi.Found, len(s.devices))
	for i, d := range s.devices {
		found[i] = d.found
	}
	for _, m := range abi.AnswerNetlink(b, pid, found) {
		if err := unix.Sendto(out, m, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: pid}); err != nil {
			return err
		}
	}
	return nil
}
