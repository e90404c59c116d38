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

	// Dir is the directory of the socket. Listen creates a missing directory, for this user alone.
	// Empty means the directory where "viaduct ps" looks: $XDG_RUNTIME_DIR/viaduct, or viaduct-UID
	// in the directory for temporary files.
	Dir string
}

// A Server answers the questions of "viaduct ps" about a process. Its methods may be called
// concurrently. On a nil Server the methods do nothing.
type Server struct {
	s *status.Server
}

// Listen creates the status socket of this process. It returns an error if the directory belongs to
// another user, or if others can write or read the directory.
func Listen(c Config) (*Server, error) {
	s, err := status.Listen(status.Config{Program: c.Program, Version: c.Version, Dir: c.Dir})
	if err != nil {
		return nil, err
	}
	return &Server{s}, nil
}

// server returns the status server of s, or nil if s is nil.
func (s *Server) server() *status.Server {
	if s == nil {
		return nil
	}
	return s.s
}

// Close removes the socket. It may be called more than once.
func (s *Server) Close() error { return s.server().Close() }

// Listening registers an address where the process accepts connections. Call over when the process
// stops accepting.
func (s *Server) Listening(transport, url string) (over func()) {
	return s.server().Listening(transport, url)
}

// A Hint holds facts about a connection that the connection itself does not report. An empty field
// is filled in from the connection.
type Hint struct {
	Transport     string // "sdp", "iwarp", "vi" or "tcp"
	Role          string // "dial", "accept" or "peer"
	Local, Remote string
	Why           string // why the connection uses TCP or shared memory
	Memory        uint64 // bytes of receive buffers
}

// hints converts the first element of h. It returns nil if h is empty.
func hints(h []Hint) []status.Hint {
	if len(h) == 0 {
		return nil
	}
	return []status.Hint{status.Hint(h[0])}
}

// WatchConn registers a byte stream. An *sdp.Conn is shown with all its counters, and an
// *sdp.TCPConn or *net.TCPConn with the counters of the kernel. Other types, such as a *tls.Conn,
// are not registered, because nothing reports their end. Only the first hint is used.
func (s *Server) WatchConn(c net.Conn, hint ...Hint) { s.server().WatchConn(c, hints(hint)...) }

// WatchQueuePair registers a stream until it has ended. Only the first hint is used.
func (s *Server) WatchQueuePair(q *iwarp.QueuePair, hint ...Hint) {
	s.server().WatchQueuePair(q, hints(hint)...)
}

// WatchVI registers a connected VI, or a VI with a connection attempt in progress. The VI is listed
// until Idle again. A VI that is Idle at the call is not listed. Only the first hint is used.
func (s *Server) WatchVI(v *vi.VI, hint ...Hint) { s.server().WatchVI(v, hints(hint)...) }
