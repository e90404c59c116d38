package transport

import (
	"net"

	"viaduct/cmd/viaduct/internal/addr"
	"viaduct/internal/status"
	"viaduct/sdp"
)

// Roles of a connection, as shown by "viaduct ps".
const (
	dialled  = "dial"
	accepted = "accept"
	peered   = "peer"
)

// watch lists the connection c of a message transport in "viaduct ps" and counts c in the metrics.
func watch(c any, u *addr.URL, o *Options, role string) {
	switch c := c.(type) {
	case *viConn:
		c.ops = o.Env.Metrics.Operations(u.Scheme)
		o.Env.Metrics.WatchVI(u.Scheme, c.v, c.slab.bytes())
	case *iwarpConn:
		c.ops = o.Env.Metrics.Operations(u.Scheme)
		o.Env.Metrics.WatchQueuePair(c.q, c.slab.bytes())
	}
	s := o.Env.Status.Server()
	if s == nil {
		return
	}
	h := status.Hint{Transport: u.Scheme, Role: role}
	switch c := c.(type) {
	case *viConn:
		h.Local, h.Remote = c.local.String(), c.remote.String()
		h.Why = "the address says " + u.Scheme
		h.Memory = c.slab.bytes()
		s.WatchVI(c.v, h)
	case *iwarpConn:
		h.Memory = c.slab.bytes()
		s.WatchQueuePair(c.q, h)
	}
}

// watchStream lists the byte stream c in "viaduct ps", counts c in the metrics, and returns c.
func watchStream(c net.Conn, o *Options, role string) net.Conn {
	o.Env.Metrics.WatchStream(c)
	if s := o.Env.Status.Server(); s != nil {
		h := status.Hint{Role: role}
		if _, ok := c.(*net.TCPConn); ok {
			h.Why = "the address says tcp"
		}
		s.WatchConn(c, h)
	}
	return c
}

// A watchedListener lists and counts the accepted connections.
type watchedListener struct {
	net.Listener
	o *Options
}

func (l *watchedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return watchStream(c, l.o, accepted), nil
}

// FailedSetups returns the number of connections of the listener below that Accept will never
// return, because their set-up failed or was refused.
func (l *watchedListener) FailedSetups() uint64 {
	s, ok := l.Listener.(*sdp.Listener)
	if !ok {
		return 0
	}
	return s.Refused() + s.Failed()
}
