package verbs

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"viaduct/cmd/viaduct/internal/addr"
	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/cmd/viaduct/internal/transport"
	"viaduct/internal/sock"
)

// proxyDialTimeout bounds how long a client waits for the connection to the target.
const proxyDialTimeout = 30 * time.Second

func proxyCommand(e *shell.Env) *cobra.Command {
	var listen []string
	var to, handover, tlsSide string
	var cf connFlags
	var rf registerFlags
	c := &cobra.Command{
		Use:   "proxy --listen URL --to URL",
		Short: "carry streams from one transport to another (tcp and sdp)",
		Long: `Accept streams on one transport and carry them over another, tcp and sdp in any
combination. Half-closes and resets are forwarded.

With --handover SOCKET (a path), the proxy can be replaced without dropping a
connection. Start another one with the same flags: the old one passes on its
listeners and open connections (those of SDP by socket duplication) and exits.

The flags of TLS apply to both sides, or to the side that --tls-side names.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(listen) == 0 || to == "" {
				return shell.Usagef("--listen URL and --to URL are needed")
			}
			us, ts, err := parseAll(append([]string{to}, listen...))
			if err != nil {
				return err
			}
			for i, t := range ts {
				if !t.IsStream() {
					return shell.Usagef("%s carries messages, not streams", us[i].Scheme)
				}
			}
			if err := rf.check(us[1:]); err != nil {
				return err
			}
			if err := oneOf(tlsSide, "both", "listen", "to"); err != nil {
				return shell.Usagef("--tls-side %v", err)
			}
			if tlsSide != "both" && !cf.tls.Given() {
				return shell.Usagef("--tls-side %s goes with --tls or another flag of TLS", tlsSide)
			}
			cf.dialTLS = tlsSide == "to"
			o, err := cf.options(e, true, us...)
			if err != nil {
				return err
			}
			switch tlsSide {
			case "listen":
				o.TLSDial = nil
			case "to":
				o.TLSListen = nil
			}
			if handover != "" && (cf.tls.Given() || e.Capture != nil) {
				return shell.Usagef("--handover goes with neither TLS nor --pcap: their state cannot move")
			}
			p := &proxy{e: e, o: o, to: us[0], tt: ts[0], us: us[1:], ts: ts[1:],
				live: map[*duplex]struct{}{}, handover: handover, rf: &rf}
			return p.run(cmd.Context())
		},
	}
	c.Flags().StringVar(&handover, "handover", "",
		"take over from another process, and later hand over to one, through `SOCKET`")
	c.Flags().StringArrayVar(&listen, "listen", nil, "`URL` to accept streams on; may be repeated")
	c.Flags().StringVar(&to, "to", "", "`URL` to carry them to")
	rf.add(c, &cf)
	cf.add(c)
	c.Flags().StringVar(&tlsSide, "tls-side", "both", "use TLS only on this `SIDE`: listen, to or both")
	return c
}

// A proxy carries streams from listeners to a single address.
type proxy struct {
	e        *shell.Env
	o        *transport.Options
	to       *addr.URL
	tt       *transport.Transport
	us       []*addr.URL
	ts       []*transport.Transport
	handover string // path of the socket; "" without handover
	rf       *registerFlags

	wg    sync.WaitGroup
	bases []*gate                   // with handover: the TCP listeners under those of the transports
	given map[string][]net.Listener // passed by a predecessor, by address without port
	urls  []*addr.URL               // addresses of the listeners
	ls    []net.Listener

	mu       sync.Mutex
	live     map[*duplex]struct{} // guarded by mu; nil once a handover has passed the pairs on
	starting int                  // guarded by mu; accepted and not yet in live
}

func (p *proxy) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer p.wg.Wait()
	defer cancel()
	fail, given := make(chan error, len(p.us)), make(chan error, 1)
	if p.handover != "" {
		if _, err := p.takeOver(ctx, p.handover); err != nil {
			return err
		}
	}
	for i, u := range p.us {
		l, g, err := p.listen(i, u)
		if err != nil {
			return fmt.Errorf("listen on %s: %w", u, err)
		}
		p.ls, p.urls = append(p.ls, l), append(p.urls, u.WithPort(l.Addr()))
		context.AfterFunc(ctx, func() { l.Close() })
		p.wg.Go(func() { p.accept(ctx, u.Scheme, l, g, fail) })
	}
	if p.handover != "" { // all listeners are there to be passed on
		if err := p.serveHandover(ctx, p.handover, given); err != nil {
			return err
		}
	}
	withdraw, err := p.rf.start(ctx, p.e, p.urls)
	defer withdraw()
	if err != nil {
		return err
	}
	for _, u := range p.urls {
		p.e.Listening(u)
	}
	if err := p.e.Ready(); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-fail:
		return err
	case err := <-given:
		return err
	}
}

// listen opens a listener, or takes a listener from a predecessor. Only with a handover there is a
// gate.
func (p *proxy) listen(i int, u *addr.URL) (net.Listener, *gate, error) {
	if p.handover == "" {
		l, err := p.ts[i].ListenStream(u, p.o)
		return l, nil, err
	}
	var base net.Listener
	if g := p.given[withoutPort(u)]; len(g) > 0 {
		base, p.given[withoutPort(u)] = g[0], g[1:]
	} else {
		var err error
		if base, err = p.e.Listen("tcp", u.HostPort()); err != nil {
			return nil, nil, err
		}
	}
	t, ok := base.(*net.TCPListener)
	if !ok {
		return nil, nil, fmt.Errorf("%T is no TCP listener", base)
	}
	g := &gate{TCPListener: t, shut: make(chan struct{}), stopped: make(chan struct{}), closed: make(chan struct{})}
	var err error
	g.above, err = p.ts[i].OverStream(g, u, p.o)
	p.bases = append(p.bases, g)
	return g.above, g, err
}

// A gate is a TCP listener below a transport's listener. It can stop accepting without closing. New
// connections then wait in the kernel's queue for the next holder of the socket.
type gate struct {
	*net.TCPListener
	shut    chan struct{} // closed to stop accepting
	stopped chan struct{} // closed when accepting has stopped
	closed  chan struct{} // closed by Close
	stop    sync.Once
	once    sync.Once

	above    net.Listener  // the transport's listener
	accepted atomic.Uint64 // connections that the transport got
	returned atomic.Uint64 // connections that the transport has set up and returned
}

func (g *gate) Accept() (net.Conn, error) {
	c, err := g.TCPListener.Accept()
	if err == nil {
		g.accepted.Add(1)
		return c, nil
	}
	select {
	case <-g.shut:
		g.stop.Do(func() { close(g.stopped) })
		<-g.closed
		return nil, net.ErrClosed
	default:
		return nil, err
	}
}

func (g *gate) Close() error {
	g.once.Do(func() { close(g.closed) })
	return g.TCPListener.Close()
}

// settled reports whether accepting has stopped and the transport is setting up no connection.
func (g *gate) settled() bool {
	select {
	case <-g.stopped:
	default:
		return false
	}
	done := g.returned.Load()
	if l, ok := g.above.(interface{ FailedSetups() uint64 }); ok {
		done += l.FailedSetups()
	}
	return done >= g.accepted.Load()
}

// settleTime bounds the wait of a handover for connections in setup: those that a client has begun,
// and ours to the target.
const settleTime = 10 * time.Second

// settle stops accepting connections and waits until none is being set up, for a limited time.
func (p *proxy) settle() {
	for _, g := range p.bases {
		close(g.shut)
		g.TCPListener.SetDeadline(time.Unix(1, 0))
	}
	for end := time.Now().Add(settleTime); time.Now().Before(end); time.Sleep(time.Millisecond) {
		settled := true
		for _, g := range p.bases {
			settled = settled && g.settled()
		}
		// accept counts a connection as starting before it counts the connection as returned.
		p.mu.Lock()
		n := p.starting
		p.mu.Unlock()
		if settled && n == 0 {
			return
		}
	}
}

// withoutPort returns the key of a passed listener. The key has no port, because the system may
// have picked the port.
func withoutPort(u *addr.URL) string {
	v := *u
	v.Port = 0
	return v.String()
}

// inherit keeps the listeners of a predecessor until listen needs the listeners. A listener with an
// invalid address is closed.
func (p *proxy) inherit(bases map[string]net.Listener) {
	p.given = map[string][]net.Listener{}
	for s, l := range bases {
		u, err := addr.Parse(s)
		if err != nil {
			l.Close()
			continue
		}
		p.given[withoutPort(u)] = append(p.given[withoutPort(u)], l)
	}
}

// stopAccepting closes the listeners of this process.
func (p *proxy) stopAccepting() {
	for _, l := range p.ls {
		l.Close()
	}
}

// takeAll removes and returns the live pairs. Afterwards enter refuses new pairs.
func (p *proxy) takeAll() (ds []*duplex) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for d := range p.live {
		ds = append(ds, d)
	}
	p.live = nil
	return ds
}

// accept serves the connections of l. g is the gate below l, or nil.
func (p *proxy) accept(ctx context.Context, scheme string, l net.Listener, g *gate, fail chan<- error) {
	for {
		c, err := sock.AcceptNext(l.Accept, ctx.Done())
		if err != nil {
			if ctx.Err() == nil && !errors.Is(err, net.ErrClosed) {
				fail <- err
			}
			return
		}
		p.began(1)
		if g != nil {
			g.returned.Add(1)
		}
		p.wg.Go(func() {
			defer p.e.Metrics.Connection(scheme, "accept")()
			log := p.e.Log.With("transport", scheme, "remote", c.RemoteAddr().String())
			log.Info("connected")
			if err := p.serve(ctx, scheme, c); err != nil && ctx.Err() == nil {
				p.e.Metrics.Failed(scheme, err)
				log.Warn("connection failed", "err", err)
				return
			}
			log.Info("disconnected")
		})
	}
}

func (p *proxy) serve(ctx context.Context, scheme string, c net.Conn) error {
	dctx, cancel := context.WithTimeout(ctx, proxyDialTimeout)
	far, err := p.tt.Stream(dctx, p.to, p.o)
	cancel()
	if err != nil {
		p.began(-1)
		abort(c) // the client gets the same reset as from a dead service
		return fmt.Errorf("connect to %s: %w", p.to, err)
	}
	defer p.e.Metrics.Connection(p.to.Scheme, "dial")()
	if p.handover != "" {
		d := newDuplex(scheme, c, p.to.Scheme, far)
		ok := p.enter(d)
		p.began(-1)
		if !ok {
			return errors.New("came in the middle of a handover")
		}
		return p.carry(ctx, d)
	}
	p.began(-1)
	stop := context.AfterFunc(ctx, func() { c.Close(); far.Close() })
	defer stop()
	return splice(p.e, scheme, c, p.to.Scheme, far)
}

// began adds n to the number of connections in setup.
func (p *proxy) began(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.starting += n
}

// enter adds a pair for a later handover. If a handover has already taken the pairs, enter resets
// both connections and returns false.
func (p *proxy) enter(d *duplex) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.live == nil {
		abort(d.near)
		abort(d.far)
		return false
	}
	p.live[d] = struct{}{}
	return true
}

// carry copies between the connections of a pair until both directions have ended, or until a
// handover pauses the pair.
func (p *proxy) carry(ctx context.Context, d *duplex) error {
	stop := context.AfterFunc(ctx, func() { d.near.Close(); d.far.Close() })
	err := d.run()
	p.e.Metrics.Bytes(d.nearName, "in").Add(float64(d.out.n))
	p.e.Metrics.Bytes(d.nearName, "out").Add(float64(d.back.n))
	if d.paused.Load() {
		// The other process has the pair, now or soon, so the ends are not used here.
		stop()
		return nil
	}
	p.mu.Lock()
	delete(p.live, d)
	p.mu.Unlock()
	stop()
	d.near.Close()
	d.far.Close()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// splice copies both directions between near and far, and closes both at the end. It passes on the
// end of a direction as a half-close. After an error of either connection, splice resets both.
func splice(e *shell.Env, nearName string, near net.Conn, farName string, far net.Conn) error {
	defer near.Close()
	defer far.Close()
	var wg sync.WaitGroup
	var errs [2]error
	var once sync.Once
	oneWay := func(i int, to net.Conn, toName string, from net.Conn, fromName string) {
		n, err := io.Copy(to, from)
		e.Metrics.Bytes(fromName, "in").Add(float64(n))
		e.Metrics.Bytes(toName, "out").Add(float64(n))
		if err == nil {
			err = closeWrite(to)
		}
		if err != nil {
			errs[i] = err
			once.Do(func() { abort(near); abort(far) })
		}
	}
	wg.Go(func() { oneWay(0, far, farName, near, nearName) })
	wg.Go(func() { oneWay(1, near, nearName, far, farName) })
	wg.Wait()
	for _, err := range errs {
		if err != nil && !errors.Is(err, net.ErrClosed) {
			return err
		}
	}
	return nil
}

func closeWrite(c net.Conn) error {
	h, ok := c.(interface{ CloseWrite() error })
	if !ok {
		return fmt.Errorf("%T cannot be half-closed", c)
	}
	if err := h.CloseWrite(); err != nil && !isNotConnected(err) {
		return err
	}
	return nil
}

// abort resets a connection. It does so below TLS, because closing TLS would signal an orderly end
// to the other side.
func abort(c net.Conn) {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	if h, ok := c.(interface{ SetLinger(int) error }); ok {
		h.SetLinger(0)
	}
	c.Close()
}
