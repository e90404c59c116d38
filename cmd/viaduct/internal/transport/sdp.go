package transport

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"viaduct/cmd/viaduct/internal/addr"
	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/portmap"
	"viaduct/sdp"
)

// sdpTransport is a byte stream over SDP. TLS runs inside the stream, so that TLS also protects a
// connection after a fall-back to plain TCP.
var sdpTransport = Transport{
	Scheme:       "sdp",
	Check:        func(u *addr.URL) error { _, err := sdpOptions(u, nil); return err },
	DialStream:   bounded(dialSDP),
	ListenStream: listenSDP,
	OverStream:   overSDP,
}

// SDPEnvironment is the variable for properties of all SDP connections. The value is a list of
// NAME=VALUE, separated by commas, with the names of the query parameters.
const SDPEnvironment = "VIADUCT_SDP"

// sdpOwn are the query parameters of sdp addresses unknown to sdp.Options.Set.
var sdpOwn = map[string]bool{"portmap": true, "resolve": true, "layout": true, "hello": true, "policy": true}

// sdpEnvironment returns the properties set by SDPEnvironment.
func sdpEnvironment() (set map[string]string, err error) {
	set = map[string]string{}
	for pair := range strings.SplitSeq(os.Getenv(SDPEnvironment), ",") {
		if k, v, ok := strings.Cut(strings.TrimSpace(pair), "="); ok {
			set[k] = v
		} else if pair != "" {
			return nil, fmt.Errorf("%s: %q is not NAME=VALUE", SDPEnvironment, pair)
		}
	}
	return set, nil
}

// sdpOptions returns the properties set by an address and by the environment. The address takes
// precedence. o may be nil.
func sdpOptions(u *addr.URL, o *Options) (opt sdp.Options, err error) {
	if o != nil {
		opt.Congestion, opt.Logger = o.Congestion, o.Env.Log
	}
	set, err := sdpEnvironment()
	if err != nil {
		return opt, err
	}
	if p := u.Query.Get("policy"); p != "" {
		set["send-policy"], set["recv-policy"] = p, p
	}
	for k, v := range u.Query {
		if sdpOwn[k] {
			continue
		}
		set[k] = v[0]
		if addr.SchemeOf("sdp").Param(k).Kind == addr.Size { // addr allows more units than sdp does
			set[k] = strconv.FormatUint(u.Number(k, 0), 10)
		}
	}
	return opt, opt.Set(set)
}

// RunOptions returns the properties of the SDP connections under viaduct run.
func RunOptions(e *shell.Env) (opt sdp.Options, err error) {
	set, err := sdpEnvironment()
	if err != nil {
		return opt, shell.Usage(err)
	}
	opt.Logger = e.Log
	return opt, shell.Usage(opt.Set(set))
}

// A mapper asks a Port Mapper on behalf of an SDP dialer.
type mapper struct{ c *portmap.Client }

func (m mapper) Resolve(ctx context.Context, local, service netip.AddrPort) (netip.AddrPort, error) {
	a, err := m.c.Resolve(ctx, portmap.Query{Service: service, Local: local})
	return a.Address, err
}

func (m mapper) Forget(service netip.AddrPort) { m.c.Forget(service) }

// mapperAt resolves the address HOST[:PORT] of a Port Mapper. The default is portmap.Port.
func mapperAt(ctx context.Context, s string) (netip.AddrPort, error) {
	u := &addr.URL{Host: strings.Trim(s, "[]"), Port: portmap.Port}
	if h, p, err := net.SplitHostPort(s); err == nil {
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil || n == 0 {
			return netip.AddrPort{}, shell.Usagef("portmap=%s has no port between 1 and 65535", s)
		}
		u.Host, u.Port = h, uint16(n)
	}
	return resolveHost(ctx, u, nil)
}

func dialSDP(ctx context.Context, u *addr.URL, o *Options) (net.Conn, error) {
	opt, err := sdpOptions(u, o)
	if err != nil {
		return nil, shell.Usage(err)
	}
	if o.Env.Capture != nil {
		opt.WrapConn = func(nc net.Conn) net.Conn { return o.Env.Wrap(nc, true) }
	}
	d := sdp.Dialer{Options: opt, RawHello: u.Query.Get("hello") == "raw"}
	if u.Query.Get("layout") == "ibta" {
		d.Layout = sdp.IBTA
	}
	if s := u.Query.Get("portmap"); s != "" {
		at, err := mapperAt(ctx, s)
		if err != nil {
			return nil, err
		}
		d.Resolver, d.Resolve = mapper{o.Env.Mapper(at)}, sdp.ResolvePrefer
		if u.Query.Get("resolve") == "require" {
			d.Resolve = sdp.ResolveRequire
		}
	}
	c, err := d.DialContext(ctx, "tcp", u.HostPort())
	if err != nil {
		return nil, err
	}
	watchStream(c, o, dialled)
	if p, ok := c.(interface{ Path() sdp.Path }); ok {
		o.Env.Log.Info("connected", "path", p.Path().String())
	}
	return dialTLS(ctx, c, u, o)
}

func listenSDP(u *addr.URL, o *Options) (net.Listener, error) {
	lc, err := sdpListenConfig(u, o)
	if err != nil {
		return nil, err
	}
	if base := o.Env.Inherited(u.HostPort()); base != nil {
		return overSDP(base, u, o)
	}
	l, err := lc.Listen(context.Background(), "tcp", u.HostPort())
	if err != nil {
		return nil, err
	}
	return listenTLS(&watchedListener{l, o}, o), nil
}

func overSDP(base net.Listener, u *addr.URL, o *Options) (net.Listener, error) {
	lc, err := sdpListenConfig(u, o)
	if err != nil {
		return nil, err
	}
	l, err := lc.NewListener(base)
	if err != nil {
		return nil, err
	}
	return listenTLS(&watchedListener{l, o}, o), nil
}

func sdpListenConfig(u *addr.URL, o *Options) (*sdp.ListenConfig, error) {
	for _, p := range addr.SchemeOf("sdp").Params {
		if p.Dialer && u.Query.Has(p.Name) {
			return nil, shell.Usagef("address %q: %s belongs to the side that connects", u, p.Name)
		}
	}
	opt, err := sdpOptions(u, o)
	if err != nil {
		return nil, shell.Usage(err)
	}
	if o.Env.Capture != nil {
		opt.WrapConn = func(nc net.Conn) net.Conn { return o.Env.Wrap(nc, false) }
	}
	return &sdp.ListenConfig{Options: opt}, nil
}

// SDPResumer opens a listener where suspended SDP connections of another process resume.
func SDPResumer(o *Options) (*sdp.Listener, error) {
	opt, err := sdpOptions(&addr.URL{Scheme: "sdp"}, o)
	if err != nil {
		return nil, err
	}
	lc := sdp.ListenConfig{Options: opt}
	return lc.Listen(context.Background(), "tcp", ":0")
}
