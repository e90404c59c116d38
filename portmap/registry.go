package portmap

import (
	"fmt"
	"net/netip"

	"viaduct/internal/perturb"
)

// A Mapping says where a service speaks SDP.
type Mapping struct {
	// Targets are the addresses to hand out, in turn: more than one balances
	// load between them. A target with an unspecified address means the address
	// the client asked for, with the target's port. Targets of the family asked
	// for are used, and where there is none, unspecified ones of the other.
	Targets []netip.AddrPort

	// PmTime is the lifetime of an answer. NewMapping sets DefaultPmTime;
	// the zero value is Once.
	PmTime PmTime

	// Open, if set, makes a port for each request and Targets is ignored.
	// It must not block. release is called exactly once: when the request
	// was never confirmed (confirmed is false; close the port), or when it was,
	// by PMAck or by a connection (confirmed is true; the port's life is then
	// the service's own business).
	Open func(req Message) (target netip.AddrPort, release func(confirmed bool), err error)

	// Targets [SDP-7.4-24], Open [SDP-7.4-32].
}

// NewMapping returns a static mapping to targets with the default lifetime.
func NewMapping(targets ...netip.AddrPort) Mapping {
	return Mapping{Targets: targets, PmTime: DefaultPmTime}
}

// A Registry holds the mappings of a server by conventional address. It is
// safe for concurrent use.
type Registry struct {
	mu perturb.RWMutex
	m  map[netip.AddrPort]*service // guarded by mu
}

// A service is a mapping with its turn counter.
type service struct {
	Mapping
	mu   perturb.Mutex
	next int // guarded by mu
}

// NewRegistry returns an empty registry.
func NewRegistry() *Registry {
	return &Registry{m: make(map[netip.AddrPort]*service)}
}

// Set registers or replaces the mapping of a conventional address. An
// unspecified address (0.0.0.0 or ::) stands for every address of either
// family. A more exact entry wins over it.
func (r *Registry) Set(conventional netip.AddrPort, m Mapping) error {
	if conventional.Port() == 0 {
		return fmt.Errorf("portmap: conventional address %v has no port", conventional)
	}
	if m.Open == nil && len(m.Targets) == 0 {
		return fmt.Errorf("portmap: mapping of %v has no target", conventional)
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

// Delete removes the mapping of a conventional address, if there is one.
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

// replace takes over the mappings of other at once; other must not be used after.
func (r *Registry) replace(other *Registry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.m = other.m
}

// lookup finds the service for an address asked for, exact before wildcard.
// [SDP-7.2-2]
func (r *Registry) lookup(ap netip.AddrPort) (*service, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if s, ok := r.m[registryKey(ap)]; ok {
		return s, true
	}
	s, ok := r.m[registryKey(netip.AddrPortFrom(netip.IPv4Unspecified(), ap.Port()))]
	return s, ok
}

// pick returns the next target for a client that asked for ap: one of the family
// asked for, or else one that stands for every address.
func (s *service) pick(ap netip.AddrPort) (netip.AddrPort, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	asked := ap.Addr().Unmap()
	for _, sameFamily := range []bool{true, false} {
		for range s.Targets {
			t := s.Targets[s.next%len(s.Targets)]
			s.next++
			a := t.Addr().Unmap().WithZone("")
			switch same := a.Is4() == asked.Is4(); {
			case same != sameFamily:
			case a.IsUnspecified():
				return netip.AddrPortFrom(asked, t.Port()), true
			case same:
				return netip.AddrPortFrom(a, t.Port()), true
			}
		}
	}
	return netip.AddrPort{}, false
}

// registryKey gives every spelling of the wildcard, and of an IPv4 address,
// one form.
func registryKey(a netip.AddrPort) netip.AddrPort {
	addr := a.Addr().Unmap().WithZone("")
	if !addr.IsValid() || addr.IsUnspecified() {
		addr = netip.IPv4Unspecified()
	}
	return netip.AddrPortFrom(addr, a.Port())
}
