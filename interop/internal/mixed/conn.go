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

// Transports returns the names accepted by Open.
func Transports() []string { return []string{"tcp", "sdp", "iwarp", "vitcp", "fcvi"} }

// A Conn is an established connection.
type Conn interface {
	// Run executes this end's part of the plan, once, and returns when the connection has ended, at
	// the latest some seconds after ctx.
	Run(ctx context.Context) (Tally, error)
}

// A Node makes connections of a transport. Close releases all resources of the Node.
type Node interface {
	// Dial connects to an address returned by Listen.
	Dial(ctx context.Context, address string, p Plan) (Conn, error)
	// Listen accepts connections at HOST:PORT until ctx ends, and calls serve with each, in a
	// separate goroutine. It returns the address at once; wait returns when all calls of serve have
	// returned.
	Listen(ctx context.Context, hostPort string, p Plan, serve func(Conn)) (address string, wait func(), err error)
	// Regions returns the number of registered memory regions.
	Regions() int
	Close() error
}

// Settings of a node.
type Settings struct {
	WrapConn func(net.Conn) net.Conn // wraps each TCP connection, if not nil
	Fabric   string                  // fcvi only: address of a fabric to join with host address Host
	Host     string
	// Patience replaces the transports' time limits of a set-up, for busy machines; 0 keeps the
	// transports' limits.
	Patience  time.Duration
	KeepAlive time.Duration // period of TCP's keepalive, 0 leaves the default
	Logger    *slog.Logger
}

// grace is how long a connection request is held after arriving between two waits of a busy
// listener. It is long, because a busy machine may stand still between two waits.
const grace = 20 * time.Second

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

// addrPort parses an address returned by Listen.
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
