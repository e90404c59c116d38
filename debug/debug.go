package debug

import (
	"net"

	"viaduct/internal/status"
	"viaduct/iwarp"
	"viaduct/vi"
)

// A Config describes the process to "viaduct ps".
type Config struct {
	Program string // what the process does; empty means the name of its executable
	Version string

	// Dir is the directory of the socket. It is created, for this user alone, if it does not exist.
	// Empty means the directory where "viaduct ps" looks: $XDG_RUNTIME_DIR/viaduct, or viaduct-UID
	// in the directory for temporary files.
	Dir string
}

// A Server answers for a process. Its methods may be called concurrently, and
// on a nil Server, where they do nothing.
type Server struct {
	s *status.Server
}

// Listen creates the status socket of this process. It returns an error if the directory belongs to
// another user, or if others can write or read it.
func Listen(c Config) (*Server, error) {
	s, err := status.Listen(status.Config{Program: c.Program, Version: c.Version, Dir: c.Dir})
	if err != nil {
		return nil, err
	}
	return &Server{s}, nil
}

// server returns nil for a nil Server, whose methods do nothing.
func (s *Server) server() *status.Server {
	if s == nil {
		return nil
	}
	return s.s
}

// Close removes the socket. It may be called twice.
func (s *Server) Close() error { return s.server().Close() }

// Listening registers an address at which the process accepts connections. Call over when it stops
// accepting.
func (s *Server) Listening(transport, url string) (over func()) {
	return s.server().Listening(transport, url)
}

// A Hint holds facts about a connection that the connection itself does not report. Empty fields
// are filled in.
type Hint struct {
	Transport     string // "sdp", "iwarp", "vi" or "tcp"
	Role          string // "dial", "accept" or "peer"
	Local, Remote string
	Why           string // why the connection uses TCP or shared memory
	Memory        uint64 // bytes of receive buffers
}

// hints returns the first, or none.
func hints(h []Hint) []status.Hint {
	if len(h) == 0 {
		return nil
	}
	return []status.Hint{status.Hint(h[0])}
}

// WatchConn registers a byte stream: an *sdp.Conn with all its counters, or an *sdp.TCPConn or
// *net.TCPConn with the kernel's. Others are not registered, since nothing reports their end. At
// most one hint is read.
func (s *Server) WatchConn(c net.Conn, hint ...Hint) { s.server().WatchConn(c, hints(hint)...) }

// WatchQueuePair registers a stream until it has ended. At most one hint is read.
func (s *Server) WatchQueuePair(q *iwarp.QueuePair, hint ...Hint) {
	s.server().WatchQueuePair(q, hints(hint)...)
}

// WatchVI registers a VI that is, or will be, connected, until its connection ends. At most one
// hint is read.
func (s *Server) WatchVI(v *vi.VI, hint ...Hint) { s.server().WatchVI(v, hints(hint)...) }
