package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"viaduct/cmd/viaduct/internal/addr"
	"viaduct/cmd/viaduct/internal/msg"
	"viaduct/fcvi"
	"viaduct/registry"
	"viaduct/vi"
)

// fcviTransport is the VI Architecture over Fibre Channel, in an FCIP link.
var fcviTransport = Transport{
	Scheme:    "fcvi",
	Check:     checkFCVI,
	DialMsg:   bounded(dialFCVI),
	ListenMsg: listenFCVI,
	PeerMsg:   peerVI,
}

// FCIPPort is the TCP port of FCIP links.
const FCIPPort = 3225

func checkFCVI(u *addr.URL) error {
	_, err := fcviConfig(u)
	return err
}

// fcviConfig returns the configuration for the parameters of an address. Package addr lists the
// parameters.
func fcviConfig(u *addr.URL) (c fcvi.Config, err error) {
	for name, to := range map[string]*fcvi.WWN{"wwpn": &c.PortName, "wwnn": &c.NodeName} {
		if s := u.Query.Get(name); s != "" {
			if *to, err = fcvi.ParseWWN(s); err != nil {
				return c, fmt.Errorf("parameter %s: %w", name, err)
			}
		}
	}
	if s := u.Query.Get("peer"); s != "" {
		w, err := fcvi.ParseWWN(s)
		if err != nil {
			return c, fmt.Errorf("parameter peer: %w", err)
		}
		ip, err := netip.ParseAddr(u.Host)
		if err != nil {
			return c, errors.New("parameter peer needs an IP address as host")
		}
		c.Static = map[netip.Addr]fcvi.WWN{ip.Unmap(): w}
	}
	c.Class2 = u.Choice("class") == "2"
	c.EachAnswered = !u.Bool("streaming")
	if s := u.Query.Get("fabric"); s != "" {
		if _, _, err := net.SplitHostPort(s); err != nil {
			s = net.JoinHostPort(s, fmt.Sprint(FCIPPort))
		}
		c.Fabric = s
	}
	return c, nil
}

// Fabric returns the address, HOST:PORT, of a fabric's daemon. If HOST of at is a fabric's name in
// the registry, the registered address is returned. Otherwise, also without a registry, at is
// returned.
func Fabric(at string, find Finder) (string, error) {
	host, _, err := net.SplitHostPort(at)
	if err != nil || find == nil {
		return at, nil // without a fabric, at is empty
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return at, nil
	}
	v, err := find(context.Background(), registry.Fabric, host)
	switch {
	case errors.Is(err, registry.ErrNotFound):
		return at, nil
	case err != nil:
		return "", err
	}
	if _, err := netip.ParseAddrPort(v); err != nil {
		return "", fmt.Errorf("the registry has %q for fabric %q, which is not ADDRESS:PORT", v, host)
	}
	return v, nil
}

// fcviNIC opens a NIC for an address. Without a fabric, a NIC for a listener listens at the address
// itself. dials is the direction of connections in a capture.
func fcviNIC(u *addr.URL, o *Options, listens, dials bool) (*vi.NIC, error) {
	c, err := fcviConfig(u)
	if err != nil {
		return nil, err
	}
	if c.Fabric, err = Fabric(c.Fabric, o.Find); err != nil {
		return nil, err
	}
	name := u.Query.Get("self")
	if listens && c.Fabric == "" {
		c.Listen, c.ListenFunc = u.HostPort(), o.Env.Listen
	}
	if listens && c.Fabric != "" && name == "" {
		name = u.Host // the name by which other hosts find this NIC
	}
	c.MaxTransferSize, c.Linger, c.Congestion, c.Logger = fcvi.LimitMaxTransfer, vitcpGrace, o.Congestion, o.Env.Log
	c.SameHost, c.SameHostDir = sameHost(u)
	if o.Env.Capture != nil {
		c.WrapConn = func(nc net.Conn) net.Conn { return o.Env.Wrap(nc, dials) }
	}
	p, err := fcvi.New(c)
	if err != nil {
		return nil, err
	}
	return openNIC(p, name, o)
}

func dialFCVI(ctx context.Context, u *addr.URL, o *Options) (msg.Conn, error) {
	ap, err := resolveHost(ctx, u, o.Find)
	if err != nil {
		return nil, err
	}
	nic, err := fcviNIC(u, o, false, true)
	if err != nil {
		return nil, err
	}
	return dialVI(ctx, nic, u, o, fcviHost(u, ap), net.TCPAddrFromAddrPort(ap))
}

// fcviHost returns the host part of a VI address, without port in a fabric and at FCIPPort.
func fcviHost(u *addr.URL, ap netip.AddrPort) []byte {
	if u.Query.Has("fabric") || ap.Port() == FCIPPort {
		ap = netip.AddrPortFrom(ap.Addr(), 0)
	}
	return vi.IPAddress(ap, "").Host
}

func listenFCVI(u *addr.URL, o *Options) (msg.Listener, error) {
	nic, err := fcviNIC(u, o, true, false)
	if err != nil {
		return nil, err
	}
	return listenVI(nic, u, o, nicAddr(nic, u))
}
