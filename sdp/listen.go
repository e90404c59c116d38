package sdp

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"time"

	"viaduct/iwarp"
)

// A ListenConfig says how connections are accepted.
type ListenConfig struct {
	Options

	// Net listens for TCP.
	Net net.ListenConfig

	// MaxPending and MaxPendingPerHost bound the set-ups in progress, in all
	// and of one address; more connections are reset. 0 means 256 and 32.
	// [D-17] [SDP-15-4]
	MaxPending, MaxPendingPerHost int

	// Filter, if set, refuses connections by address and by what their Hello
	// was. [SDP-8.1.1-13] [SDP-7.4-31] [D-59]
	Filter func(local, remote net.Addr) bool
}

// A Listener accepts connections over SDP. It is a net.Listener.
type Listener struct {
	lc  ListenConfig
	opt Options
	l   net.Listener
	dev *iwarp.Device
	ctx context.Context
	end context.CancelFunc

	conns chan *Conn
	dead  chan struct{} // closed by Close
	wg    sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	pending map[netip.Addr]int
	total   int
	moves   map[moveKey]*move // connections expected to come back
	refused uint64
	failed  uint64
}

var _ net.Listener = (*Listener)(nil)

// Listen accepts SDP connections at address. opt may be nil.
func Listen(address string, opt *Options) (*Listener, error) {
	lc := ListenConfig{}
	if opt != nil {
		lc.Options = *opt
	}
	return lc.Listen(context.Background(), "tcp", address)
}

// Listen accepts SDP connections at address.
func (lc *ListenConfig) Listen(ctx context.Context, network, address string) (*Listener, error) {
	l, err := lc.Net.Listen(ctx, network, address)
	if err != nil {
		return nil, err
	}
	s, err := lc.NewListener(l)
	if err != nil {
		l.Close()
	}
	return s, err
}

// NewListener accepts SDP connections on those that l accepts. l belongs to the
// Listener.
func (lc *ListenConfig) NewListener(l net.Listener) (*Listener, error) {
	opt, err := lc.complete()
	if err != nil {
		return nil, err
	}
	s := &Listener{lc: *lc, opt: opt, l: l, dev: newDevice(&opt), conns: make(chan *Conn), dead: make(chan struct{}),
		pending: make(map[netip.Addr]int), moves: make(map[moveKey]*move)}
	if s.lc.MaxPending == 0 {
		s.lc.MaxPending = 256
	}
	if s.lc.MaxPendingPerHost == 0 {
		s.lc.MaxPendingPerHost = 32
	}
	s.ctx, s.end = context.WithCancel(context.Background())
	s.wg.Go(s.run)
	return s, nil
}

// Addr returns the address of the listener.
func (l *Listener) Addr() net.Addr { return l.l.Addr() }

// Refused returns how many connections were turned down, and Failed how many
// set-ups failed otherwise.
func (l *Listener) Refused() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.refused
}

// Failed returns how many set-ups failed; see Refused.
func (l *Listener) Failed() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failed
}

// Regions returns how many advertisements of the listener's connections are
// open.
func (l *Listener) Regions() int { return l.dev.Regions() }

// Accept waits for the next connection. After Close the error matches
// net.ErrClosed.
func (l *Listener) Accept() (net.Conn, error) {
	c, err := l.AcceptConn(context.Background())
	if err != nil {
		return nil, err
	}
	return c, nil
}

// AcceptConn is Accept with a context, for a *Conn.
func (l *Listener) AcceptConn(ctx context.Context) (*Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.dead:
		return nil, &net.OpError{Op: "accept", Net: "sdp", Source: l.Addr(), Err: net.ErrClosed}
	case <-ctx.Done():
		return nil, &net.OpError{Op: "accept", Net: "sdp", Source: l.Addr(), Err: context.Cause(ctx)}
	}
}

// Close stops listening. Set-ups in progress are ended; connections that Accept
// has returned stay.
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

// run accepts TCP connections.
func (l *Listener) run() {
	delay := time.Duration(0)
	for {
		nc, err := l.l.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) || l.ctx.Err() != nil {
				return
			}
			// Out of descriptors, most likely: let go for a moment.
			delay = min(max(2*delay, 5*time.Millisecond), time.Second)
			select {
			case <-time.After(delay):
				continue
			case <-l.dead:
				return
			}
		}
		delay = 0
		host, ok := l.enter(nc)
		if !ok {
			reset(nc)
			continue
		}
		l.wg.Go(func() { l.setUp(nc, host) })
	}
}

// enter counts a set-up in progress, or refuses it. [D-17] [SDP-15-4]
func (l *Listener) enter(nc net.Conn) (host netip.Addr, ok bool) {
	if ap, err := netip.ParseAddrPort(nc.RemoteAddr().String()); err == nil {
		host = ap.Addr().Unmap()
	}
	if f := l.lc.Filter; f != nil && !f(nc.LocalAddr(), nc.RemoteAddr()) {
		l.count(&l.refused)
		return host, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.total >= l.lc.MaxPending || l.pending[host] >= l.lc.MaxPendingPerHost {
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

// setUp takes one connection through Hello and HelloAck. One that fails is none
// of the others' business. [SDP-8.1.2-1]
func (l *Listener) setUp(nc net.Conn, host netip.Addr) {
	path := Path{SDP: true, Accepted: true, Why: "accepted", Local: nc.LocalAddr(), Remote: nc.RemoteAddr()}
	if runtime.GOOS != "linux" {
		nc = peekable(nc)
	}
	var mv *move
	s, g, p, err := accept(l.ctx, nc, l.opt, l.dev, func(s *setup, g greeting) Reason {
		var r Reason
		mv, r = l.expected(s, g, path)
		return r
	})
	l.leave(host)
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
	path.Layout, path.RawHello, path.CRC = g.layout, g.raw, s.qp.Params().CRC
	l.opt.Logger.Info("connection up", "local", path.Local, "remote", path.Remote, "crc", path.CRC)
	if mv != nil {
		mv.arrive(s, g.layout, p, path)
		return
	}
	c := newConn(s.opt, g.layout, s, p)
	c.path = path
	select {
	case l.conns <- c:
		c.mu.Lock()
		c.leave()
		c.mu.Unlock()
	case <-l.dead:
		c.Abort()
	}
}
