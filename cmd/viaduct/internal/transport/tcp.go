package transport

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"

	"viaduct/cmd/viaduct/internal/addr"
)

// tcpTransport is plain TCP, the baseline.
var tcpTransport = Transport{
	Scheme:       "tcp",
	DialStream:   bounded(dialTCP),
	ListenStream: listenTCP,
	OverStream:   overTCP,
}

func dialTCP(ctx context.Context, u *addr.URL, o *Options) (net.Conn, error) {
	d := net.Dialer{Control: congestionControl(o.Congestion)}
	c, err := d.DialContext(ctx, "tcp", u.HostPort())
	if err != nil {
		return nil, err
	}
	watchStream(c, o, dialled)
	c = o.Env.Wrap(c, true)
	if o.TLSDial == nil {
		return c, nil
	}
	t := tls.Client(c, serverName(o.TLSDial, u.Host))
	if err := t.HandshakeContext(ctx); err != nil {
		c.Close()
		return nil, fmt.Errorf("TLS with %s: %w", u.HostPort(), err)
	}
	return t, nil
}

// serverName fills in the name that the certificate must have.
func serverName(c *tls.Config, host string) *tls.Config {
	if c.ServerName != "" {
		return c
	}
	c = c.Clone()
	c.ServerName = host
	return c
}

func listenTCP(u *addr.URL, o *Options) (net.Listener, error) {
	if l := o.Env.Inherited(u.HostPort()); l != nil {
		return overTCP(l, u, o)
	}
	lc := net.ListenConfig{Control: congestionControl(o.Congestion)}
	l, err := lc.Listen(context.Background(), "tcp", u.HostPort())
	if err != nil {
		return nil, err
	}
	return overTCP(l, u, o)
}

func overTCP(l net.Listener, _ *addr.URL, o *Options) (net.Listener, error) {
	l = &wrapListener{l, o}
	if o.TLSListen != nil {
		l = tls.NewListener(l, o.TLSListen)
	}
	return l, nil
}

// A wrapListener puts accepted connections into the capture.
type wrapListener struct {
	net.Listener
	o *Options
}

func (l *wrapListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.o.Env.Wrap(watchStream(c, l.o, accepted), false), nil
}
