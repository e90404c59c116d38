package iwarp

import (
	"net"
	"sync/atomic"

	"viaduct/internal/frameio"
	"viaduct/internal/sock"
	"viaduct/internal/wire/mpa"
	"viaduct/samehost"
)

// A link is the connection of a stream, with the results of start-up. QueuePair.start sets the
// fields before the stream sends or receives FPDUs.
type link struct {
	cfg       *Config // used during start-up, then nil
	fc        *frameio.Conn
	conn      net.Conn
	params    mpa.Params
	initiator bool
	ready     atomic.Bool // whether fc and the fields above are set
}

// spawn runs f in a goroutine working for the connection.
func (l *link) spawn(f func()) {
	if l.ready.Load() {
		l.fc.Go(f)
	} else {
		go f()
	}
}

func (l *link) local() net.Addr {
	if l.conn == nil {
		return nil
	}
	return l.conn.LocalAddr()
}

func (l *link) remote() net.Addr {
	if l.conn == nil {
		return nil
	}
	return l.conn.RemoteAddr()
}

func (l *link) path() samehost.Path {
	if l.conn == nil {
		return samehost.Path{Why: "there is no connection"}
	}
	return sock.PathOf(l.conn)
}
