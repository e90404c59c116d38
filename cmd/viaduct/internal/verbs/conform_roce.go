package verbs

import (
	"math/rand/v2"
	"net"
	"net/netip"

	"viaduct/cmd/viaduct/internal/addr"
	"viaduct/cmd/viaduct/internal/pcapng"
	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/internal/roceudp"
	"viaduct/internal/wire/ib"
)

// listenRoCE opens port 4791 of an address of this host.
func listenRoCE(e *shell.Env, own netip.Addr) (net.PacketConn, error) {
	c, err := roceudp.Listen(own)
	if err != nil {
		return nil, err
	}
	if e.Capture == nil {
		return c, nil
	}
	return &tappedRoCE{c, netip.AddrPortFrom(own, ib.Port), e.Capture}, nil
}

// A tappedRoCE puts packets into the capture.
type tappedRoCE struct {
	*net.UDPConn
	own netip.AddrPort
	c   *pcapng.Capture
}

func (t *tappedRoCE) ReadFrom(b []byte) (int, net.Addr, error) {
	n, from, err := t.UDPConn.ReadFrom(b)
	if err == nil {
		t.c.RoCE(false, from.(*net.UDPAddr).AddrPort(), t.own, b[:n])
	}
	return n, from, err
}

func (t *tappedRoCE) WriteTo(b []byte, to net.Addr) (int, error) {
	t.c.RoCE(true, t.own, to.(*net.UDPAddr).AddrPort(), b)
	return t.UDPConn.WriteTo(b, to)
}

// conformLocal returns the address to dial from, nil for the usual one. Both ends of RoCEv2 have port
// 4791, so that a peer on the loopback interface needs another address than ours.
func conformLocal(u *addr.URL) net.Addr {
	a, err := netip.ParseAddr(u.Host)
	if u.Scheme != "roce" || err != nil || !a.Unmap().Is4() || !a.IsLoopback() {
		return nil
	}
	return &net.TCPAddr{IP: net.IPv4(127, byte(1+rand.IntN(250)), byte(rand.IntN(256)), byte(1+rand.IntN(250)))}
}
