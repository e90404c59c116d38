package transport

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	"viaduct/cmd/viaduct/internal/addr"
	"viaduct/cmd/viaduct/internal/msg"
	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/vi"
	"viaduct/vitcp"
	"viaduct/vitcp/vitcpwire"
)

// vitcpTransport is the VI Architecture over TCP.
var vitcpTransport = Transport{
	Scheme:    "vitcp",
	Check:     checkVI,
	DialMsg:   dialVITCP,
	ListenMsg: listenVITCP,
	PeerMsg:   peerVITCP,
}

// vitcpGrace keeps a request that comes between two waits of a busy listener
// from being told that nobody listens.
const vitcpGrace = time.Second

// vitcpNIC opens a NIC of its own; listen is empty for one that only dials.
// dials says which way connections are seen in a capture.
func vitcpNIC(o *Options, listen, host string, dials bool) (*vi.NIC, error) {
	c := vitcp.Config{Listen: listen, Grace: vitcpGrace, Disconnect: true, TLSListen: o.TLSListen, Congestion: o.Congestion, Logger: o.Env.Log}
	if o.TLSDial != nil {
		c.TLSDial = serverName(o.TLSDial, host)
	}
	if o.Env.Capture != nil {
		c.WrapConn = func(nc net.Conn) net.Conn { return o.Env.Wrap(nc, dials) }
	}
	p, err := vitcp.New(c)
	if err != nil {
		return nil, err
	}
	return openNIC(p, "", o)
}

func dialVITCP(ctx context.Context, u *addr.URL, o *Options) (msg.Conn, error) {
	ap, err := resolveHost(ctx, u)
	if err != nil {
		return nil, err
	}
	nic, err := vitcpNIC(o, "", u.Host, true)
	if err != nil {
		return nil, err
	}
	return dialVI(ctx, nic, u, o, vi.IPAddress(ap, "").Host, net.TCPAddrFromAddrPort(ap))
}

func listenVITCP(u *addr.URL, o *Options) (msg.Listener, error) {
	nic, err := vitcpNIC(o, u.HostPort(), "", false)
	if err != nil {
		return nil, err
	}
	return listenVI(nic, u, o, nicAddr(nic))
}

// nicAddr is where a NIC listens.
func nicAddr(nic *vi.NIC) net.Addr {
	ap, _ := (vi.Address{Host: nic.Query().LocalAddress}).AddrPort()
	if ap.Port() == 0 {
		ap = netip.AddrPortFrom(ap.Addr(), vitcpwire.Port)
	}
	return net.TCPAddrFromAddrPort(ap)
}

func peerVITCP(ctx context.Context, local, remote *addr.URL, o *Options) (msg.Conn, error) {
	to, err := resolveHost(ctx, remote)
	if err != nil {
		return nil, err
	}
	a, err := viAttributes(remote, o)
	if err != nil {
		return nil, shell.Usage(err)
	}
	nic, err := vitcpNIC(o, local.HostPort(), remote.Host, true)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", local, err)
	}
	c, err := newVI(nic, a, o)
	if err != nil {
		nic.Close()
		return nil, err
	}
	c.done = func() { nic.Close() }
	here := vi.Address{Host: nic.Query().LocalAddress, Discriminator: local.Disc}
	there := vi.Address{Host: vi.IPAddress(to, "").Host, Discriminator: remote.Disc}
	o.Env.Listening(local.WithPort(nicAddr(nic)))
	var timeout time.Duration
	if at, ok := ctx.Deadline(); ok {
		timeout = time.Until(at)
	}
	if err = c.v.ConnectPeerRequest(here, there, timeout); err == nil {
		_, err = c.v.ConnectPeerWait(ctx)
	}
	if err != nil {
		c.Close()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, connectFailure(remote, err)
	}
	c.connected(viAddr(here.String()), net.TCPAddrFromAddrPort(to))
	return c, nil
}
