package sockdiag

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// A Conn is a netlink socket for queries to the kernel's socket monitor. The answers are about the
// network namespace of the thread that called Open. A Conn serves one caller at a time.
type Conn struct {
	fd  int
	seq uint32 // sequence number of the last request
}

// Open opens a Conn, which the caller closes.
func Open() (*Conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	return &Conn{fd: fd}, nil
}

// Close closes the netlink socket.
func (c *Conn) Close() error { return unix.Close(c.fd) }

// soNetnsCookie is SO_NETNS_COOKIE, of Linux 5.14.
const soNetnsCookie = 71

// Namespace returns the number of the network namespace of a socket. No other namespace has the
// same number until the next boot. Linux before 5.14 returns an error.
func Namespace(fd int) (cookie uint64, err error) {
	return unix.GetsockoptUint64(fd, unix.SOL_SOCKET, soNetnsCookie)
}

// Namespace returns the number of the network namespace that the answers are about.
func (c *Conn) Namespace() (cookie uint64, err error) { return Namespace(c.fd) }

const (
	byFamily      = 20 // SOCK_DIAG_BY_FAMILY, the type of all requests and answers
	tcpRequestLen = 56 // struct inet_diag_req_v2
	tcpMessageLen = 72 // struct inet_diag_msg
)

// tcpRequest fills in the request about the TCP sockets of a family in the states of a mask.
func tcpRequest(r []byte, family byte, states uint32) {
	r[0], r[1] = family, unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(r[4:], states)
}

// send sends a request with a new sequence number.
func (c *Conn) send(request []byte, flags uint16) error {
	var b [unix.NLMSG_HDRLEN + tcpRequestLen]byte // the longest request
	n := unix.NLMSG_HDRLEN + copy(b[unix.NLMSG_HDRLEN:], request)
	c.seq++
	binary.NativeEndian.PutUint32(b[0:], uint32(n))
	binary.NativeEndian.PutUint16(b[4:], byFamily)
	binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST|flags)
	binary.NativeEndian.PutUint32(b[8:], c.seq)
	err := unix.Sendto(c.fd, b[:n], 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	return os.NewSyscallError("sendto", err)
}

// Find returns the TCP socket of the connection from local to remote. The error is ENOENT if there
// is none.
func (c *Conn) Find(local, remote netip.AddrPort) (s TCPSocket, err error) {
	var r [tcpRequestLen]byte
	tcpRequest(r[:], family(local.Addr()), ^uint32(0))
	binary.BigEndian.PutUint16(r[8:], local.Port())
	binary.BigEndian.PutUint16(r[10:], remote.Port())
	copy(r[12:28], local.Addr().AsSlice())
	copy(r[28:44], remote.Addr().AsSlice())
	for i := 48; i < 56; i++ {
		r[i] = 0xff // any cookie
	}
	if err := c.send(r[:], 0); err != nil {
		return s, err
	}
	var got [1024]byte
	n, _, err := unix.Recvfrom(c.fd, got[:], unix.MSG_DONTWAIT) // the kernel has answered by now
	if err != nil {
		return s, os.NewSyscallError("recvfrom", err)
	}
	if n < unix.NLMSG_HDRLEN+4 {
		return s, errors.New("sockdiag: short answer")
	}
	if binary.NativeEndian.Uint32(got[8:]) != c.seq {
		return s, errors.New("sockdiag: answer to another request")
	}
	m := got[unix.NLMSG_HDRLEN:n]
	switch binary.NativeEndian.Uint16(got[4:]) {
	case unix.NLMSG_ERROR:
		return s, unix.Errno(-int32(binary.NativeEndian.Uint32(m)))
	case byFamily:
	default:
		return s, errors.New("sockdiag: strange answer")
	}
	if len(m) < tcpMessageLen {
		return s, errors.New("sockdiag: short answer")
	}
	if binary.BigEndian.Uint16(m[4:]) != local.Port() || binary.BigEndian.Uint16(m[6:]) != remote.Port() {
		return s, unix.ENOENT // the kernel shows the listener that would take such a connection
	}
	return TCPSocket{state: m[1], uid: binary.NativeEndian.Uint32(m[64:]), inode: binary.NativeEndian.Uint32(m[68:])},
		nil
}

// dump sends a request, and calls each for every socket that matches the request.
func (c *Conn) dump(request []byte, each func(message []byte)) error {
	if err := c.send(request, unix.NLM_F_DUMP); err != nil {
		return err
	}
	buf := make([]byte, 64<<10)
	for {
		n, _, err := unix.Recvfrom(c.fd, buf, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return os.NewSyscallError("recvfrom", err)
		}
		ms, err := syscall.ParseNetlinkMessage(buf[:n])
		if err != nil {
			return err
		}
		for _, m := range ms {
			switch m.Header.Type {
			case unix.NLMSG_DONE:
				return nil
			case unix.NLMSG_ERROR:
				return errors.New("sockdiag: the kernel's socket monitor refuses")
			case byFamily:
				each(m.Data)
			}
		}
	}
}
