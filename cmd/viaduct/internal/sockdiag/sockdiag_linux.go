package sockdiag

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// sockDiagByFamily is the one request of the kernel's socket monitor.
const sockDiagByFamily = 20

// TCP's states, as the kernel numbers them.
const (
	tcpSynRecv = 3
	tcpListen  = 10
)

// A Listener is a TCP socket that listens.
type Listener struct {
	Addr netip.Addr
	UID  int // of the user who made it
}

// Listeners returns the TCP sockets that listen at a port.
func Listeners(port uint16) (found []Listener, err error) {
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		// struct inet_diag_req_v2
		req := make([]byte, 56)
		req[0], req[1] = family, unix.IPPROTO_TCP
		binary.NativeEndian.PutUint32(req[4:], 1<<tcpListen)
		binary.BigEndian.PutUint16(req[8:], port)
		err := diag(req, func(m []byte) {
			if len(m) < 68 || binary.BigEndian.Uint16(m[4:]) != port { // struct inet_diag_msg
				return
			}
			l := Listener{netip.AddrFrom4([4]byte(m[8:12])), int(binary.NativeEndian.Uint32(m[64:]))}
			if family == unix.AF_INET6 {
				l.Addr = netip.AddrFrom16([16]byte(m[8:24])).Unmap()
			}
			found = append(found, l)
		})
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

// Owners returns the users whose TCP sockets listen at a port, once for each socket.
func Owners(port uint16) (uids []int, err error) {
	all, err := Listeners(port)
	for _, l := range all {
		uids = append(uids, l.UID)
	}
	return uids, err
}

// A ServerEnd is the listener's end of a TCP connection within this host, as the kernel's
// socket monitor shows it.
type ServerEnd struct {
	state byte
	inode uint32 // of its file; 0 until an accept call has made one
}

// Accepted reports whether the connection has left the queue of its listener.
func (e ServerEnd) Accepted() bool { return e.inode != 0 }

// Deferred reports whether the kernel keeps the connection from the listener's queue until
// bytes come, as TCP_DEFER_ACCEPT wants it, or until a full queue has room.
func (e ServerEnd) Deferred() bool { return e.state == tcpSynRecv }

// FindServerEnd finds the end of a connection whose address is local. The zero value stands
// for a connection that is not there, or a kernel that does not tell.
func FindServerEnd(local, remote netip.AddrPort) (e ServerEnd) {
	req := make([]byte, 56) // struct inet_diag_req_v2
	req[0], req[1] = family(local.Addr()), unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(req[4:], ^uint32(0))
	binary.BigEndian.PutUint16(req[8:], local.Port())
	binary.BigEndian.PutUint16(req[10:], remote.Port())
	copy(req[12:28], local.Addr().AsSlice())
	copy(req[28:44], remote.Addr().AsSlice())
	for i := 48; i < 56; i++ { // any cookie
		req[i] = 0xff
	}
	diagOne(req, func(m []byte) {
		if len(m) >= 72 { // struct inet_diag_msg
			e = ServerEnd{state: m[1], inode: binary.NativeEndian.Uint32(m[68:])}
		}
	})
	return e
}

func family(a netip.Addr) byte {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// UnixSockets returns the cookies of all unix sockets.
func UnixSockets() (map[uint64]bool, error) {
	all := map[uint64]bool{}
	// struct unix_diag_req
	req := make([]byte, 24)
	req[0] = unix.AF_UNIX
	binary.NativeEndian.PutUint32(req[4:], ^uint32(0))
	err := diag(req, func(m []byte) {
		if len(m) >= 16 { // struct unix_diag_msg
			all[uint64(binary.NativeEndian.Uint32(m[8:]))|uint64(binary.NativeEndian.Uint32(m[12:]))<<32] = true
		}
	})
	return all, err
}

// diag asks the kernel's socket monitor for all sockets that a request covers,
// diagOne for the one that it names.
func diag(req []byte, each func(msg []byte)) error { return askDiag(req, unix.NLM_F_DUMP, each) }

func diagOne(req []byte, each func(msg []byte)) error { return askDiag(req, 0, each) }

func askDiag(req []byte, flags uint16, each func(msg []byte)) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	b := make([]byte, unix.SizeofNlMsghdr, unix.SizeofNlMsghdr+len(req))
	ne := binary.NativeEndian
	ne.PutUint32(b[0:], uint32(len(b)+len(req)))
	ne.PutUint16(b[4:], sockDiagByFamily)
	ne.PutUint16(b[6:], unix.NLM_F_REQUEST|flags)
	if err := unix.Sendto(fd, append(b, req...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	buf := make([]byte, 64<<10)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
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
			case sockDiagByFamily:
				each(m.Data)
				if flags&unix.NLM_F_DUMP == 0 {
					return nil
				}
			}
		}
	}
}
