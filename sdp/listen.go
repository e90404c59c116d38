package sdp

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"sync"

	"viaduct/internal/attend"
	"viaduct/internal/perturb"
	"viaduct/internal/sock"
	"viaduct/iwarp"
)

// A ListenConfig configures a Listener.
type ListenConfig struct {
	Options

	// Net listens for TCP.
	Net net.ListenConfig

	// MaxPending limits all set-ups in progress, and MaxPendingPerHost the set-ups with a single
	// address; more connections are reset. 0 means 256 in all, and 32 for each other host. By
	// default this host may use all of MaxPending.
	MaxPending, MaxPendingPerHost int

	// Plain makes the listener accept plain TCP too: Accept returns a connection that begins with
	// neither an MPA Request nor a Hello as a *TCPConn. This suits services whose clients send
	// first, such as HTTP.
	Plain bool

	// Filter, if set, accepts a connection by returning true; other connections are reset.
	Filter func(local, remote net.Addr) bool

	// MaxPending, MaxPendingPerHost [D-17] [SDP-15-4], Plain [D-69], Filter [SDP-8.1.1-13]
	// [SDP-7.4-31] [D-59].
}

// A Listener accepts connections over SDP. It is a net.Listener, and safe for concurrent use.
type Listener struct {
	lc  ListenConfig
	opt Options
	l   net.Listener
	dev *iwarp.Device
	ctx context.Context
	end context.CancelFunc

	conns chan net.Conn // connections that wait for Accept
	dead  chan struct{} // closed by Close
	over  chan struct{} // closed when run ends
	err   error         // why run ended; written before over is closed
	wg    sync.WaitGroup

	mu      perturb.Mutex // guards all fields below
	closed  bool
	pending map[netip.Addr]int // set-ups in progress by host
	total   int                // all set-ups in progress
	moves   map[moveKey]*move  // connections expected to resume here
	refused uint64
	failed  uint64
}

var _ net.Listener = (*Listener)(nil)

// Listen accepts SDP connections at address, host:port, where port 0 selects a free port. opt may
// be nil.
func Listen(address string, opt *Options) (*Listener, error) {
	lc := ListenConfig{}
	if opt != nil {
		lc.Options = *opt
	}
	return lc.Listen(context.Background(), "tcp", address)
}

// Listen accepts SDP connections at address. The network is "tcp", "tcp4" or
// "tcp6"; any other is a net.UnknownNetworkError.
func (lc *ListenConfig) Listen(ctx context.Context, network, address string) (*Listener, error) {
	if err := checkNetwork("listen", network, addrString(address)); err != nil {
		return nil, err
	}
	l, err := lc.Net.Listen(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if !lc.Plain && lc.WrapConn == nil && lc.Net.KeepAlive == 0 && lc.Net.KeepAliveConfig == (net.KeepAliveConfig{}) {
		own, err := sock.OwnListener(l, sock.Tuning{Congestion: lc.Congestion, KeepAlive: lc.KeepAlive,
			SameHost: lc.SameHost, SameHostDir: lc.SameHostDir})
		if err != nil {
			l.Close()
			return nil, &net.OpError{Op: "listen", Net: "sdp", Addr: l.Addr(), Err: err}
		}
		l = own
	}
	s, err := lc.NewListener(l)
	if err != nil {
		l.Close()
	}
	return s, err
}

// NewListener accepts SDP connections on the connections of l. l belongs to the Listener, unless
// NewListener returns an error.
func (lc *ListenConfig) NewListener(l net.Listener) (*Listener, error) {
	opt, err := lc.complete()
	if err != nil {
		return nil, err
	}
	s := &Listener{lc: *lc, opt: opt, l: l, dev: newDevice(&opt), conns: make(chan net.Conn), dead: make(chan struct{}), over: make(chan struct{}),
		pending: make(map[netip.Addr]int), moves: make(map[moveKey]*move)}
	if s.lc.MaxPending == 0 {
		s.lc.MaxPending = 256
	}
	s.ctx, s.end = context.WithCancel(context.Background())
	s.wg.Go(s.run)
	return s, nil
}

// Addr returns the address of the listener.
func (l *Listener) Addr() net.Addr { return l.l.Addr() }

// Refused returns the number of refused connections.
func (l *Listener) Refused() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.refused
}

