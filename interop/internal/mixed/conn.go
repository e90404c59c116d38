package mixed

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"time"

	"viaduct/fcvi"
	"viaduct/iwarp"

	"viaduct/vi"
	"viaduct/vitcp"
)

// Transports are the names that Open takes.
func Transports() []string { return []string{"tcp", "sdp", "iwarp", "vitcp", "fcvi"} }

// A Conn is a connection that is up.
type Conn interface {
	// Run does its part of the plan, once. It returns when the connection is
	// over, which it is at the latest some seconds after ctx.
	Run(ctx context.Context) (Tally, error)
}

// A Node makes connections of one transport. All that it holds ends with Close.
type Node interface {
	// Dial connects to the address that a Listener told.
	Dial(ctx context.Context, address string, p Plan) (Conn, error)
	// Listen accepts connections at HOST:PORT until ctx ends, and calls serve
	// with each, in a goroutine of its own. It returns the address at once; wait
	// returns when all calls of serve have.
	Listen(ctx context.Context, hostPort string, p Plan, serve func(Conn)) (address string, wait func(), err error)
	// Regions tells how many regions of memory are registered.
	Regions() int
	Close() error
}

// Settings of a node.
type Settings struct {
	WrapConn func(net.Conn) net.Conn // around each TCP connection, nil for none
	Fabric   string                  // of fcvi: a fabric to join as Host
	Host     string
	// Patience is in place of the limits of set-ups, for machines that are busy;
	// 0 leaves them as they are.
	Patience  time.Duration
	KeepAlive time.Duration // period of TCP's keepalive, 0 leaves the default
	Logger    *slog.Logger
}

// grace keeps a request that comes between two waits of a busy listener.
const grace = time.Second

// Open makes a node of a transport.
func Open(transport string, s Settings) (Node, error) {
	switch transport {
	case "tcp":
		return &tcpNode{s: s}, nil
	case "sdp":
		return &sdpNode{s: s}, nil
	case "iwarp":
		return &iwarpNode{s: s, device: iwarp.NewDevice(iwarp.DeviceConfig{})}, nil
	case "vitcp":
		return &viNode{s: s, open: func(listen string) (*vi.NIC, error) {
			p, err := vitcp.New(vitcp.Config{Listen: listen, Grace: max(grace, s.Patience), Disconnect: true, RequestTimeout: s.Patience, KeepAlive: s.KeepAlive, WrapConn: s.WrapConn, Logger: s.Logger})
			if err != nil {
				return nil, err
			}
			return vi.Open(p, "", &vi.Config{Logger: s.Logger})
		}}, nil
	case "fcvi":
		return &viNode{s: s, open: func(listen string) (*vi.NIC, error) {
			c := fcvi.Config{Listen: listen, Linger: max(grace, s.Patience), ULPTimeout: s.Patience, KeepAlive: s.KeepAlive, WrapConn: s.WrapConn, Logger: s.Logger}
			if s.Fabric != "" {
				c.Listen, c.Fabric = "", s.Fabric
			}
			p, err := fcvi.New(c)
			if err != nil {
				return nil, err
			}
			return vi.Open(p, s.Host, &vi.Config{Logger: s.Logger})
		}}, nil
	}
	return nil, fmt.Errorf("transport %q is not known", transport)
}

// addrPort splits an address that a Listener told.
func addrPort(address string) (netip.AddrPort, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return netip.AddrPort{}, err
	}
	a, err := netip.ParseAddr(host)
	if err != nil {
		return netip.AddrPort{}, err
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return netip.AddrPortFrom(a, uint16(n)), err
}

var _ = []Node{(*tcpNode)(nil), (*sdpNode)(nil), (*iwarpNode)(nil), (*viNode)(nil)}
