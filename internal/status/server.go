package status

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"
)

// A Config describes the process to the clients of the socket.
type Config struct {
	Program string // what the process does; if empty, the name of its executable
	Version string

	// Dir is the directory of the socket; empty means RunDir. If the directory does not exist,
	// Listen creates one with access for the user only.
	Dir string
}

// A Server sends the report of the process to the clients. The methods may be called concurrently.
// On a nil Server the methods do nothing, and Status returns a zero Process.
type Server struct {
	cfg     Config
	started time.Time
	path    string
	l       *net.UnixListener
	wg      sync.WaitGroup

	mu        sync.Mutex
	closed    bool                  // guarded by mu
	listeners []*Listener           // guarded by mu
	watched   map[uint64]*watched   // guarded by mu
	last      uint64                // guarded by mu; the last ID given
	sweepAt   int                   // guarded by mu; the number of watches at which the next sweep runs
	open      map[net.Conn]struct{} // guarded by mu; connections of clients
}

// A Source is a connection a Server reports.
type Source struct {
	// Report returns the present state; the Server fills in ID and Opened. Report must not wait for
	// the peer. counters asks for Counters.
	Report func(counters bool) Conn
	// Ended reports whether the connection has ended, so that the Server can drop the connection.
	Ended func() bool
}

type watched struct {
	Source
	opened time.Time
}

const (
	serveTimeout = 2 * time.Second // limit for the request and the answer of one client
	maxAsking    = 16              // clients that are served at a time; others are disconnected
	firstSweep   = 64              // number of connections at which Watch first removes ended ones
)

// Listen creates the status socket of the process. The error is ErrUnsafe if another user could
// have made the directory, and otherwise the error of the failing system call.
func Listen(c Config) (*Server, error) {
	if c.Program == "" {
		c.Program = filepath.Base(os.Args[0])
	}
	if c.Dir == "" {
		c.Dir = RunDir()
	}
	if err := makeDir(c.Dir); err != nil {
		return nil, err
	}
	s := &Server{cfg: c, started: time.Now(), watched: map[uint64]*watched{},
		open: map[net.Conn]struct{}{}, sweepAt: firstSweep}
	var err error
	if s.l, s.path, err = bind(c.Dir); err != nil {
		return nil, err
	}
	s.wg.Go(s.serve)
	return s, nil
}

// Close removes the socket and disconnects the clients. A second Close returns nil.
func (s *Server) Close() error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	closed := s.closed
	s.closed = true
	for c := range s.open {
		c.Close()
	}
	s.mu.Unlock()
	if closed {
		return nil
	}
	err := s.l.Close()
	os.Remove(s.path)
	s.wg.Wait()
	return err
}

// Listening registers an address where the process accepts connections. The caller calls over when
// the process stops accepting there.
func (s *Server) Listening(transport, url string) (over func()) {
	if s == nil {
		return func() {}
	}
	l := &Listener{Transport: transport, URL: url, Opened: time.Now()}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listeners = append(s.listeners, l)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.listeners = slices.DeleteFunc(s.listeners, func(k *Listener) bool { return k == l })
	}
}

// Watch includes a connection in the report until the connection has ended.
func (s *Server) Watch(c Source) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.watched) >= s.sweepAt {
		s.sweepLocked()
		s.sweepAt = max(firstSweep, 2*len(s.watched))
	}
	s.last++
	s.watched[s.last] = &watched{c, time.Now()}
}

// sweepLocked removes ended connections.
func (s *Server) sweepLocked() {
	for id, w := range s.watched {
		if w.Ended() {
			delete(s.watched, id)
		}
	}
}

// Status returns the report a client would get now.
func (s *Server) Status(counters bool) Process {
	if s == nil {
		return Process{}
	}
	p := Process{PID: os.Getpid(), Program: s.cfg.Program, Version: s.cfg.Version, Started: s.started,
		Memory: resident(), Threads: runtime.NumGoroutine()}
	s.mu.Lock()
	s.sweepLocked()
	for _, l := range s.listeners {
		p.Listeners = append(p.Listeners, *l)
	}
	ids := make([]uint64, 0, len(s.watched))
	for id := range s.watched {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	ws := make([]*watched, len(ids))
	for i, id := range ids {
		ws[i] = s.watched[id]
	}
	s.mu.Unlock()
	p.Conns = make([]Conn, 0, len(ws))
	for i, w := range ws { // the lock is not held here, because Report may wait for the lock of its connection
		c := w.Report(counters)
		c.ID, c.Opened = ids[i], w.opened
		p.Conns = append(p.Conns, c)
	}
	return p
}

func (s *Server) serve() {
	for {
		c, err := s.l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // for example because no descriptor is free
			time.Sleep(100 * time.Millisecond)
			continue
		}
		s.mu.Lock()
		ok := !s.closed && len(s.open) < maxAsking
		if ok {
			s.open[c] = struct{}{}
		}
		s.mu.Unlock()
		if !ok || !allowed(c) {
			s.done(c)
			continue
		}
		s.wg.Go(func() {
			defer s.done(c)
			s.answer(c)
		})
	}
}

func (s *Server) done(c net.Conn) {
	s.mu.Lock()
	delete(s.open, c)
	s.mu.Unlock()
	c.Close()
}

// answer reads the request of a client, a single byte, and sends the report selected by the byte.
func (s *Server) answer(c net.Conn) {
	c.SetDeadline(time.Now().Add(serveTimeout))
	var what [1]byte
	if _, err := io.ReadFull(c, what[:]); err != nil || what[0] != askBrief && what[0] != askFull {
		return
	}
	json.NewEncoder(c).Encode(s.Status(what[0] == askFull))
}

// A client sends one of these bytes.
const (
	askBrief = 'b'
	askFull  = 'f' // the report with counters
)