// Failed returns the number of failed set-ups, refusals not included.
func (l *Listener) Failed() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failed
}

// Regions returns the number of open advertisements of the listener's connections.
func (l *Listener) Regions() int { return l.dev.Regions() }

// Accept waits for the next connection and returns it: a *Conn, or with ListenConfig.Plain possibly
// a *TCPConn. After Close the error matches net.ErrClosed. Accept goes on waiting while the process
// has no free descriptor; other errors of the net.Listener are returned.
func (l *Listener) Accept() (net.Conn, error) { return l.accept(context.Background()) }

// AcceptConn waits for the next *Conn, until ctx ends. Each *TCPConn that arrives earlier is
// closed.
func (l *Listener) AcceptConn(ctx context.Context) (*Conn, error) {
	for {
		nc, err := l.accept(ctx)
		if err != nil {
			return nil, err
		}
		if c, ok := nc.(*Conn); ok {
			return c, nil
		}
		nc.Close()
	}
}

func (l *Listener) accept(ctx context.Context) (net.Conn, error) {
	var err error
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.dead:
		err = net.ErrClosed
	case <-l.over:
		l.mu.Lock()
		if err = l.err; l.closed {
			err = net.ErrClosed
		}
		l.mu.Unlock()
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	return nil, &net.OpError{Op: "accept", Net: "sdp", Source: l.Addr(), Err: err}
}

// Close stops listening, ends the set-ups in progress, and resets connections that Accept has not
// returned. Returned connections are not affected. A second Close returns net.ErrClosed.
func (l *Listener) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return &net.OpError{Op: "close", Net: "sdp", Source: l.Addr(), Err: net.ErrClosed}
	}
	l.closed = true
	l.mu.Unlock()
	err := l.l.Close()
	l.end()
	close(l.dead)
	l.wg.Wait()
	return err
}

// run accepts TCP connections until Close, or until the net.Listener fails.
func (l *Listener) run() {
	for {
		nc, err := sock.AcceptNext(l.l.Accept, l.dead)
		if err != nil {
			l.err = err
			close(l.over)
			return
		}
		host, ok := l.enter(nc)
		if !ok {
			reset(nc)
			continue
		}
		l.wg.Add(1)
		attend.Go(sock.IsTCP(nc), func() {
			defer l.wg.Done()
			l.setUp(nc, host)
		})
	}
}

