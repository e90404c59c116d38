package portmap

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"syscall"
	"time"

	"viaduct/internal/perturb"
	"viaduct/internal/wire/portmapwire"
)

// ServerConfig holds the settings of a Server. A zero field selects the default.
type ServerConfig struct {
	Registry *Registry // the mappings; nil means none
	More     *Registry // mappings for services that Registry does not have; nil means none

	Lifetime   time.Duration // time that a request waits for its PMAck; 0 means 10 s
	MaxPending int           // maximum number of requests that wait for a PMAck, about 200 bytes each; 0 means 16384
	Rate       float64       // datagrams per second from one source, an IPv4 address or an IPv6 /64; 0 means 200, negative means no limit
	Burst      int           // datagrams in a burst from one source; 0 means 400

	Logger *slog.Logger // nil disables logging

	// Tap, if set, is called for every received datagram and, with out, for every sent datagram.
	// Tap must not keep b.
	Tap func(out bool, src, dst netip.AddrPort, b []byte)

	// Lifetime [D-62].
}

// A Server answers requests on a UDP socket, and keeps no state over a restart: a client that asks
// again gets an answer, and a PMAck for the server before the restart is dropped. The methods are
// safe for concurrent use.
type Server struct { // [SDP-7.2-4] [D-72]
	conn *net.UDPConn
	log  *slog.Logger
	tap  func(out bool, src, dst netip.AddrPort, b []byte)

	mu perturb.Mutex
	m  *machine // guarded by mu
}

// Listen opens the UDP address addr (host:port; ":3935" means every address of both families)
// exclusively for the process. If the address is in use, the error suggests a remedy, because on
// Linux hosts with iWARP the daemon iwpmd uses the default port.
func Listen(addr string, cfg ServerConfig) (*Server, error) {
	ua, err := net.ResolveUDPAddr("udp", addr)
	if err != nil {
		return nil, fmt.Errorf("portmap: %w", err)
	}
	conn, err := net.ListenUDP("udp", ua)
	if errors.Is(err, syscall.EADDRINUSE) { // [D-70]
		return nil, fmt.Errorf("portmap: %w (another mapper, perhaps iwpmd, has this port: choose another one)", err)
	}
	if err != nil {
		return nil, fmt.Errorf("portmap: %w", err)
	}
	return NewServer(conn, cfg)
}

// NewServer returns a Server on an open UDP socket. The Server owns the socket from the call on,
// and NewServer closes the socket on error.
func NewServer(conn *net.UDPConn, cfg ServerConfig) (*Server, error) {
	if err := wantDestination(conn, conn.LocalAddr().(*net.UDPAddr).IP); err != nil {
		conn.Close()
		return nil, fmt.Errorf("portmap: %w", err)
	}
	log := cfg.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Server{conn: conn, log: log, tap: cfg.Tap, m: newMachine(cfg)}, nil
}

// Addr returns the address of the socket.
func (s *Server) Addr() netip.AddrPort {
	a := s.conn.LocalAddr().(*net.UDPAddr).AddrPort()
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// Stats returns the counters.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.m.Stats()
}

// Connected reports that a connection from cp has arrived at the SDP address ap. The connection
// confirms the request if the PMAck was lost.
func (s *Server) Connected(cp, ap netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.m.Connected(cp, ap)
}

// Close ends Serve. Serve then releases pending requests.
func (s *Server) Close() error { return s.conn.Close() }

// Serve answers requests until Close. Serve then returns an error that matches net.ErrClosed. Call
// Serve once.
func (s *Server) Serve() error {
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.m.Close()
	}()
	buf := make([]byte, portmapwire.MessageLen) // a longer datagram is truncated, because its excess is ignored [D-61]
	oob := make([]byte, oobLen)
	var reply []byte
	for {
		s.armRead()
		n, on, _, from, err := s.conn.ReadMsgUDPAddrPort(buf, oob)
		switch {
		case err == nil:
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("portmap: %w", net.ErrClosed)
		case isTimeout(err):
			s.expire()
			continue
		default:
			// The error belongs to an earlier answer to a closed port, or the system lacks a
			// resource. In both cases the socket still works.
			s.log.Debug("read failed", "err", err)
			continue
		}
		if s.tap != nil {
			s.tap(false, from, s.at(oob[:on]), buf[:n])
		}
		reply = s.handle(from.Addr(), buf[:n], reply[:0])
		if len(reply) == 0 {
			continue
		}
		if s.tap != nil {
			s.tap(true, s.at(oob[:on]), from, reply)
		}
		// [SDP-7.4-15] [SDP-7.4-34]
		_, _, err = s.conn.WriteMsgUDPAddrPort(reply, replyFrom(oob[:on]), from)
		if err != nil && !errors.Is(err, net.ErrClosed) {
			s.log.Debug("answer not sent", "remote", from, "err", err)
		}
	}
}

// handle passes a datagram to the machine and returns the answer. The deferred unlock also runs
// after a panic, so that the panic ends the process instead of blocking it.
func (s *Server) handle(from netip.Addr, b, reply []byte) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.m.Handle(time.Now(), from, b, reply)
}

func (s *Server) expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.m.Expire(time.Now())
}

// armRead sets the read deadline to the time when the oldest pending request expires, or clears it
// if no request is pending.
func (s *Server) armRead() {
	s.mu.Lock()
	at, ok := s.m.Deadline()
	s.mu.Unlock()
	if !ok {
		at = time.Time{}
	}
	s.conn.SetReadDeadline(at)
}

// at returns the address to which a datagram was sent, or the address of the socket if oob names no
// address.
func (s *Server) at(oob []byte) netip.AddrPort {
	a := s.Addr()
	if d := destination(oob); d.IsValid() {
		return netip.AddrPortFrom(d, a.Port())
	}
	return a
}
