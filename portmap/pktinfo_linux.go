package portmap

import (
	"encoding/binary"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// oobLen is the room in bytes for a control message of either family.
const oobLen = 128

// wantDestination makes the kernel report the destination address of each datagram. The answer must
// come from the same address. On a socket bound to every address, the routing table might choose
// another address.
func wantDestination(c *net.UDPConn, bound net.IP) error {
	rc, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	err = rc.Control(func(fd uintptr) {
		sa, err := unix.Getsockname(int(fd))
		if err != nil {
			serr = err
			return
		}
		level, option := unix.IPPROTO_IP, unix.IP_PKTINFO
		if _, is6 := sa.(*unix.SockaddrInet6); is6 { // also reports the destination of mapped IPv4
			level, option = unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO // [SDP-7.4-15]
		}
		serr = unix.SetsockoptInt(int(fd), level, option, 1) // [SDP-7.4-15]
	})
	if err != nil {
		return err
	}
	return serr
}

// replyFrom returns the control message for the answer to a datagram with control message oob, or
// nil if oob names no destination. [SDP-7.4-15] [SDP-7.4-34]
func replyFrom(oob []byte) []byte {
	msgs, _ := unix.ParseSocketControlMessage(oob) // nil if the message is incomplete
	for _, m := range msgs {
		switch {
		case m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_PKTINFO &&
			len(m.Data) >= unix.SizeofInet4Pktinfo:
			// The fields of struct in_pktinfo are ifindex, spec_dst (where the datagram arrived)
			// and addr. The routing table chooses the interface.
			return unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: [4]byte(m.Data[4:])})
		case m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_PKTINFO &&
			len(m.Data) >= unix.SizeofInet6Pktinfo:
			info := &unix.Inet6Pktinfo{Addr: [16]byte(m.Data)}
			if ip := net.IP(m.Data[:16]); ip.IsLinkLocalUnicast() {
				info.Ifindex = binary.NativeEndian.Uint32(m.Data[16:])
			}
			return unix.PktInfo6(info)
		}
	}
	return nil
}

// destination returns the address to which a datagram with control message oob was sent, or the
// zero Addr if oob names no address.
func destination(oob []byte) netip.Addr {
	msgs, _ := unix.ParseSocketControlMessage(oob)
	for _, m := range msgs {
		switch {
		case m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_PKTINFO &&
			len(m.Data) >= unix.SizeofInet4Pktinfo:
			return netip.AddrFrom4([4]byte(m.Data[8:]))
		case m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_PKTINFO &&
			len(m.Data) >= unix.SizeofInet6Pktinfo:
			return netip.AddrFrom16([16]byte(m.Data)).Unmap()
		}
	}
	return netip.Addr{}
}
