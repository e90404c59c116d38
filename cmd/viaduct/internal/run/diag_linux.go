//go:build linux && (amd64 || arm64)

package run

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// sockDiagByFamily is the one request of the kernel's socket monitor.
const sockDiagByFamily = 20

// portListeners asks the kernel for the addresses of the TCP sockets that listen
// at a port.
func portListeners(port uint16) (found []netip.Addr, err error) {
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		// struct inet_diag_req_v2
		req := make([]byte, 56)
		req[0], req[1] = family, unix.IPPROTO_TCP
		binary.NativeEndian.PutUint32(req[4:], 1<<tcpListen)
		binary.BigEndian.PutUint16(req[8:], port)
		err := diag(req, func(m []byte) {
			if len(m) < 24 || binary.BigEndian.Uint16(m[4:]) != port { // struct inet_diag_msg
				return
			}
			if family == unix.AF_INET {
				found = append(found, netip.AddrFrom4([4]byte(m[8:12])))
			} else {
				found = append(found, netip.AddrFrom16([16]byte(m[8:24])).Unmap())
			}
		})
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

// A serverEnd is the listener's end of a TCP connection within this host, as the kernel's
// socket monitor shows it.
type serverEnd struct {
	state byte
	inode uint32 // of its file; 0 until an accept call has made one
}

// accepted reports whether the connection has left the queue of its listener.
func (e serverEnd) accepted() bool { return e.inode != 0 }

// deferred reports whether the kernel keeps the connection from the listener's queue until
// bytes come, as TCP_DEFER_ACCEPT wants it, or until a full queue has room.
func (e serverEnd) deferred() bool { return e.state == tcpSynRecv }

// findServerEnd finds the end of a connection whose address is local. The zero value stands
// for a connection that is not there, or a kernel that does not tell.
func findServerEnd(local, remote netip.AddrPort) (e serverEnd) {
	req := make([]byte, 56) // struct inet_diag_req_v2
	req[0], req[1] = byte(familyOf(local.Addr())), unix.IPPROTO_TCP
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
			e = serverEnd{state: m[1], inode: binary.NativeEndian.Uint32(m[68:])}
		}
	})
	return e
}

// unixSockets returns the cookies of all unix sockets.
func unixSockets() (map[uint64]bool, error) {
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
				return fmt.Errorf("run: the kernel's socket monitor refuses")
			case sockDiagByFamily:
				each(m.Data)
				if flags&unix.NLM_F_DUMP == 0 {
					return nil
				}
			}
		}
	}
}
