package mixed

import (
	"context"
	"net"
	"sync"

	"viaduct/samehost"
	"viaduct/sdp"
)

// accept calls serve, in goroutines, with the connections returned by next, until next fails. When
// ctx ends accept closes l. wait returns when all the goroutines have ended.
func accept(ctx context.Context, l interface{ Close() error }, next func() (Conn, error), serve func(Conn)) (wait func()) {
	var all sync.WaitGroup
	stop := context.AfterFunc(ctx, func() { l.Close() })
	all.Go(func() {
		defer stop()
		for {
			c, err := next()
			if err != nil {
				return
			}
			all.Go(func() { serve(c) })
		}
	})
	return all.Wait
}

// A planned is a stream with a plan.
type planned struct {
	stream
	p       Plan
	dialled bool
}

func (c *planned) Run(ctx context.Context) (Tally, error) {
	t, err := c.stream.Run(ctx, c.p, c.dialled)
	if e := c.stream.c.Close(); err == nil {
		err = e
	}
	return t, err
}

type tcpNode struct{ s Settings }

func (n *tcpNode) wrap(c net.Conn, p Plan, dialled bool) Conn {
	t := c.(*net.TCPConn)
	return &planned{stream{c: c, abort: func() { t.SetLinger(0); t.Close() }}, p, dialled}
}

func (n *tcpNode) keepAlive() net.KeepAliveConfig {
	return net.KeepAliveConfig{Enable: true, Idle: n.s.KeepAlive, Interval: n.s.KeepAlive}
}

func (n *tcpNode) Dial(ctx context.Context, address string, p Plan) (Conn, error) {
	d := net.Dialer{KeepAliveConfig: n.keepAlive()}
	c, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return n.wrap(c, p, true), nil
}

func (n *tcpNode) Listen(ctx context.Context, hostPort string, p Plan, serve func(Conn)) (string, func(), error) {
	lc := net.ListenConfig{KeepAliveConfig: n.keepAlive()}
	l, err := lc.Listen(ctx, "tcp", hostPort)
	if err != nil {
		return "", nil, err
	}
	return l.Addr().String(), accept(ctx, l, func() (Conn, error) {
		c, err := l.Accept()
		if err != nil {
			return nil, err
		}
		return n.wrap(c, p, false), nil
	}, serve), nil
}

func (n *tcpNode) Regions() int { return 0 }
func (n *tcpNode) Close() error { return nil }

type sdpNode struct {
	s  Settings
	mu sync.Mutex
	ls []*sdp.Listener
}

func (n *sdpNode) options() sdp.Options {
	return sdp.Options{SetupTimeout: n.s.Patience, KeepAlive: n.s.KeepAlive, WrapConn: n.s.WrapConn, Logger: n.s.Logger}
}

func sdpPlanned(c *sdp.Conn, p Plan, dialled bool) Conn {
	by := c.Path()
	return &planned{stream{c, c.Abort, samehost.Path{SharedMemory: by.SharedMemory, Why: by.TCPWhy}}, p, dialled}
}

func (n *sdpNode) Dial(ctx context.Context, address string, p Plan) (Conn, error) {
	d := sdp.Dialer{Options: n.options()}
	c, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return sdpPlanned(c.(*sdp.Conn), p, true), nil
}

func (n *sdpNode) Listen(ctx context.Context, hostPort string, p Plan, serve func(Conn)) (string, func(), error) {
	lc := sdp.ListenConfig{Options: n.options(), MaxPendingPerHost: 256}
	l, err := lc.Listen(ctx, "tcp", hostPort)
	if err != nil {
		return "", nil, err
	}
	n.mu.Lock()
	n.ls = append(n.ls, l)
	n.mu.Unlock()
	return l.Addr().String(), accept(ctx, l, func() (Conn, error) {
		c, err := l.AcceptConn(context.Background())
		if err != nil {
			return nil, err
		}
		return sdpPlanned(c, p, false), nil
	}, serve), nil
}

func (n *sdpNode) Regions() (all int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range n.ls {
		all += l.Regions()
	}
	return all
}

func (n *sdpNode) Close() error { return nil }
