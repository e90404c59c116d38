package debug

import (
	"net"

	"viaduct/internal/status"
	"viaduct/iwarp"
	"viaduct/vi"
)

// A Config says what a process tells about itself.
type Config struct {
	Program string // what it does; empty is the name of its executable
	Version string

	// Dir is where the socket is made. It is made, for this user alone, if it is not
	// there. Empty is where "viaduct ps" looks: $XDG_RUNTIME_DIR/viaduct, or
	// viaduct-UID in the directory for temporary files.
	Dir string
}

// A Server answers for a process. Its methods may be called concurrently, and
// on a nil Server, where they do nothing.
type Server struct {
	s *status.Server
}

// Listen makes the status socket of this process. The error tells of a directory that
// belongs to another user, or that others can write or look into; others are those of
// the system.
func Listen(c Config) (*Server, error) {
	s, err := status.Listen(status.Config{Program: c.Program, Version: c.Version, Dir: c.Dir})
	if err != nil {
		return nil, err
	}
	return &Server{s}, nil
}

// server is nil for a nil Server.
func (s *Server) server() *status.Server {
	if s == nil {
		return nil
	}
	return s.s
}

// Close removes the socket. It may be called twice.
func (s *Server) Close() error { return s.server().Close() }

// Listening names an address at which the process accepts connections. Call the
// result when it does no longer.
func (s *Server) Listening(transport, url string) (over func()) {
	return s.server().Listening(transport, url)
}

// A Hint is what a program knows of a connection beyond what the connection
// tells itself. Empty fields are filled in.
type Hint struct {
	Transport     string // "sdp", "iwarp", "vi" or "tcp"
	Role          string // "dial", "accept" or "peer"
	Local, Remote string
	Why           string // why the connection takes its path
	Memory        uint64 // bytes of buffers for what the peer sends
}

// hints returns the first, or none.
func hints(h []Hint) []status.Hint {
	if len(h) == 0 {
		return nil
	}
	return []status.Hint{status.Hint(h[0])}
}

// WatchConn shows a byte stream: an *sdp.Conn with all it counts, an
// *sdp.TCPConn or *net.TCPConn with what the system knows. Others are not
// shown, since nothing tells when they end. At most one hint is read.
func (s *Server) WatchConn(c net.Conn, hint ...Hint) { s.server().WatchConn(c, hints(hint)...) }

// WatchQueuePair shows a stream, until it has ended. At most one hint is read.
func (s *Server) WatchQueuePair(q *iwarp.QueuePair, hint ...Hint) {
	s.server().WatchQueuePair(q, hints(hint)...)
}

// WatchVI shows a VI that is, or will be, connected, until it is connected no
// more. At most one hint is read.
func (s *Server) WatchVI(v *vi.VI, hint ...Hint) { s.server().WatchVI(v, hints(hint)...) }
