package portmap

import (
	"fmt"
	"net/netip"
	"time"

	"viaduct/internal/perturb"
)

// A Mapping has the SDP addresses of a service.
type Mapping struct {
	// Targets are the addresses to return, in turn, so that the load is balanced. For example, two
	// targets get every other request each. A target with an unspecified address means the
	// requested address with the target's port. Targets of the requested family are preferred. If
	// the service has none, unspecified targets of the other family are used.
	Targets []netip.AddrPort

	// Ends, if not empty, has a time for each target. From then on the target is not returned. A
	// zero time means no end. The lifetime of an answer does not exceed the target's end. A request
	// is denied if all targets have ended.
	Ends []time.Time

	// PmTime is the lifetime of an answer. NewMapping sets 30 s. The zero value is Once.
	PmTime PmTime

	// Open, if set, opens a port for each request, and Targets is ignored. client is the source
	// address of the connection, and service the requested conventional address. Open must not
	// block. release is called exactly once. If confirmed is false, the client has not confirmed
	// the request, and release must close the port. Otherwise a PMAck or a connection has confirmed
	// the request, and the service decides when to close the port.
	Open func(client, service netip.AddrPort) (target netip.AddrPort, release func(confirmed bool), err error)

	// Targets [SDP-7.4-24], Open [SDP-7.4-32].
}

// NewMapping returns a static mapping to targets with the default lifetime.
func NewMapping(targets ...netip.AddrPort) Mapping {
	return Mapping{Targets: targets, PmTime: defaultPmTime}
}

// A Registry has the mappings of a server by conventional address. It is safe for concurrent use.
type Registry struct {
	mu perturb.RWMutex
	m  map[netip.AddrPort]*service // guarded by mu
}

// A service is a mapping with a turn counter.
type service struct {
	Mapping
	mu   perturb.Mutex
	next int // guarded by mu: index of the next target
}

// NewRegistry returns an empty registry.
func NewRegistry() *Registry {
	return &Registry{m: make(map[netip.AddrPort]*service)}
}

// Set adds or replaces the mapping of a conventional address. An unspecified address (0.0.0.0 or
// ::) stands for every address of both families. A more specific entry takes precedence: for
// example, 10.0.0.1:80 before 0.0.0.0:80.
func (r *Registry) Set(conventional netip.AddrPort, m Mapping) error {
	if conventional.Port() == 0 {
		return fmt.Errorf("portmap: conventional address %v has no port", conventional)
	}
	if m.Open == nil && len(m.Targets) == 0 {
		return fmt.Errorf("portmap: mapping of %v has no target", conventional)
	}
	if len(m.Ends) > 0 && len(m.Ends) != len(m.Targets) {
		return fmt.Errorf("portmap: mapping of %v has %d targets and %d ends", conventional,
			len(m.Targets), len(m.Ends))
	}
	for _, t := range m.Targets {
		if t.Port() == 0 || !t.Addr().IsValid() || t.Addr().IsMulticast() {
			return fmt.Errorf("portmap: target %v of %v is not an address to connect to", t, conventional)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.m[registryKey(conventional)] = &service{Mapping: m}
	return nil
}

// Delete removes the mapping of a conventional address. It does nothing if there is none.
func (r *Registry) Delete(conventional netip.AddrPort) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.m, registryKey(conventional))
}

// Len returns the number of conventional addresses registered.
func (r *Registry) Len() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.m)
}

// replace replaces all mappings by the mappings of other, in one step. An address present in both
// keeps its position in the rotation over its targets. other must not be used afterwards.
func (r *Registry) replace(other *Registry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for k, s := range other.m {
		if old := r.m[k]; old != nil {
			old.mu.Lock()
			s.next = old.next
			old.mu.Unlock()
		}
	}
	r.m = other.m
}

// lookup returns the service for a requested address, and false if there is none. An exact entry
// takes precedence over a wildcard. [SDP-7.2-2]
func (r *Registry) lookup(ap netip.AddrPort) (*service, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if s, ok := r.m[registryKey(ap)]; ok {
		return s, true
	}
	s, ok := r.m[registryKey(netip.AddrPortFrom(netip.IPv4Unspecified(), ap.Port()))]
	return s, ok
}

// pick returns the next target for a request for ap, with the lifetime of the answer. A target of
// the requested family is preferred, otherwise an unspecified target is used. The bool result is
// false if there is no target.
func (s *service) pick(now time.Time, ap netip.AddrPort) (netip.AddrPort, PmTime, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	asked := ap.Addr().Unmap()
	for _, sameFamily := range []bool{true, false} {
		for range s.Targets {
			i := s.next % len(s.Targets)
			s.next++
			life, ok := s.life(i, now)
			t := s.Targets[i]
			a := t.Addr().Unmap().WithZone("")
			switch same := a.Is4() == asked.Is4(); {
			case !ok, same != sameFamily:
			case a.IsUnspecified():
				return netip.AddrPortFrom(asked, t.Port()), life, true
			case same:
				return netip.AddrPortFrom(a, t.Port()), life, true
			}
		}
	}
	return netip.AddrPort{}, 0, false
}

// serves reports whether target is still an answer of the service for ap, and returns its lifetime.
func (s *service) serves(now time.Time, target, ap netip.AddrPort) (PmTime, bool) {
	for i, t := range s.Targets {
		a := t.Addr().Unmap().WithZone("")
		if a.IsUnspecified() {
			a = ap.Addr()
		}
		if netip.AddrPortFrom(target.Addr().Unmap(), target.Port()) == netip.AddrPortFrom(a.Unmap(), t.Port()) {
			if life, ok := s.life(i, now); ok {
				return life, true
			}
		}
	}
	return 0, false
}

// life returns the lifetime of an answer with target i. ok is false if the target has ended.
func (s *service) life(i int, now time.Time) (life PmTime, ok bool) {
	if len(s.Ends) == 0 || s.Ends[i].IsZero() {
		return s.PmTime, true
	}
	left := s.Ends[i].Sub(now)
	if s.PmTime == Forever || s.PmTime.Duration() > left {
		life = PmTimeFor(left)
	} else {
		life = s.PmTime
	}
	return life, left > 0
}

// registryKey returns the canonical form of an address: every spelling of the wildcard, or of an
// IPv4 address, has the same key.
func registryKey(a netip.AddrPort) netip.AddrPort {
	addr := a.Addr().Unmap().WithZone("")
	if !addr.IsValid() || addr.IsUnspecified() {
		addr = netip.IPv4Unspecified()
	}
	return netip.AddrPortFrom(addr, a.Port())
}
