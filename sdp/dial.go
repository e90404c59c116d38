package sdp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"viaduct/internal/sock"

	"viaduct/internal/wire/sdpwire"
)

// A Resolver maps the conventional address of a service to the address where the service speaks
// SDP, like a client of the Port Mapper.
type Resolver interface { // [D-71]
	// Resolve returns the SDP address of service. local is the address from which the connection
	// will be made; its port is 0 if no port is bound yet. An error means that the address does not
	// exist or is unknown.
	Resolve(ctx context.Context, local, service netip.AddrPort) (netip.AddrPort, error)
	// Forget reports that the address Resolve returned for service did not work.
	Forget(service netip.AddrPort)

	// Resolve [D-57], Forget [D-64].
}

// [D-71]

// A ResolveMode selects how a dialer uses its Resolver.
type ResolveMode uint8

// A dialer uses its Resolver in one of these modes.
const (
	ResolveOff ResolveMode = iota // do not resolve: the dialed address speaks SDP
	// ResolvePrefer resolves and uses SDP. If SDP fails, the dialer uses plain TCP to the
	// conventional address.
	ResolvePrefer
	ResolveRequire // resolve and use SDP, otherwise fail
)

// A Dialer makes connections. The zero value dials addresses that speak SDP. An unchanged Dialer is
// safe for concurrent use.
type Dialer struct {
	Options

	// Net dials TCP; Timeout, Deadline and LocalAddr have their usual meaning.
	Net net.Dialer

	Resolve  ResolveMode
	Resolver Resolver // needed unless Resolve is ResolveOff

	// Layout is the layout of the headers; the listener uses the same.
	Layout Layout
	// RawHello sends the Hello before MPA's start-up instead of in its private data.
	RawHello bool
	// NoCpPort binds no local port before the call of the Resolver, and passes port 0.
	NoCpPort bool

	// Layout [D-01], RawHello [D-02], NoCpPort [D-57].
}

// Dial connects to an address that speaks SDP, host:port. opt may be nil. See [Dialer.DialContext]
// for the errors.
func Dial(address string, opt *Options) (*Conn, error) {
	return DialContext(context.Background(), address, opt)
}

// DialContext connects like [Dial], until ctx ends. See [Dialer.DialContext] for a resolver, and
// for a fallback to TCP.
func DialContext(ctx context.Context, address string, opt *Options) (*Conn, error) {
	d := Dialer{}
	if opt != nil {
		d.Options = *opt
	}
	c, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return c.(*Conn), nil
}

// DialContext connects to address, host:port, over network "tcp", "tcp4" or "tcp6". Any other
// network is a net.UnknownNetworkError, because SDP runs only over TCP. The connection is a *Conn;
// with ResolvePrefer it may also be a *TCPConn. Both have a method Path that reports how the
// connection was made.
//
// Errors are *net.OpError. The errors wrap a *RefusedError, a *ProtocolError, or an error of
// package iwarp or of the Resolver.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) { // [SDP-4.1-2] [SDP-7-1]
	if err := checkNetwork("dial", network, addrString(address)); err != nil {
		return nil, err
	}
	opt, err := d.complete()
	if err != nil {
		return nil, err
	}
	if d.Net.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d.Net.Timeout)
		defer cancel()
	}
	var c net.Conn
	switch {
	case d.Resolve == ResolveOff:
		c, err = d.dialSDP(ctx, d.Net, network, address, opt, "dialled as an SDP address", false)
	case d.Resolver == nil:
		err = errors.New("sdp: the dialer is to resolve addresses, and has no resolver")
	default:
		c, err = d.dialResolved(ctx, network, address, opt)
	}
	if err != nil {
		var oe *net.OpError
		if errors.As(err, &oe) {
			return nil, err
		}
		return nil, &net.OpError{Op: "dial", Net: "sdp", Addr: addrString(address), Err: err}
	}
	return c, nil
}

// checkNetwork returns an error for all networks but TCP: there is no datagram service, and only
// TCP carries MPA here. [SDP-4.1-1]
func checkNetwork(op, network string, a net.Addr) error {
	switch network {
	case "tcp", "tcp4", "tcp6":
		return nil
	}
	return &net.OpError{Op: op, Net: "sdp", Addr: a, Err: net.UnknownNetworkError(network)}
}

type addrString string

func (addrString) Network() string  { return "sdp" }
func (a addrString) String() string { return string(a) }

// dialSDP connects to an SDP address. why and mapped become fields of the connection's Path.
func (d *Dialer) dialSDP(ctx context.Context, nd net.Dialer, network, address string, opt Options, why string, mapped bool) (*Conn, error) {
	nc, err := dialTCP(ctx, &nd, network, address, &opt)
	if err != nil {
		return nil, err
	}
	return d.client(ctx, nc, opt, Path{SDP: true, Why: why, Mapped: mapped}, nil)
}

// dialTCP makes the TCP connection. Without Options.WrapConn only package sock uses the connection,
// so the connection need not be a net.TCPConn.
func dialTCP(ctx context.Context, nd *net.Dialer, network, address string, opt *Options) (net.Conn, error) {
	dial := nd.DialContext
	if opt.WrapConn == nil {
		dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			return sock.Dial(ctx, nd, network, address)
		}
	}
	nc, err := dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if err := sock.ShareMemory(ctx, nc, opt.SameHost, opt.SameHostDir); err != nil {
		nc.Close()
		return nil, err
	}
	return nc, nil
}

