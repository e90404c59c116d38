//go:build linux && (amd64 || arm64)

package run

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/cmd/viaduct/internal/transport"
	"viaduct/internal/status"
	"viaduct/internal/wire/mpa"
	"viaduct/iwarp"
	"viaduct/portmap"
	"viaduct/sdp"
)

// Times of a dial.
const (
	// dialTimeout is longer than the kernel's limit for a connect, so that a held connect ends by
	// the kernel's clock first.
	dialTimeout = 130 * time.Second
	// answerTimeout bounds the wait for a peer that accepts the connection and sends nothing, if
	// plain TCP can be used instead. An example is a plain TCP server in wait for the client's
	// first line.
	answerTimeout = 5 * time.Second
	// plainFor is how long the supervisor remembers an address without SDP.
	plainFor = time.Minute
	// tryingAfter is the time until --explain prints the reason why a connect is slow.
	tryingAfter = 20 * time.Millisecond
	// lingerSeconds bounds how long a close waits until the peer has received everything.
	lingerSeconds = 10
)

// A carrier dials SDP connections to replace programs' TCP connections.
type carrier struct {
	options sdp.Options
	mapper  *portmap.Client
	status  *shell.Status
	metrics *shell.Metrics
	named   bool // a flag names the Port Mapper
	require bool // a connection that cannot be carried fails
	local   localAddrs
	gates   gates
	plain   plainPlaces
}

func newCarrier(e *shell.Env, o *Options, server netip.AddrPort) (*carrier, error) {
	opt, err := transport.RunOptions(e)
	if err != nil {
		return nil, err
	}
	boundSDP(&opt)
	if e.Capture != nil {
		opt.WrapConn = func(c net.Conn) net.Conn { return e.Wrap(c, true) }
	}
	cfg := portmap.ClientConfig{Server: server, Logger: e.Log}
	if e.Capture != nil {
		cfg.Dial = e.DialUDP
	}
	return &carrier{options: opt, status: e.Status, metrics: e.Metrics, mapper: portmap.NewClient(cfg), named: o.PortMap != "", require: o.Require}, nil
}

// Resolve and Forget make the carrier an sdp.Resolver.
func (c *carrier) Resolve(ctx context.Context, local, service netip.AddrPort) (netip.AddrPort, error) {
	m, err := c.mapper.Resolve(ctx, portmap.Query{Service: service, Local: local})
	return m.Address, err
}

func (c *carrier) Forget(service netip.AddrPort) { c.mapper.Forget(service) }

// dial connects over SDP according to a rule. from, if valid, is the address the program bound the
// socket to.
func (c *carrier) dial(ctx context.Context, r *toRule, to netip.AddrPort, from netip.Addr) (net.Conn, error) {
	d := sdp.Dialer{Options: c.options}
	if from.IsValid() {
		d.Net.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
	}
	at := to
	if r.mapped {
		d.Resolve, d.Resolver = sdp.ResolveRequire, c
	} else {
		at = r.sdpAddr(to)
	}
	mayFallBack := !r.mapped && !c.require
	if mayFallBack {
		if err := c.plain.known(at); err != nil {
			return nil, err
		}
		if d.Options.SetupTimeout == 0 {
			d.Options.SetupTimeout = answerTimeout
		}
	}
	leave, err := c.gates.enter(ctx, at)
	if err != nil {
		return nil, err
	}
	defer leave()
	conn, err := d.DialContext(ctx, "tcp", at.String())
	if err != nil {
		if err = noSDP(ctx, at, err); mayFallBack {
			c.plain.note(at, err)
		}
		return nil, err
	}
	if s, ok := conn.(*sdp.Conn); ok {
		s.SetLinger(lingerSeconds)
	}
	c.status.Server().WatchConn(conn, status.Hint{Role: "dial"})
	c.metrics.WatchStream(conn)
	return conn, nil
}

// trying describes what a long dial is waiting for.
func (c *carrier) trying(r *toRule, to netip.AddrPort) string {
	limit := c.options.SetupTimeout
	if limit == 0 {
		limit = answerTimeout
	}
	switch {
	case r.mapped:
		return "asking the Port Mapper"
	case c.require:
		return fmt.Sprintf("at %v", r.sdpAddr(to))
	}
	return fmt.Sprintf("at %v, for %v at most, then plain tcp", r.sdpAddr(to), limit)
}

