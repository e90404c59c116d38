//go:build amd64 || arm64

package portmap

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// TestReplyFrom: an answer is sent from the destination address of the datagram. The control
// message must name the interface only for a link-local address. [SDP-7.4-15] [SDP-7.4-34]
func TestReplyFrom(t *testing.T) {
	four := unix.PktInfo4(&unix.Inet4Pktinfo{Ifindex: 3, Spec_dst: [4]byte{10, 0, 0, 1}, Addr: [4]byte{10, 0, 0, 9}})
	six := func(a string, ifindex uint32) []byte {
		return unix.PktInfo6(&unix.Inet6Pktinfo{Addr: netip.MustParseAddr(a).As16(), Ifindex: ifindex})
	}
	cut := func(b []byte) []byte { // cmsg_len is too large, as if the end of the data were missing
		b = bytes.Clone(b)
		binary.NativeEndian.PutUint64(b, binary.NativeEndian.Uint64(b)-8)
		return b
	}
	as := func(b []byte, level, kind uint32) []byte { // the message has another cmsg_level and cmsg_type
		b = bytes.Clone(b)
		binary.NativeEndian.PutUint32(b[8:], level)
		binary.NativeEndian.PutUint32(b[12:], kind)
		return b
	}
	for _, c := range []struct {
		name      string
		got, want []byte
		to        string // the destination of the datagram
	}{
		{"IPv4", four, unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: [4]byte{10, 0, 0, 1}}), "10.0.0.9"},
		{"IPv6", six("fd00::1", 3), six("fd00::1", 0), "fd00::1"},
		{"IPv6, link-local", six("fe80::1", 3), six("fe80::1", 3), "fe80::1"},
		{"IPv4 at a socket of both families", six("::ffff:10.0.0.1", 3), six("::ffff:10.0.0.1", 0), "10.0.0.1"},
		{"another message first", append(unix.UnixRights(0), four...), unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: [4]byte{10, 0, 0, 1}}), "10.0.0.9"},
		{"another message", unix.UnixRights(0), nil, ""},
		{"IPv4, cut", cut(four), nil, ""},
		{"IPv6, cut", cut(six("fd00::1", 3)), nil, ""},
		{"IPv4, another level", as(four, unix.SOL_SOCKET, unix.IP_PKTINFO), nil, ""},
		{"IPv4, another type", as(four, unix.IPPROTO_IP, unix.IP_TTL), nil, ""},
		{"IPv6, another level", as(six("fd00::1", 3), unix.SOL_SOCKET, unix.IPV6_PKTINFO), nil, ""},
		{"IPv6, another type", as(six("fd00::1", 3), unix.IPPROTO_IPV6, unix.IPV6_HOPLIMIT), nil, ""},
		{"torn", four[:10], nil, ""},
		{"nothing", nil, nil, ""},
	} {
		if got := replyFrom(c.got); !bytes.Equal(got, c.want) {
			t.Errorf("%s: %x, want %x", c.name, got, c.want)
		}
		to := ""
		if a := destination(c.got); a.IsValid() {
			to = a.String()
		}
		if to != c.to {
			t.Errorf("%s: sent to %q, want %q", c.name, to, c.to)
		}
	}
}