// enter counts a new set-up in progress of nc, and returns its host. ok is false if nc is refused.
// [D-17] [SDP-15-4]
func (l *Listener) enter(nc net.Conn) (host netip.Addr, ok bool) {
	// A connection without an IP address counts for no host.
	ap, _ := netip.ParseAddrPort(nc.RemoteAddr().String())
	host = ap.Addr().Unmap()
	if f := l.lc.Filter; f != nil && !f(nc.LocalAddr(), nc.RemoteAddr()) {
		l.count(&l.refused)
		return host, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.total >= l.lc.MaxPending ||
		l.pending[host] >= sock.PendingPerHost(nc, l.lc.MaxPendingPerHost, l.lc.MaxPending) {
		l.refused++
		return host, false
	}
	l.total++
	l.pending[host]++
	return host, true
}

func (l *Listener) leave(host netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total--
	if l.pending[host]--; l.pending[host] == 0 {
		delete(l.pending, host)
	}
}

func (l *Listener) count(n *uint64) {
	l.mu.Lock()
	*n++
	l.mu.Unlock()
}

// setUp exchanges Hello and HelloAck on one connection. A failure does not affect other
// connections. [SDP-8.1.2-1]
func (l *Listener) setUp(nc net.Conn, host netip.Addr) {
	path := Path{SDP: true, Accepted: true, Why: "accepted", Local: nc.LocalAddr(), Remote: nc.RemoteAddr()}
	tcp, _ := nc.(*net.TCPConn)
	switch {
	case tcp == nil:
	case runtime.GOOS != "linux":
		nc = peekable(nc)
	case !l.lc.Plain && l.opt.WrapConn == nil:
		nc = sock.Own(nc)
	}
	var mv *move
	s, g, p, err := accept(l.ctx, nc, l.opt, l.dev, func(s *setup, g greeting) Reason {
		var r Reason
		mv, r = l.expected(s, g, path)
		return r
	})
	l.leave(host)
	if err == errPlain {
		l.plain(nc, tcp, path)
		return
	}
	if err != nil {
		var ref *RefusedError
		if errors.As(err, &ref) {
			l.count(&l.refused)
		} else {
			l.count(&l.failed)
		}
		l.opt.Logger.Info("set-up failed", "remote", path.Remote, "err", err)
		return
	}
	path.Layout, path.RawHello, path.CRC = Layout(g.layout), g.raw, s.qp.Params().CRC
	path.by(s.qp)
	if l.opt.Logger.Enabled(l.ctx, slog.LevelInfo) {
		l.opt.Logger.Info("connection up", "local", path.Local.String(), "remote",
			path.Remote.String(), "crc", path.CRC)
	}
	if mv != nil {
		mv.arrive(s, g.layout, p, path)
		return
	}
	c := newConn(s.opt, g.layout, s, p)
	c.path = path
	select {
	case l.conns <- c:
		c.begin()
	case <-l.dead:
		c.Abort()
	}
}

// plain handles a connection without SDP: with ListenConfig.Plain, Accept returns the connection;
// otherwise plain resets the connection.
func (l *Listener) plain(nc net.Conn, tcp *net.TCPConn, path Path) {
	if _, ahead := nc.(*peekedConn); !l.lc.Plain || tcp == nil || ahead {
		l.count(&l.refused)
		reset(nc)
		return
	}
	path.SDP, path.Why = false, "the client speaks neither MPA nor SDP"
	select {
	case l.conns <- &TCPConn{tcp, path}:
	case <-l.dead:
		tcp.Close()
	}
}

// A BothListener accepts SDP at one port and plain TCP at another, for a service whose conventional
// port is mapped to an SDP port, for example 80 to 8080.
type BothListener struct { // [D-71]
	SDP *Listener
	TCP net.Listener

	conns chan net.Conn
	errs  chan error
	dead  chan struct{}
	once  sync.Once
	wg    sync.WaitGroup
}

var _ net.Listener = (*BothListener)(nil)

// ListenBoth accepts plain TCP at the address conventional, and SDP at the address sdp, whose port
// may be 0 for a free one. The caller registers the pair with a Port Mapper.
func (lc *ListenConfig) ListenBoth(ctx context.Context, network, conventional, sdp string) (*BothListener, error) {
	s, err := lc.Listen(ctx, network, sdp)
	if err != nil {
		return nil, err
	}
	t, err := lc.Net.Listen(ctx, network, conventional)
	if err != nil {
		s.Close()
		return nil, err
	}
	return newBoth(s, t), nil
}

func newBoth(s *Listener, t net.Listener) *BothListener {
	b := &BothListener{SDP: s, TCP: t, conns: make(chan net.Conn), errs: make(chan error, 2), dead: make(chan struct{})}
	b.wg.Go(func() { b.run(s) })
	b.wg.Go(func() { b.run(t) })
	return b
}

func (b *BothListener) run(l net.Listener) {
	for {
		c, err := sock.AcceptNext(l.Accept, b.dead)
		if err != nil {
			b.errs <- err
			return
		}
		if tc, ok := c.(*net.TCPConn); ok {
			c = &TCPConn{tc, Path{Accepted: true, Why: "came to the conventional port",
				Local: c.LocalAddr(), Remote: c.RemoteAddr()}}
		}
		select {
		case b.conns <- c:
		case <-b.dead:
			c.Close()
			return
		}
	}
}

// Accept waits for the next connection of either kind and returns it, a *Conn or a *TCPConn. After
// Close the error matches net.ErrClosed.
func (b *BothListener) Accept() (net.Conn, error) {
	select {
	case c := <-b.conns:
		return c, nil
	case err := <-b.errs:
		b.errs <- err
		return nil, err
	case <-b.dead:
		return nil, &net.OpError{Op: "accept", Net: "sdp", Source: b.Addr(), Err: net.ErrClosed}
	}
}

// Addr returns the conventional address.
func (b *BothListener) Addr() net.Addr { return b.TCP.Addr() }

// Close closes both listeners. A second Close returns net.ErrClosed.
func (b *BothListener) Close() error {
	err := error(net.ErrClosed)
	b.once.Do(func() {
		close(b.dead)
		err = errors.Join(b.SDP.Close(), b.TCP.Close())
		b.wg.Wait()
	})
	return err
}