func (d *Dialer) client(ctx context.Context, nc net.Conn, opt Options, path Path, token []byte) (*Conn, error) {
	path.Local, path.Remote = nc.LocalAddr(), nc.RemoteAddr()
	path.Layout, path.RawHello = d.Layout, d.RawHello
	s, p, err := connect(ctx, nc, opt, sdpwire.Layout(d.Layout), d.RawHello, token)
	if err != nil {
		return nil, err
	}
	path.CRC = s.qp.Params().CRC
	path.by(s.qp)
	c := newConn(s.opt, sdpwire.Layout(d.Layout), s, p)
	c.path, c.token = path, token
	if opt.Logger.Enabled(ctx, slog.LevelInfo) {
		opt.Logger.Info("connection up", "local", path.Local.String(), "remote", path.Remote.String(),
			"why", path.Why, "crc", path.CRC)
	}
	c.begin()
	return c, nil
}

// Client makes a connection, as Connecting Peer, on the existing TCP connection nc. nc belongs to
// the connection from the call on, and is closed after an error.
func (d *Dialer) Client(ctx context.Context, nc net.Conn) (*Conn, error) {
	opt, err := d.complete()
	if err != nil {
		nc.Close()
		return nil, err
	}
	return d.client(ctx, nc, opt, Path{SDP: true, Why: "on a given TCP connection"}, nil)
}

// dialResolved looks up the IP addresses of address, and connects to the first that works. [D-71]
func (d *Dialer) dialResolved(ctx context.Context, network, address string, opt Options) (net.Conn, error) {
	services, err := lookup(ctx, network, address)
	if err != nil {
		return nil, err
	}
	var last error
	for _, service := range services {
		c, err := d.dialService(ctx, network, service, opt)
		if err == nil {
			return c, nil
		}
		if last = err; ctx.Err() != nil {
			break
		}
	}
	return nil, last
}

// lookup returns the IP addresses and port of address, host:port. An empty host means localhost.
func lookup(ctx context.Context, network, address string) ([]netip.AddrPort, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	n, err := net.DefaultResolver.LookupPort(ctx, network, port)
	if err != nil {
		return nil, err
	}
	if host == "" {
		host = "localhost"
	}
	ipnet := "ip"
	if len(network) > 3 {
		ipnet += network[3:]
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, ipnet, host)
	if err != nil {
		return nil, err
	}
	var out []netip.AddrPort
	for _, ip := range ips {
		out = append(out, netip.AddrPortFrom(ip.Unmap(), uint16(n)))
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("sdp: no address for %q", host)
	}
	return out, nil
}

// dialService connects to one service, over SDP or, with ResolvePrefer, over plain TCP if SDP
// fails. SDP gets half of the time before the deadline of ctx, so that the rest remains for plain
// TCP.
func (d *Dialer) dialService(ctx context.Context, network string, service netip.AddrPort, opt Options) (net.Conn, error) {
	first := ctx
	if at, ok := ctx.Deadline(); ok && d.Resolve == ResolvePrefer {
		var cancel context.CancelFunc
		first, cancel = context.WithTimeout(ctx, time.Until(at)/2)
		defer cancel()
	}
	local, release, err := d.reserve(service)
	if err != nil {
		return nil, err
	}
	defer release()
	nd := d.Net
	nd.Timeout = 0
	bound := nd
	if local.Port() != 0 {
		bound.LocalAddr = net.TCPAddrFromAddrPort(local)
		bound.Control = reuse
	}
	c, err := d.dialMapped(first, bound, network, local, service, opt)
	if err == nil {
		return c, nil
	}
	if d.Resolve == ResolveRequire || ctx.Err() != nil {
		return nil, err
	}
	opt.Logger.Info("falling back to tcp", "service", service, "err", err)
	release()
	nc, terr := bound.DialContext(ctx, network, service.String())
	if terr != nil && bound.LocalAddr != nil { // the port may be in a state that forbids using it again
		nc, terr = nd.DialContext(ctx, network, service.String())
	}
	if terr != nil {
		return nil, terr
	}
	tc, ok := nc.(*net.TCPConn)
	if !ok {
		nc.Close()
		return nil, fmt.Errorf("sdp: %T is not TCP", nc)
	}
	return &TCPConn{tc, Path{Why: "no SDP there: " + err.Error(), Err: err, Local: nc.LocalAddr(), Remote: nc.RemoteAddr()}}, nil
}

// dialMapped resolves service and connects to the result. The caller may fall back to TCP after any
// error (no answer, a denial, a reset, a timeout, no MPA or no Hello), because no byte of the ULP
// has been sent. [SDP-7.5.1-7] [SDP-7.5.1-8]
func (d *Dialer) dialMapped(ctx context.Context, nd net.Dialer, network string, local, service netip.AddrPort, opt Options) (*Conn, error) {
	at, err := d.Resolver.Resolve(ctx, local, service)
	if err != nil {
		return nil, fmt.Errorf("sdp: asking for %v: %w", service, err)
	}
	c, err := d.dialSDP(ctx, nd, network, at.String(), opt, fmt.Sprintf("%v is mapped to %v", service, at), true)
	if err != nil {
		d.Resolver.Forget(service)
		return nil, err
	}
	return c, nil
}
