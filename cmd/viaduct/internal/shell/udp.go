package shell

import (
	"context"
	"net"
	"net/netip"
)

// DialUDP opens a UDP socket whose datagrams are recorded in the capture, if there is a capture.
func (e *Env) DialUDP(ctx context.Context, d *net.Dialer, network, address string) (net.Conn, error) {
	c, err := d.DialContext(ctx, network, address)
	if err != nil || e.Capture == nil {
		return c, err
	}
	return &tappedUDP{c, e}, nil
}

// A tappedUDP is a connected socket with datagrams recorded in the capture.
type tappedUDP struct {
	net.Conn
	e *Env
}

func (t *tappedUDP) ends() (local, remote netip.AddrPort) {
	return t.LocalAddr().(*net.UDPAddr).AddrPort(), t.RemoteAddr().(*net.UDPAddr).AddrPort()
}

func (t *tappedUDP) Write(b []byte) (int, error) {
	local, remote := t.ends()
	t.e.Capture.Datagram(true, local, remote, b)
	return t.Conn.Write(b)
}

func (t *tappedUDP) Read(b []byte) (int, error) {
	n, err := t.Conn.Read(b)
	if err == nil {
		local, remote := t.ends()
		t.e.Capture.Datagram(false, remote, local, b[:n])
	}
	return n, err
}
