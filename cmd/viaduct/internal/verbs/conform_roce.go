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

// listenRoCE opens the RoCEv2 port, 4791, of an address of this host. The packets are recorded if
// there is a capture.
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

// A tappedRoCE is a socket whose packets are recorded in the capture.
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

// conformLocal returns the address to dial from; with nil the system chooses. Both ends of RoCEv2
// use port 4791. If the peer is on the loopback interface, this side therefore needs a separate
// address, chosen at random in 127.0.0.0/8.
func conformLocal(u *addr.URL) net.Addr {
	a, err := netip.ParseAddr(u.Host)
	if u.Scheme != "roce" || err != nil || !a.Unmap().Is4() || !a.IsLoopback() {
		return nil
	}
	return &net.TCPAddr{IP: net.IPv4(127, byte(1+rand.IntN(250)), byte(rand.IntN(256)), byte(1+rand.IntN(250)))}
}
