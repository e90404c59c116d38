package iu

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
)

// A NetAddress is an FCVI_NET_ADDRESS: a host address and a discriminator. [FCVI-4-2] [FCVI-7.2-1]
type NetAddress struct {
	HostLen       uint16   // 16 for an IP address, 8 for a Port_Name, 0 if unspecified
	Host          [16]byte // an IPv4 address is in the last four bytes, a Port_Name in the first eight
	Discriminator []byte   // 0 to MaxDiscriminator bytes
}

// IPAddress returns a as a host address with the given discriminator, or an unspecified host if a
// is not valid. The result refers to the bytes of discriminator.
func IPAddress(a netip.Addr, discriminator []byte) NetAddress {
	n := NetAddress{HostLen: hostIP, Discriminator: discriminator}
	a = a.Unmap()
	if a.Is4() { // [FCVI-7.2-2]
		v4 := a.As4()
		copy(n.Host[12:], v4[:])
	} else if a.Is6() {
		n.Host = a.As16()
	} else {
		n.HostLen = 0
	}
	return n
}

// NameAddress returns a Port_Name as a host address. [FCVI-7.2-2]
func NameAddress(portName uint64, discriminator []byte) NetAddress {
	n := NetAddress{HostLen: hostName, Discriminator: discriminator}
	binary.BigEndian.PutUint64(n.Host[:], portName)
	return n
}

// IP returns the host address; an IPv4-mapped address becomes IPv4. If the host part is not an IP
// address, the result is the invalid zero Addr.
func (a NetAddress) IP() netip.Addr {
	if a.HostLen != hostIP {
		return netip.Addr{}
	}
	h := a.normal().Host
	if [12]byte(h[:12]) == ([12]byte{}) && (h[12] != 0 || h[13] != 0 || h[14] != 0) {
		return netip.AddrFrom4([4]byte(h[12:]))
	}
	return netip.AddrFrom16(h)
}

// PortName returns the host address as a Port_Name, and false for any other host address.
func (a NetAddress) PortName() (uint64, bool) {
	return binary.BigEndian.Uint64(a.Host[:]), a.HostLen == hostName
}

// normal returns a with an IPv4-mapped host in the form of an IPv4 host, so that both forms compare
// equal. [FCVI-7.2-3]
func (a NetAddress) normal() NetAddress {
	if a.HostLen == hostIP && [10]byte(a.Host[:10]) == ([10]byte{}) && a.Host[10] == 0xFF && a.Host[11] == 0xFF {
		a.Host[10], a.Host[11] = 0, 0
	}
	return a
}

// SameHost reports whether both host addresses are equal after normalisation.
func (a NetAddress) SameHost(b NetAddress) bool {
	a, b = a.normal(), b.normal()
	return a.HostLen == b.HostLen && a.Host == b.Host
}

// Equal reports whether a and b are equal after normalisation.
func (a NetAddress) Equal(b NetAddress) bool {
	return a.SameHost(b) && string(a.Discriminator) == string(b.Discriminator)
}

func (a NetAddress) String() string {
	host := "unspecified"
	if ip := a.IP(); ip.IsValid() {
		host = ip.String()
	} else if n, ok := a.PortName(); ok {
		host = fmt.Sprintf("%016x", n)
	}
	return fmt.Sprintf("%s/%q", host, a.Discriminator)
}

// Append appends the NetAddressLen bytes of a to b. A discriminator longer than MaxDiscriminator is
// truncated.
func (a NetAddress) Append(b []byte) []byte {
	d := a.Discriminator[:min(len(a.Discriminator), MaxDiscriminator)]
	b = binary.BigEndian.AppendUint16(b, a.HostLen)
	b = binary.BigEndian.AppendUint16(b, uint16(len(d)))
	b = append(b, a.Host[:]...)
	b = append(b, d...)
	return append(b, make([]byte, MaxDiscriminator-len(d))...)
}

// ParseNetAddress decodes the address at the front of b. n is the length of the address in bytes.
// The result has a copy of the discriminator.
func ParseNetAddress(b []byte) (a NetAddress, n int, err error) {
	if len(b) < NetAddressLen {
		return a, 0, io.ErrUnexpectedEOF
	}
	a.HostLen = binary.BigEndian.Uint16(b)
	d := int(binary.BigEndian.Uint16(b[2:]))
	if a.HostLen != hostIP && a.HostLen != hostName && a.HostLen != 0 || d > MaxDiscriminator {
		return a, 0, fmt.Errorf("%w: host address of %d bytes, discriminator of %d", ErrFormat, a.HostLen, d)
	}
	copy(a.Host[:], b[4:20])
	a.Discriminator = append([]byte{}, b[20:20+d]...)
	return a, NetAddressLen, nil
}
