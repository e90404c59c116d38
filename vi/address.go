package vi

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"unicode"
)

// An Address is a VI network address: a host part, whose form depends on the provider, and a
// discriminator the application chooses. For example, the host part of VI/TCP is an IP address and
// may have a port.
type Address struct { // [VIA 7]
	Host          []byte // host part; for vitcp and fcvi an IP address, see IPAddress
	Discriminator []byte // at most NICAttributes.MaxDiscriminatorLen bytes
}

// Equal reports whether host parts and discriminators are equal byte by byte. Trailing zeros count.
func (a Address) Equal(b Address) bool {
	return bytes.Equal(a.Host, b.Host) && bytes.Equal(a.Discriminator, b.Discriminator) // [VIA-7-1] [VIA-7-2]
}

// IPAddress returns the address of a VI at an IP address and port. A port of 0 means the provider's
// default port; the host part then has no port.
func IPAddress(ap netip.AddrPort, discriminator string) Address {
	h := ap.Addr().Unmap().AsSlice()
	if ap.Port() != 0 {
		h = binary.BigEndian.AppendUint16(h, ap.Port())
	}
	return Address{Host: h, Discriminator: []byte(discriminator)}
}

// AddrPort returns the IP address and port of the host part. The host part must have 4 or 16 bytes
// of address and may have 2 bytes of port; without port bytes the port is 0. ok is false for any
// other form.
func (a Address) AddrPort() (ap netip.AddrPort, ok bool) { // [VIA 6.6]
	h := a.Host
	var port uint16
	if n := len(h); n == 6 || n == 18 {
		port = binary.BigEndian.Uint16(h[n-2:])
		h = h[:n-2]
	}
	ip, ok := netip.AddrFromSlice(h)
	return netip.AddrPortFrom(ip, port), ok
}

// String returns the host part, a slash and the discriminator. A host part with an IP address is
// shown as an address, and any other in hexadecimal.
func (a Address) String() string {
	host := fmt.Sprintf("%x", a.Host)
	if ap, ok := a.AddrPort(); ok {
		host = ap.String()
		if ap.Port() == 0 {
			host = ap.Addr().String()
		}
	}
	return host + "/" + formatDiscriminator(a.Discriminator)
}

// formatDiscriminator shows a printable discriminator as text. Otherwise it shows 0x and the bytes
// in hexadecimal.
func formatDiscriminator(d []byte) string {
	for _, r := range string(d) {
		if !unicode.IsGraphic(r) || r == unicode.ReplacementChar {
			return "0x" + fmt.Sprintf("%x", d)
		}
	}
	if s := strconv.Quote(string(d)); s[1:len(s)-1] != string(d) {
		return "0x" + fmt.Sprintf("%x", d)
	}
	return string(d)
}
