//go:build linux && (amd64 || arm64)

package run

import (
	"encoding/binary"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// sockDiagByFamily is the one request of the kernel's socket monitor.
const sockDiagByFamily = 20

// portListens asks the kernel whether a TCP socket listens at a port.
func portListens(port uint16) (bool, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		found, err := listens(fd, family, port)
		if err != nil || found {
			return found, err
		}
	}
	return false, nil
}

func listens(fd int, family byte, port uint16) (found bool, err error) {
	// struct nlmsghdr and struct inet_diag_req_v2
	const length = unix.SizeofNlMsghdr + 56
	b := make([]byte, length)
	ne := binary.NativeEndian
	ne.PutUint32(b[0:], length)
	ne.PutUint16(b[4:], sockDiagByFamily)
	ne.PutUint16(b[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	b[16], b[17] = family, unix.IPPROTO_TCP
	ne.PutUint32(b[20:], 1<<tcpListen)
	binary.BigEndian.PutUint16(b[24:], port)
	if err := unix.Sendto(fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return false, err
	}
	buf := make([]byte, 64<<10)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return false, err
		}
		ms, err := syscall.ParseNetlinkMessage(buf[:n])
		if err != nil {
			return false, err
		}
		for _, m := range ms {
			switch m.Header.Type {
			case unix.NLMSG_DONE:
				return found, nil
			case unix.NLMSG_ERROR:
				return false, fmt.Errorf("run: the kernel's socket monitor refuses")
			case sockDiagByFamily:
				if len(m.Data) >= 6 && binary.BigEndian.Uint16(m.Data[4:]) == port {
					found = true
				}
			}
		}
	}
}