// A noSDPError reports a peer that accepts connections but does not speak SDP.
type noSDPError struct {
	at    netip.AddrPort
	what  string // the peer's reaction
	until time.Time
	cause error
}

func (e *noSDPError) Error() string {
	if e.until.IsZero() {
		return fmt.Sprintf("no sdp at %v: it %s", e.at, e.what)
	}
	return fmt.Sprintf("no sdp at %v: it %s; not tried again for %v", e.at, e.what,
		time.Until(e.until).Round(time.Second))
}

func (e *noSDPError) Unwrap() error { return e.cause }

// noSDP returns a *noSDPError if the error of a dial shows a peer without SDP, and err otherwise.
// ctx is the dial's.
func noSDP(ctx context.Context, at netip.AddrPort, err error) error {
	switch {
	case errors.Is(err, sdp.ErrNoHelloAck): // a plain TCP server would not have answered in this way
	case errors.Is(err, iwarp.ErrTimeout), errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
		return &noSDPError{at: at, what: "does not answer the set-up of a connection", cause: err}
	case errors.Is(err, mpa.ErrKey):
		return &noSDPError{at: at, what: "answers in another protocol", cause: err}
	}
	return err
}

// plainPlaces remembers the addresses without SDP. Otherwise each connection would wait again, and
// the server would take the first message of SDP for a separate request protocol.
type plainPlaces struct {
	mu sync.Mutex
	m  map[netip.AddrPort]*noSDPError // guarded by mu
}

// known returns the remembered error of an address, nil if there is none.
func (p *plainPlaces) known(at netip.AddrPort) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.m[at]
	if e == nil {
		return nil
	}
	if time.Now().After(e.until) {
		delete(p.m, at)
		return nil
	}
	return e
}

// note records err for an address if err is a *noSDPError.
func (p *plainPlaces) note(at netip.AddrPort, err error) {
	e, ok := errors.AsType[*noSDPError](err)
	if !ok {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.m == nil {
		p.m = map[netip.AddrPort]*noSDPError{}
	}
	known := *e
	known.until = time.Now().Add(plainFor)
	p.m[at] = &known
}

// dialsAtOnce is how many dials to an address run at a time. A program may start any number of
// connects. A TCP listener queues all of the connections, but an SDP listener refuses more than 32
// set-ups from another host (sdp.ListenConfig.MaxPendingPerHost).
const dialsAtOnce = 24

// gates limits the dials to each address.
type gates struct {
	mu sync.Mutex
	m  map[netip.AddrPort]*gate // guarded by mu
}

type gate struct {
	slots chan struct{}
	uses  int // guarded by gates.mu
}

// enter waits until a dial to an address may begin. The caller calls leave at the end of the dial.
func (g *gates) enter(ctx context.Context, at netip.AddrPort) (leave func(), err error) {
	g.mu.Lock()
	p := g.m[at]
	if p == nil {
		if g.m == nil {
			g.m = map[netip.AddrPort]*gate{}
		}
		p = &gate{slots: make(chan struct{}, dialsAtOnce)}
		g.m[at] = p
	}
	p.uses++
	g.mu.Unlock()
	forget := func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if p.uses--; p.uses == 0 {
			delete(g.m, at)
		}
	}
	select {
	case p.slots <- struct{}{}:
		return func() { <-p.slots; forget() }, nil
	case <-ctx.Done():
		forget()
		return nil, ctx.Err()
	}
}

// whyNot describes in a few words why a connection does not use SDP.
func whyNot(err error) string {
	switch {
	case errors.Is(err, portmap.ErrDenied):
		return "the Port Mapper knows no SDP address"
	case errors.Is(err, portmap.ErrNoAnswer):
		return "the Port Mapper does not answer"
	}
	return err.Error()
}

// localAddrs caches the addresses of this host for some seconds.
type localAddrs struct {
	mu  sync.Mutex
	at  time.Time           // guarded by mu
	all map[netip.Addr]bool // guarded by mu
}

func (l *localAddrs) has(a netip.Addr) bool {
	if a.IsLoopback() {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.at) > 5*time.Second {
		as, err := net.InterfaceAddrs()
		if err == nil { // otherwise the cached addresses stay
			l.all, l.at = map[netip.Addr]bool{}, time.Now()
		}
		for _, a := range as {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				l.all[p.Addr().Unmap()] = true
			}
		}
	}
	return l.all[a.WithZone("")]
}
