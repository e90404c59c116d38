package mapper

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"viaduct/portmap"
)

// A State says by what a service's addresses are told to clients.
type State struct {
	Addr netip.AddrPort // of the Port Mapper
	Pid  int            // of its process; 0 if it is this one
	Err  error          // why there is none
}

// A Service makes the addresses of one process known on its host. It is safe for concurrent use.
type Service struct {
	at     netip.AddrPort
	cfg    portmap.ServerConfig
	report func(State)
	table  *table // what is known while this process is the Port Mapper

	mu     sync.Mutex
	own    map[netip.AddrPort][]netip.AddrPort // guarded by mu
	mapper *net.UnixConn                       // guarded by mu; to the process that is the Port Mapper; nil if that is this one, or none
	serves bool                                // guarded by mu
}

// retryAfter is how long a service waits that found neither the UDP port free nor a Port Mapper that
// takes registrations.
const retryAfter = 2 * time.Second

// Join makes this process the Port Mapper of its host, at a UDP address, or a service of the process
// that is. report is called with what it has become, and again with every change. The error is that
// of an address that can't be used by anybody.
func Join(at string, cfg portmap.ServerConfig, report func(State)) (*Service, error) {
	ua, err := net.ResolveUDPAddr("udp", at)
	if err != nil {
		return nil, err
	}
	a := ua.AddrPort()
	if !a.Addr().IsValid() {
		a = netip.AddrPortFrom(netip.IPv6Unspecified(), a.Port())
	}
	s := &Service{at: netip.AddrPortFrom(a.Addr().Unmap(), a.Port()), cfg: cfg, report: report, table: newTable(portmap.NewRegistry()), own: map[netip.AddrPort][]netip.AddrPort{}}
	s.cfg.Registry = s.table.registry
	st, ended, err := s.enter()
	if err != nil && !errors.Is(err, syscall.EADDRINUSE) {
		return nil, err
	}
	report(st)
	go s.stay(st, ended)
	return s, nil
}

// Set registers where SDP is spoken for a conventional address; without targets it is not. The error
// is that of a Port Mapper that refuses it.
func (s *Service) Set(at netip.AddrPort, targets ...netip.AddrPort) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.own[at] = targets
	if len(targets) == 0 {
		delete(s.own, at)
	}
	switch {
	case s.serves:
		return s.table.set(s, at, targets)
	case s.mapper != nil:
		return register(s.mapper, registration{at, targets})
	}
	return nil // as soon as there is one
}

// stay keeps the service known: when the Port Mapper has ended, another takes its place.
func (s *Service) stay(st State, ended <-chan struct{}) {
	for {
		if ended != nil {
			<-ended
		} else {
			time.Sleep(retryAfter)
		}
		var now State
		now, ended, _ = s.enter()
		if now.Err == nil || st.Err == nil || now.Err.Error() != st.Err.Error() {
			s.report(now)
		}
		st = now
	}
}

// enter makes this process the Port Mapper, or registers its service with the one that is there.
// ended is closed when that has ended; it is nil if there is none.
func (s *Service) enter() (st State, ended <-chan struct{}, err error) {
	st.Addr = s.at
	for range 2 { // a process that has just ended may have left the port since
		var srv *portmap.Server
		if srv, err = portmap.Listen(s.at.String(), s.cfg); err == nil {
			st.Addr, st.Pid = srv.Addr(), 0 // a dying process may have taken the call of the turn before
			return st, s.serve(srv), nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
		var c *net.UnixConn
		var derr error
		if c, st.Pid, derr = dialMapper(s.at); derr != nil {
			continue
		}
		if ended, derr = s.follow(c); derr == nil {
			return st, ended, nil
		}
		if errors.Is(derr, errRefused) {
			st.Err = derr
			return st, nil, err
		}
	}
	st.Pid, st.Err = 0, err
	if errors.Is(err, syscall.EADDRINUSE) {
		st.Err = fmt.Errorf("UDP port %d is another program's, which takes no registrations of viaduct, as iwpmd does not: clients need --to, or a Port Mapper at another address", s.at.Port())
	}
	return st, nil, err
}

// serve answers as the Port Mapper, for this service and those that register.
func (s *Service) serve(srv *portmap.Server) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	for at, targets := range s.own {
		s.table.set(s, at, targets)
	}
	s.serves, s.mapper = true, nil
	l, err := s.table.offer(srv.Addr())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		srv.Serve()
		if err == nil {
			l.Close()
		}
	}()
	return ended
}

// follow registers what this service has with the process at the other end of c.
func (s *Service) follow(c *net.UnixConn) (<-chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for at, targets := range s.own {
		if err := register(c, registration{at, targets}); err != nil {
			c.Close()
			return nil, err
		}
	}
	s.serves, s.mapper = false, c
	ended := make(chan struct{})
	go s.watch(c, ended)
	return ended, nil
}

// watch closes ended when the process at the other end of c has ended. It leaves the answers on c
// to Set.
func (s *Service) watch(c *net.UnixConn, ended chan<- struct{}) {
	defer close(ended)
	waitEnd(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	c.Close()
	if s.mapper == c {
		s.mapper = nil
	}
}
