package bench

import (
	"viaduct/cmd/viaduct/internal/addr"
	"viaduct/internal/status"
)

// show makes "viaduct ps" list the connection of a lane to the host at. show skips the connections
// of bare measurements, because listing takes memory.
func (s spec) show(shown *status.Server, l lane, at, role string) {
	if s.bare() {
		return
	}
	h := status.Hint{Role: role, Why: "bench measures " + s.String()}
	switch l := l.(type) {
	case *viLane:
		h.Transport = s.scheme()
		if u, err := addr.Parse(at); err != nil {
		} else if role == "dial" {
			h.Remote = u.HostPort()
		} else {
			h.Local = u.HostPort()
		}
		shown.WatchVI(l.v, h)
	case *iwarpLane:
		shown.WatchQueuePair(l.q, h)
	case *streamLane:
		shown.WatchConn(l.c, h)
	}
}
