package transport

import (
	"context"
	"net"
	"time"

	"viaduct/cmd/viaduct/internal/addr"
	"viaduct/cmd/viaduct/internal/msg"
	"viaduct/vi"
	"viaduct/vitcp"
)

// vitcpTransport is the VI Architecture over TCP.
var vitcpTransport = Transport{
	Scheme:    "vitcp",
	Check:     checkVI,
	DialMsg:   dialVITCP,
	ListenMsg: listenVITCP,
	PeerMsg:   peerVI,
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
	return listenVI(nic, u, o, nicAddr(nic, u))
}
