package portmap

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"syscall"
	"time"

	"viaduct/internal/perturb"
	"viaduct/internal/wire/portmapwire"
)

// [SDP-16-1] [SDP-7.4-1]

// Port is the default UDP port of a server.
const Port = 3935

// ClientConfig holds the settings of a client. The zero value is usable.
type ClientConfig struct {
	// Server, if set, is asked instead of the service's host. If Server's port is 0, Port is used.
	Server netip.AddrPort

	// DeniedFor and SilentFor are the times for which the client remembers a denial, or the lack of
	// an answer, so that not every dial waits for an answer again. 0 means the defaults, 30 s and
	// 60 s. With a negative value, nothing is remembered.
	DeniedFor, SilentFor time.Duration

	// MaxCache is the maximum number of remembered answers. 0 means 4096.
	MaxCache int

	// Logger gets a line for each question. nil disables logging.
	Logger *slog.Logger

	// Dial, if set, opens the UDP socket of a question. It is called instead of d.DialContext. The
	// connection must have UDP addresses.
	Dial func(ctx context.Context, d *net.Dialer, network, address string) (net.Conn, error)

	// DeniedFor, SilentFor [D-64].
}

// A Client asks Port Mappers and remembers the answers. It has no open socket between questions. It
// is safe for concurrent use.
type Client struct {
	cfg ClientConfig
	log *slog.Logger

	mu    perturb.Mutex
	cache cache // guarded by mu
}

// A Query names the service a dialer looks for.
type Query struct {
	// Service is the conventional address of the service.
	Service netip.AddrPort
	// Local is the source address of the later connection, for example the LocalAddr of a bound
	// socket. A dialer binds its TCP socket first and uses the port of the socket. Port 0 suits
	// servers that do not check the port. If the address is not set, the routing table chooses the
	// address.
	Local netip.AddrPort

	// Local [D-57] [D-58].
}

// NewClient returns a client with the settings cfg.
func NewClient(cfg ClientConfig) *Client {
	if cfg.DeniedFor == 0 {
		cfg.DeniedFor = 30 * time.Second
	}
	if cfg.SilentFor == 0 {
		cfg.SilentFor = 60 * time.Second
	}
	if cfg.MaxCache <= 0 {
		cfg.MaxCache = 4096
	}
	log := cfg.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Client{cfg: cfg, log: log, cache: cache{m: make(map[cacheKey]cacheEntry), max: cfg.MaxCache}}
}

// Resolve returns the SDP Address of a service. The error is ErrDenied or ErrNoAnswer if the
// conventional address should be used. Otherwise it is the error of ctx, if ctx has ended first, or
// the error of a socket. If the answer has PmTime Once, connect to the address at once.
func (c *Client) Resolve(ctx context.Context, q Query) (Mapped, error) {
	q.Service = netip.AddrPortFrom(q.Service.Addr().Unmap(), q.Service.Port())
	server := c.cfg.Server
	if !server.IsValid() || server.Addr().IsUnspecified() {
		server = netip.AddrPortFrom(q.Service.Addr(), server.Port())
	}
	if server.Port() == 0 {
		server = netip.AddrPortFrom(server.Addr(), Port)
	}

	// A connected socket receives datagrams from the server only [D-66], and has the source address
	// the routing table chooses [D-58].
	var d net.Dialer
	if a := q.Local.Addr(); a.IsValid() && !a.IsUnspecified() && a.Unmap().Is4() == server.Addr().Unmap().Is4() {
		d.LocalAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, 0))
	}
	dial := c.cfg.Dial
	if dial == nil {
		dial = func(ctx context.Context, d *net.Dialer, network, address string) (net.Conn, error) {
			return d.DialContext(ctx, network, address)
		}
	}
	conn, err := dial(ctx, &d, "udp", server.String())
	if err != nil {
		return Mapped{}, fmt.Errorf("portmap: %w", err)
	}
	defer conn.Close()
	local := q.Local.Addr().Unmap()
	if !local.IsValid() || local.IsUnspecified() {
		if local, err = c.source(ctx, conn, server, q.Service); err != nil {
			return Mapped{}, err
		}
	}

	key := cacheKey{server: server, service: q.Service, local: local.WithZone("")}
	c.mu.Lock()
	e, ok := c.cache.get(time.Now(), key)
	c.mu.Unlock()
	if ok {
		return e.m, e.err
	}

	var h [8]byte
	rand.Read(h[:]) // 64 random bits are unique and hard to guess [SDP-7.3.1.8-1] [SDP-7.4-11] [SDP-7.5.1-1] [SDP-7.5.1-5] [SDP-7.5.1-6]
	t, err := newTransaction(binary.BigEndian.Uint64(h[:]), netip.AddrPortFrom(local, q.Local.Port()), q.Service)
	if err != nil {
		return Mapped{}, err
	}
	m, err := run(ctx, conn, t)
	if err != nil {
		c.log.Debug("port mapper asked", "remote", server, "service", q.Service, "err", err)
	} else {
		c.log.Debug("port mapper asked", "remote", server, "service", q.Service, "sdp", m.Address)
	}
	c.remember(key, m, err)
	return m, err
}

