// Package run is the verb run. The verb carries the TCP connections of an unmodified program over
// SDP, or lets a [Service] answer the program's calls (--rdma).
//
// Three processes take part. The front is the process the shell started. It starts the supervisor,
// passes on signals, and ends with the program's exit code. If the supervisor dies, the front
// serves the program's calls. The supervisor starts the program as a child, answers the program's
// calls, and carries the connections. It lives as long as any process of the program.
//
// A carried connection is the program's own TCP socket, connected over loopback to the supervisor.
// The supervisor relays the bytes.
package run

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Exit codes, with the same meaning as in shells.
const (
	ExitRun       = 125 // run itself failed
	ExitNotExec   = 126 // the program can't be executed
	ExitNoProgram = 127 // there is no such program
)

// Options are the flags of the verb.
type Options struct {
	To      []string // rules for outgoing connections, see parseTo
	Listen  []string // ports of carried listeners, see parseListen
	PortMap string   // address of the Port Mapper to ask; "" means the one of each host
	// PortMapListen is the UDP address of the supervisor's Port Mapper for the program's listeners.
	// "" tries the usual port, "off" means none.
	PortMapListen string
	// SameHost are the ports whose connections between two programs of the same host become socket
	// pairs, see parseSameHost; "" means none.
	SameHost string
	Require  bool
	Explain  string        // "" off, "-" stderr, else a file
	Bound    time.Duration // how long a connect call waits before it is answered as in progress
	Service  NewService    // makes a service for the program's calls; usually nil
	Restarts Restarts      // selects the calls that signals must not interrupt; nil without Service

	Program string
	Args    []string // the program and its arguments
}

// A toRule selects outgoing connections to carry.
type toRule struct {
	prefix  netip.Prefix
	port    uint16 // 0 is any
	mapped  bool   // the Port Mapper gives the SDP address
	host    netip.Addr
	sdpPort uint16 // 0: the port of the connection
}

// parseTo parses PREFIX[:PORT][=WHERE]. PREFIX is an address, a prefix, or * for all; an IPv6
// prefix with a port is in brackets. WHERE is the SDP address: "portmap", or [HOST]:PORT. The
// default of WHERE is the address and port of the connection.
func parseTo(s string) (r toRule, err error) {
	what, where, has := strings.Cut(s, "=")
	bad := func(msg string) (toRule, error) { return toRule{}, fmt.Errorf("--to %q: %s", s, msg) }
	prefix, port := splitPort(what)
	if port != "" {
		if r.port, err = parsePort(port); err != nil {
			return bad(err.Error())
		}
	}
	switch {
	case prefix == "*":
	case strings.Contains(prefix, "/"):
		if r.prefix, err = netip.ParsePrefix(prefix); err != nil {
			return bad(fmt.Sprintf("%q is no address prefix such as 192.0.2.0/24", prefix))
		}
		r.prefix = r.prefix.Masked()
	default:
		a, err := netip.ParseAddr(prefix)
		if err != nil {
			return bad(fmt.Sprintf("%q is no IP address or prefix", prefix))
		}
		r.prefix = netip.PrefixFrom(a.Unmap().WithZone(""), a.Unmap().BitLen())
	}
	switch {
	case !has:
	case where == "portmap":
		r.mapped = true
	default:
		host, port := splitPort(where)
		if host != "" {
			if r.host, err = netip.ParseAddr(host); err != nil {
				return bad(fmt.Sprintf("%q is no IP address", host))
			}
		}
		if r.sdpPort, err = parsePort(port); err != nil {
			return bad("after = comes portmap or [HOST]:PORT: " + err.Error())
		}
	}
	return r, nil
}

// splitPort splits PREFIX:PORT. An IPv6 prefix with a port is in brackets.
func splitPort(s string) (prefix, port string) {
	if rest, ok := strings.CutPrefix(s, "["); ok {
		prefix, port, _ = strings.Cut(rest, "]")
		return prefix, strings.TrimPrefix(port, ":")
	}
	if strings.Count(s, ":") == 1 {
		prefix, port, _ = strings.Cut(s, ":")
		return prefix, port
	}
	return s, ""
}

func parsePort(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%q is no port between 1 and 65535", s)
	}
	return uint16(n), nil
}

func (r *toRule) matches(to netip.AddrPort) bool {
	return (r.port == 0 || r.port == to.Port()) && (!r.prefix.IsValid() || r.prefix.Contains(to.Addr().WithZone("")))
}

// sdpAddr returns the SDP address for a matching connection.
func (r *toRule) sdpAddr(to netip.AddrPort) netip.AddrPort {
	host, port := to.Addr(), to.Port()
	if r.host.IsValid() {
		host = r.host
	}
	if r.sdpPort != 0 {
		port = r.sdpPort
	}
	return netip.AddrPortFrom(host, port)
}

// A listenRule selects a listener to carry.
type listenRule struct {
	port    uint16 // 0 is any
	sdpPort uint16 // 0: the system picks one
}

// parseListen parses PORT[=SDPPORT], or "any" for port 0.
func parseListen(s string) (r listenRule, err error) {
	if s == "any" {
		return r, nil
	}
	port, sdpPort, has := strings.Cut(s, "=")
	if r.port, err = parsePort(port); err == nil && has {
		r.sdpPort, err = parsePort(sdpPort)
	}
	if err != nil {
		return listenRule{}, fmt.Errorf("--listen %q: %w", s, err)
	}
	return r, nil
}

// parseSameHost parses PORT[,PORT]..., or "any" for port 0.
func parseSameHost(s string) (ports []uint16, err error) {
	switch s {
	case "":
		return nil, nil
	case "any":
		return []uint16{0}, nil
	}
	for v := range strings.SplitSeq(s, ",") {
		p, err := parsePort(v)
		if err != nil {
			return nil, fmt.Errorf("--same-host %q: %w", s, err)
		}
		ports = append(ports, p)
	}
	return ports, nil
}

// rules holds all rules of a run.
type rules struct {
	to     []toRule
	listen []listenRule
	pairs  []uint16 // ports; 0 means any
}

func parseRules(o *Options) (r rules, err error) {
	for _, s := range o.To {
		t, err := parseTo(s)
		if err != nil {
			return r, err
		}
		r.to = append(r.to, t)
	}
	for _, s := range o.Listen {
		l, err := parseListen(s)
		if err != nil {
			return r, err
		}
		r.listen = append(r.listen, l)
	}
	r.pairs, err = parseSameHost(o.SameHost)
	return r, err
}

// outgoing returns the rule for a connection, or nil. Without any rule, the Port Mapper decides:
// the named Port Mapper, if any, otherwise the Port Mapper of each host.
func (r *rules) outgoing(to netip.AddrPort, portMap bool) *toRule {
	for i := range r.to {
		if r.to[i].matches(to) {
			return &r.to[i]
		}
	}
	if len(r.to) == 0 && len(r.listen) == 0 && (portMap || !to.Addr().IsLoopback()) {
		return &toRule{mapped: true}
	}
	return nil
}

func (r *rules) listener(port uint16) *listenRule {
	for i := range r.listen {
		if r.listen[i].port == 0 || r.listen[i].port == port {
			return &r.listen[i]
		}
	}
	return nil
}

// sameHost reports whether connections to a port may become pairs.
func (r *rules) sameHost(port uint16) bool {
	return slices.Contains(r.pairs, 0) || slices.Contains(r.pairs, port)
}

// serves reports whether the supervisor serves a listener at a port.
func (r *rules) serves(port uint16) bool { return r.listener(port) != nil || r.sameHost(port) }
