package mapper

import (
	"net/netip"
	"slices"
	"sync"

	"viaduct/portmap"
)

// A table holds the mappings of a Port Mapper, by the registering service. Processes sharing a port
// register the same conventional address, and the address has the targets of all these processes.
type table struct {
	registry *portmap.Registry

	mu sync.Mutex
	by map[any]map[netip.AddrPort][]netip.AddrPort // guarded by mu; by service and conventional address
}

func newTable(reg *portmap.Registry) *table {
	return &table{registry: reg, by: map[any]map[netip.AddrPort][]netip.AddrPort{}}
}

// set registers the targets of a service for a conventional address. Without targets, set removes
// the registration. After an error the table is unchanged.
func (t *table) set(service any, at netip.AddrPort, targets []netip.AddrPort) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.by[service] == nil {
		t.by[service] = map[netip.AddrPort][]netip.AddrPort{}
	}
	old, had := t.by[service][at]
	t.by[service][at] = targets
	if len(targets) == 0 {
		delete(t.by[service], at)
	}
	err := t.publishLocked(at)
	if err != nil { // Register left the entry unchanged
		delete(t.by[service], at)
		if had {
			t.by[service][at] = old
		}
	}
	return err
}

// drop removes all mappings of an ended service.
func (t *table) drop(service any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	gone := t.by[service]
	delete(t.by, service)
	for at := range gone {
		t.publishLocked(at)
	}
}

func (t *table) publishLocked(at netip.AddrPort) error {
	var all []netip.AddrPort
	for _, m := range t.by {
		all = append(all, m[at]...)
	}
	if len(all) == 0 {
		t.registry.Delete(at)
		return nil
	}
	slices.SortFunc(all, netip.AddrPort.Compare)
	return t.registry.Set(at, portmap.NewMapping(slices.Compact(all)...))
}
