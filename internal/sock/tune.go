package sock

import (
	"net"
	"time"

	"viaduct/samehost"
)

// Tuning is the set of options for the socket of a connection.
type Tuning struct {
	// Congestion names the congestion control algorithm; "" keeps the system's default. Between
	// processes of a host "reno" is often much faster than "bbr". An algorithm the system does not
	// have is an error.
	Congestion string

	// KeepAlive is the TCP keepalive period. 0 keeps the default of package net (15 s); a negative
	// value turns keepalive off.
	KeepAlive time.Duration

	// SameHost says whether a listener offers shared memory to dialers of the same host.
	SameHost samehost.Policy

	// SameHostDir is the directory where a listener meets dialers of other network namespaces,
	// or "".
	SameHostDir string
}

// Tune sets the options of t on nc, and turns Nagle's algorithm off because the engines make
// batches. It does nothing if nc is no TCP connection.
func Tune(nc net.Conn, t Tuning) error {
	if o, ok := nc.(interface{ tune(Tuning) error }); ok { // see Own
		return o.tune(t)
	}
	tc, ok := nc.(*net.TCPConn)
	if !ok {
		return nil
	}
	if err := tc.SetNoDelay(true); err != nil {
		return err
	}
	if t.KeepAlive != 0 {
		if err := tc.SetKeepAliveConfig(net.KeepAliveConfig{
			Enable: t.KeepAlive > 0, Idle: t.KeepAlive, Interval: t.KeepAlive,
		}); err != nil {
			return err
		}
	}
	if t.Congestion != "" {
		return setCongestion(tc, t.Congestion)
	}
	return nil
}

// IsTCP reports whether nc is a TCP connection of package net or of this package.
func IsTCP(nc net.Conn) bool {
	if _, ok := nc.(interface{ tune(Tuning) error }); ok {
		return true
	}
	_, ok := nc.(*net.TCPConn)
	return ok
}
