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

// A State describes the Port Mapper answering for the services of this process.
type State struct {
	Addr netip.AddrPort // address of the Port Mapper
	Pid  int            // the Port Mapper's process; 0 if it is this process
	Err  error          // why there is no Port Mapper, nil if there is one
}

// A Service makes the addresses of a process known on the host. It is safe for concurrent use.
type Service struct {
	at     netip.AddrPort
	cfg    portmap.ServerConfig
	report func(State)
	table  *table // the mappings to answer with while this process is the Port Mapper

	mu     sync.Mutex
	own    map[netip.AddrPort][]netip.AddrPort // guarded by mu
	mapper *net.UnixConn                       // guarded by mu; connection to the Port Mapper's process; nil if there is none, or it is this process
	serves bool                                // guarded by mu
}

// retryAfter is the pause before another attempt when the UDP port is in use and no Port Mapper
// takes registrations.
const retryAfter = 2 * time.Second

// Join makes this process the Port Mapper of the host at a UDP address, or registers with the
// current Port Mapper. Join calls report with the initial state and again after every change. Join
// returns an error if no process could use the address.
func Join(at string, cfg portmap.ServerConfig, report func(State)) (*Service, error) {
	ua, err := net.ResolveUDPAddr("udp", at)
	if err != nil {
		return nil, err
	}
	a := ua.AddrPort()
	if !a.Addr().IsValid() {
		a = netip.AddrPortFrom(netip.IPv6Unspecified(), a.Port())
	}
	s := &Service{at: netip.AddrPortFrom(a.Addr().Unmap(), a.Port()), cfg: cfg, report: report,
		table: newTable(portmap.NewRegistry()), own: map[netip.AddrPort][]netip.AddrPort{}}
	s.cfg.Registry = s.table.registry
	st, ended, err := s.enter()
	if err != nil && !errors.Is(err, syscall.EADDRINUSE) {
		return nil, err
	}
	report(st)
	go s.stay(st, ended)
	return s, nil
}

// Set registers the SDP addresses for a conventional address. Without targets, Set removes the
// registration. Set returns an error if the Port Mapper refuses the registration.
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
	return nil // the next Port Mapper gets the registration from stay
}

// stay keeps the service registered. It calls enter again when the Port Mapper has ended, or after
// a pause if there was no Port Mapper. It reports the new state unless the same error has
// persisted. It does not return.
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

// enter makes this process the Port Mapper, or registers the service with the current Port Mapper.
// ended is closed when the Port Mapper has ended. Without a Port Mapper, ended is nil, st.Err is
// the reason, and err is the error of binding the UDP address.
func (s *Service) enter() (st State, ended <-chan struct{}, err error) {
	st.Addr = s.at
	for range 2 { // a process that has just ended may have freed the port since
		var srv *portmap.Server
		if srv, err = portmap.Listen(s.at.String(), s.cfg); err == nil {
			st.Addr, st.Pid = srv.Addr(), 0 // in the turn before, a dying process may have accepted our connection
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

// serve makes this process answer as the Port Mapper, for its own service and for registered
// services. The result is closed when srv has ended.
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

// follow registers all mappings of s with the process at the other end of c. The result is closed
// when the process has ended. After an error, follow has closed c.
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

// watch closes ended when the process at the other end of c has ended. watch does not read the
// answers on c, because Set reads the answers.
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