// source returns the address from which the system would connect to the service.
func (c *Client) source(ctx context.Context, asked net.Conn, server, service netip.AddrPort) (netip.Addr, error) {
	if server.Addr() != service.Addr() {
		var d net.Dialer
		probe, err := d.DialContext(ctx, "udp", service.String()) // sends nothing, but chooses the source address
		if err != nil {
			return netip.Addr{}, fmt.Errorf("portmap: %w", err)
		}
		defer probe.Close()
		asked = probe
	}
	return asked.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}

func (c *Client) remember(key cacheKey, m Mapped, err error) {
	now := time.Now()
	e := cacheEntry{m: m, err: err}
	switch {
	case err == nil:
		e.end = m.At.Add(m.PmTime.Duration())
	case errors.Is(err, ErrDenied):
		e.end = now.Add(c.cfg.DeniedFor)
	case errors.Is(err, ErrNoAnswer):
		e.end = now.Add(c.cfg.SilentFor)
	default:
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cache.put(now, key, e)
}

// Forget removes the remembered answers about a service. A dialer calls Forget if the SDP Address
// has refused the connection.
func (c *Client) Forget(service netip.AddrPort) { // [D-64] [SDP-7.5.1-8]
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cache.forget(netip.AddrPortFrom(service.Addr().Unmap(), service.Port()))
}

// run performs a transaction over a connected socket and returns the result.
func run(ctx context.Context, conn net.Conn, t *transaction) (Mapped, error) {
	stop := context.AfterFunc(ctx, func() { conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	out := t.Start(time.Now())
	buf := make([]byte, portmapwire.MessageLen+1) // one byte more, to detect a longer datagram, whose excess is ignored [D-61]
	for {
		if out != nil {
			if _, err := conn.Write(out); err != nil && !nothingListens(err) { // [SDP-7.4-3] [SDP-7.4-26]
				return Mapped{}, fmt.Errorf("portmap: %w", err)
			} else if err != nil { // [D-63]
				t.Unreachable(time.Now())
			}
			out = nil
		}
		m, done, err := t.Done()
		if done { // the caller gets the answer without delay [SDP-7.3.1.4-5]
			return m, err
		}
		at, _ := t.Deadline()
		conn.SetReadDeadline(at)
		// This check follows SetReadDeadline, which may have replaced the deadline of AfterFunc.
		if err := ctx.Err(); err != nil {
			return Mapped{}, fmt.Errorf("portmap: asking %v: %w", conn.RemoteAddr(), context.Cause(ctx))
		}
		n, err := conn.Read(buf)
		switch now := time.Now(); {
		case err == nil:
			out = t.Receive(now, buf[:n])
		case isTimeout(err):
			out = t.Timeout(now)
		case nothingListens(err):
			t.Unreachable(now) // [D-63]
		default:
			return Mapped{}, fmt.Errorf("portmap: %w", err)
		}
	}
}

func isTimeout(err error) bool {
	ne, ok := errors.AsType[net.Error](err)
	return ok && ne.Timeout()
}

func nothingListens(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }
