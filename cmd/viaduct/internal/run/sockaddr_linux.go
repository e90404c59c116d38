//go:build linux && (amd64 || arm64)

package run

import (
	"encoding/binary"
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"
)

// The lengths of socket addresses. The kernel accepts an IPv6 address without the scope.
const (
	lenInet      = 16
	lenInet6     = 28
	lenInet6Free = 24
	lenStorage   = 128 // length of struct sockaddr_storage: the kernel rejects longer addresses
)

// A target is the address of a connect call.
type target struct {
	addr   netip.AddrPort // an unspecified address is replaced by loopback, as the kernel does
	family int            // family of the structure: an IPv6 structure may hold an IPv4 address
	any    bool           // the program passed the unspecified address
}

// parseSockaddr parses a socket address like the kernel. ok is false for families other than IPv4
// and IPv6, and for truncated addresses.
func parseSockaddr(b []byte) (t target, ok bool) {
	if len(b) < lenInet {
		return t, false
	}
	t.family = int(binary.NativeEndian.Uint16(b))
	var ip netip.Addr
	switch t.family {
	case unix.AF_INET:
		ip = netip.AddrFrom4([4]byte(b[4:8]))
	case unix.AF_INET6:
		if len(b) < lenInet6Free {
			return t, false
		}
		ip = netip.AddrFrom16([16]byte(b[8:24]))
		if ip.IsLinkLocalUnicast() && len(b) >= lenInet6 {
			if scope := binary.NativeEndian.Uint32(b[24:]); scope != 0 {
				ip = ip.WithZone(strconv.FormatUint(uint64(scope), 10))
			}
		}
		ip = ip.Unmap()
	default:
		return t, false
	}
	if t.any = ip.IsUnspecified(); t.any {
		ip = loopbackOf(familyOf(ip))
	}
	t.addr = netip.AddrPortFrom(ip, binary.BigEndian.Uint16(b[2:]))
	return t, true
}

// refusedBy reports whether the kernel would refuse at once to connect a socket to t, whatever
// listens there. Such a connect must not be carried. bound is the address the socket is bound to,
// not valid for an unbound socket.
func (t target) refusedBy(b *borrowed, bound netip.Addr) bool {
	ip := t.addr.Addr()
	switch {
	case t.family != b.family:
		return true
	case ip.IsMulticast(), ip == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return true
	case ip.Is6() && ip.IsLinkLocalUnicast() && ip.Zone() == "":
		return true
	case bound.IsValid() && (t.any || bound.Is4() != ip.Is4()): // the kernel may connect such a socket, by rules of its own
		return true
	case b.family == unix.AF_INET6 && ip.Is4():
		only, err := unix.GetsockoptInt(b.fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY)
		return err != nil || only != 0
	}
	return false
}

// as4 returns an address in the form of an IPv4 socket: 0.0.0.0 for any address other than IPv4.
func as4(a netip.Addr) [4]byte {
	if a = a.Unmap(); a.Is4() {
		return a.As4()
	}
	return [4]byte{}
}

// appendSockaddr appends an address in the form of a socket of the given family.
func appendSockaddr(b []byte, a netip.AddrPort, family int) []byte {
	if family == unix.AF_INET {
		ip := as4(a.Addr())
		b = binary.NativeEndian.AppendUint16(b, unix.AF_INET)
		b = binary.BigEndian.AppendUint16(b, a.Port())
		b = append(b, ip[:]...)
		return append(b, make([]byte, 8)...)
	}
	ip := a.Addr().As16()
	b = binary.NativeEndian.AppendUint16(b, unix.AF_INET6)
	b = binary.BigEndian.AppendUint16(b, a.Port())
	b = append(b, 0, 0, 0, 0)
	b = append(b, ip[:]...)
	scope, _ := strconv.ParseUint(a.Addr().Zone(), 10, 32)
	return binary.NativeEndian.AppendUint32(b, uint32(scope))
}

// toSockaddr converts an address to the type of x/sys.
func toSockaddr(a netip.AddrPort, family int) unix.Sockaddr {
	if family == unix.AF_INET {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: as4(a.Addr())}
	}
	scope, _ := strconv.ParseUint(a.Addr().Zone(), 10, 32)
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16(), ZoneId: uint32(scope)}
}

func fromSockaddr(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		ip := netip.AddrFrom16(sa.Addr)
		if sa.ZoneId != 0 && ip.IsLinkLocalUnicast() {
			ip = ip.WithZone(strconv.FormatUint(uint64(sa.ZoneId), 10))
		}
		return netip.AddrPortFrom(ip.Unmap(), uint16(sa.Port))
	}
	return netip.AddrPort{}
}

// localName returns the kernel's name of a socket's own end, or the zero value after an error.
func localName(fd int) netip.AddrPort {
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return netip.AddrPort{}
	}
	return fromSockaddr(sa)
}

// loopbackOf returns the loopback address of a family.
func loopbackOf(family int) netip.Addr {
	if family == unix.AF_INET6 {
		return netip.IPv6Loopback()
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}
