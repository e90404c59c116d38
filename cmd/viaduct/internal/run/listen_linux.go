//go:build linux && (amd64 || arm64)

package run

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/mapper"
	"viaduct/internal/notify"
	"viaduct/internal/sockdiag"
	"viaduct/portmap"
	"viaduct/sdp"
)

// A place is an address where the program listens. Children with separate sockets (SO_REUSEPORT)
// share a place.
type place struct {
	addr netip.AddrPort
	dual bool // an IPv6 listener that accepts IPv4 as well
}

// dialled returns the loopback address where the supervisor reaches the program's listener.
func (p place) dialled() netip.AddrPort {
	if !p.addr.Addr().IsUnspecified() {
		return p.addr
	}
	family := unix.AF_INET
	if p.addr.Addr().Is6() {
		family = unix.AF_INET6
	}
	return netip.AddrPortFrom(loopbackOf(family), p.addr.Port())
}

// network returns the arguments for the transport to listen at the place.
func (p place) network() (network, host string) {
	switch {
	case p.addr.Addr().Is4():
		return "tcp4", p.addr.Addr().String()
	case p.dual:
		return "tcp", ""
	}
	return "tcp6", p.addr.Addr().String()
}

// A service brings connections to a place.
type service struct {
	place place
	far   *sdp.Listener     // nil if no rule carries the place
	meet  *net.UnixListener // for the pairs of --same-host; nil if the option does not cover the place
}

// A carriedListener is a listening socket of the program.
type carriedListener struct {
	svc *service
	mu  sync.Mutex // held while an accept takes a connection from the queue
}

// listeners holds all listeners of a supervisor.
type listeners struct {
	mu       sync.Mutex
	services map[place]*service          // guarded by mu
	sockets  map[uint64]*carriedListener // guarded by mu; by cookie
	arrivals map[netip.AddrPort]*arrival // guarded by mu; by the address that the program's listener sees
	mapper   *mapper.Service             // nil without a Port Mapper
	watching bool                        // guarded by mu
	taking   atomic.Int64                // accept calls between taking an arrival and claiming it
}

func (ls *listeners) find(cookie uint64) *carriedListener {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.sockets[cookie]
}

// listen serves a listen call. The supervisor performs the call itself, so that the transport
// listens before the program continues.
func (s *supervisor) listen(c *notify.Call) {
	b, err := s.borrow(c)
	if err != nil {
		if nc, ok := errors.AsType[*notCarried](err); ok && !nc.quiet {
			s.explain.line(event{Call: "listen", thread: c.TID, Path: "tcp", Why: nc.why})
		}
		c.Continue()
		return
	}
	defer b.close()
	if at := localName(b.fd); at.Port() != 0 && !s.rules.serves(at.Port()) {
		b.close()
		c.Continue()
		return
	}
	if !c.Valid() {
		return
	}
	if err := unix.Listen(b.fd, int(int32(c.Args[1]))); err != nil {
		errno, _ := errors.AsType[syscall.Errno](err)
		b.close()
		c.Return(0, errno)
		return
	}
	err = s.addListener(b, c.TID)
	if errno, ok := errors.AsType[syscall.Errno](err); err != nil && s.o.Require {
		if !ok {
			errno = unix.EADDRNOTAVAIL
		}
		b.close()
		c.Return(0, errno)
		return
	}
	b.close()
	c.Return(0, 0)
}

// addListener makes the transport listen for a listening socket, if covered by a rule, and prints a
// line of --explain for a new place.
func (s *supervisor) addListener(b *borrowed, thread int) error {
	at := localName(b.fd)
	if !s.rules.serves(at.Port()) {
		return nil
	}
	if dev, err := unix.GetsockoptInt(b.fd, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX); err == nil && dev != 0 {
		// The socket accepts nothing from loopback, nor from other interfaces.
		s.explain.line(event{Call: "listen", thread: thread, Local: at, Path: "tcp", Why: boundToInterface})
		return errors.New(boundToInterface)
	}
	p := place{addr: at}
	if b.family == unix.AF_INET6 && at.Addr().Is6() && at.Addr().IsUnspecified() {
		only, err := unix.GetsockoptInt(b.fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY)
		p.dual = err == nil && only == 0
	}
	svc, fresh, err := s.ls.open(s, p, b.cookie)
	if err != nil {
		s.explain.line(event{Call: "listen", thread: thread, Local: at, Path: "tcp", Why: err.Error()})
		return err
	}
	if fresh && svc.far != nil {
		s.explain.line(event{Call: "listen", thread: thread, Local: at, Path: "sdp", Why: "at " +
			svc.far.Addr().String()})
	}
	if fresh && svc.meet != nil {
		s.explain.line(event{Call: "listen", thread: thread, Local: at, Path: "pair"})
	}
	return nil
}

// open returns the service of a place; fresh is true if open has created the service. open records
// the program's listener, already listening. Therefore a concurrent checkListener either finds the
// listener, or has ended an earlier service of the place before.
func (ls *listeners) open(s *supervisor, p place, cookie uint64) (svc *service, fresh bool, err error) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	defer func() {
		if err == nil && ls.sockets[cookie] == nil {
			ls.sockets[cookie] = &carriedListener{svc: svc}
		}
	}()
	if svc := ls.services[p]; svc != nil {
		return svc, false, nil
	}
	svc = &service{place: p}
	if s.rules.sameHost(p.addr.Port()) {
		if svc.meet, err = net.ListenUnix("unixpacket", pairAddr(p.addr)); err != nil {
			s.explain.line(event{Call: "listen", Local: p.addr, Path: "tcp", Why: "no pairs: " + err.Error()})
		}
	}
	if r := s.rules.listener(p.addr.Port()); r != nil {
		if svc.far, err = s.listenFar(p, r); err != nil {
			svc.close()
			return nil, false, err
		}
		go s.acceptFar(svc)
	}
	if svc.meet != nil {
		go s.servePairs(svc)
	}
	ls.services[p] = svc
	if err := ls.publishLocked(p); err != nil {
		s.explain.line(event{Call: "portmap", Local: p.addr, Path: "off", Why: err.Error()})
	}
	if !ls.watching {
		ls.watching = true
		go s.watchListeners()
	}
	return svc, true, nil
}

