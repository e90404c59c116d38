package sock

import (
	"net"
	"time"

	"viaduct/samehost"
)

// Tuning is what can be set on the socket of a connection.
type Tuning struct {
	// Congestion names the congestion control algorithm, "" leaves the
	// system's. Between processes of one host "reno" is often much faster
	// than "bbr". An algorithm the system does not have is an error.
	Congestion string

	// KeepAlive is the TCP keepalive period; 0 leaves the default of package
	// net (15 s), a negative value turns keepalive off.
	KeepAlive time.Duration

	// SameHost is for listeners: whether they offer shared memory to dialers of
	// this host.
	SameHost samehost.Policy

	// SameHostDir is a directory in which dialers of other network namespaces are
	// met, "" for none.
	SameHostDir string
}

// Tune applies t and turns Nagle's algorithm off, since the engines make
// batches. A stream that is no TCP socket is left alone.
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

// IsTCP reports whether nc is a TCP connection, of package net or of this one.
func IsTCP(nc net.Conn) bool {
	if _, ok := nc.(interface{ tune(Tuning) error }); ok {
		return true
	}
	_, ok := nc.(*net.TCPConn)
	return ok
}
