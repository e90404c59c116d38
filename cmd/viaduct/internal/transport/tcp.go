package transport

import (
	"context"
	"net"

	"viaduct/cmd/viaduct/internal/addr"
)

// tcpTransport is plain TCP, for comparison.
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
	return dialTLS(ctx, o.Env.Wrap(c, true), u, o)
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
	return listenTLS(&wrapListener{l, o}, o), nil
}

// A wrapListener records accepted connections in the capture.
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