// listenFar makes the transport listen for a place.
func (s *supervisor) listenFar(p place, r *listenRule) (*sdp.Listener, error) {
	network, host := p.network()
	// One client may open as many connections at a time as fit into the usual queues of servers.
	lc := sdp.ListenConfig{Options: s.carrier.options, MaxPending: 1024, MaxPendingPerHost: 256,
		Filter: func(_, _ net.Addr) bool { return !s.spare.lent.Load() && p.listened() }}
	if s.e.Capture != nil {
		lc.WrapConn = func(c net.Conn) net.Conn { return s.e.Wrap(c, false) }
	}
	return lc.Listen(context.Background(), network, net.JoinHostPort(host, strconv.Itoa(int(r.sdpPort))))
}

// listened reports whether anything listens at the port of a place. If the program has just closed
// the listener, a connection must be refused, not accepted and then reset.
func (p place) listened() bool {
	all, err := sockdiag.Listeners(p.addr.Port())
	return err != nil || len(all) > 0
}

func (svc *service) close() {
	if svc.far != nil {
		svc.far.Close()
	}
	if svc.meet != nil {
		svc.meet.Close()
	}
}

// publishLocked registers the SDP addresses of a place with the Port Mapper, or removes the
// registration. The listeners of a port share an entry, for all addresses of both families.
func (ls *listeners) publishLocked(p place) error {
	if ls.mapper == nil {
		return nil
	}
	key := p.addr
	if key.Addr().IsUnspecified() {
		key = netip.AddrPortFrom(netip.IPv4Unspecified(), key.Port())
	}
	var targets []netip.AddrPort
	for _, svc := range ls.services {
		a := svc.place.addr
		if a != p.addr && !(a.Addr().IsUnspecified() && p.addr.Addr().IsUnspecified() && a.Port() == p.addr.Port()) {
			continue
		}
		if svc.far == nil {
			continue
		}
		port := svc.far.Addr().(*net.TCPAddr).AddrPort().Port()
		targets = append(targets, netip.AddrPortFrom(a.Addr(), port))
		if svc.place.dual {
			targets = append(targets, netip.AddrPortFrom(netip.IPv4Unspecified(), port))
		}
	}
	return ls.mapper.Set(key, targets...)
}

// closeLocked ends a service whose listeners the program has closed.
func (ls *listeners) closeLocked(svc *service) {
	delete(ls.services, svc.place)
	for cookie, l := range ls.sockets {
		if l.svc == svc {
			delete(ls.sockets, cookie)
		}
	}
	ls.publishLocked(svc.place)
	svc.close()
}

// watchListeners calls checkListeners periodically, because no event reports that a program has
// closed a listener.
func (s *supervisor) watchListeners() {
	for range time.Tick(time.Second) {
		s.checkListeners()
	}
}

// checkListeners ends the services without listeners.
func (s *supervisor) checkListeners() {
	s.ls.mu.Lock()
	var all []*service
	for _, svc := range s.ls.services {
		all = append(all, svc)
	}
	s.ls.mu.Unlock()
	for _, svc := range all {
		s.checkListener(svc)
	}
}

// checkListener ends a service if nothing listens at the service's place. It holds ls.mu, so that
// open does not record a new listener with the service meanwhile.
func (s *supervisor) checkListener(svc *service) {
	ls := &s.ls
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.services[svc.place] != svc {
		return
	}
	if !svc.place.listened() {
		ls.closeLocked(svc)
	}
}

// inheritListeners carries the listeners inherited by this process, and so by the program. The
// program makes no listen call for an inherited listener.
func (s *supervisor) inheritListeners() {
	ents, _ := os.ReadDir("/proc/self/fd")
	for _, ent := range ents {
		fd, err := strconv.Atoi(ent.Name())
		if err != nil {
			continue
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC != 0 {
			continue
		}
		if on, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN); err != nil || on == 0 {
			continue
		}
		b := &borrowed{fd: fd}
		if b.identify(s.netns) == nil {
			s.addListener(b, os.Getpid())
		}
	}
}

// servePortMap makes the listeners known to clients, unless forbidden by the options.
func (s *supervisor) servePortMap() (err error) {
	if len(s.rules.listen) == 0 || s.o.PortMapListen == "off" {
		return nil
	}
	at := s.o.PortMapListen
	if at == "" {
		at = ":" + strconv.Itoa(portmap.Port)
	}
	cfg := portmap.ServerConfig{Logger: s.e.Log}
	if s.e.Capture != nil {
		cfg.Tap = s.e.Capture.Datagram
	}
	s.ls.mapper, err = mapper.Join(at, cfg, func(st mapper.State) {
		e := event{Call: "portmap", Local: st.Addr, Path: "udp"}
		switch {
		case st.Err != nil:
			e.Path, e.Why = "off", st.Err.Error()
		case st.Pid != 0:
			e.Path, e.Why = "registered", fmt.Sprintf("with the Port Mapper of process %d, whose place this process takes when it ends", st.Pid)
		}
		s.explain.line(e)
	})
	return err
}
