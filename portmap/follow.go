package portmap

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"viaduct/registry"
)

// A Following selects the mappings that Registry.Follow takes from a registry, and the lifetime of
// answers.
type Following struct {
	// From is the registry with the mappings. The mappings are of kind registry.PortMapper: the
	// names are conventional addresses, such as "192.0.2.1:80" or "*:80", and the values are
	// targets.
	From registry.Registry

	// Services lists the conventional addresses to look up. An empty list means all; From must then
	// be able to list names.
	Services []netip.AddrPort

	// PmTime is the lifetime of an answer, shortened to the remaining validity of the answer's
	// record. While the registry is unreachable, an answer is valid for one connection.
	PmTime PmTime

	// Report, if not nil, is called after every change. n is the number of conventional addresses.
	// stale is true if the addresses are only the last known. err explains why records were left
	// out. Report must not block.
	Report func(n int, stale bool, err error)
}

// Follow fills r from a registry and applies its changes until ctx ends. All mappings change at
// once, and a mapping ends when its record expires. Follow blocks. ready, if not nil, is closed
// when the mappings are known for the first time. The result is the error of From.Watch, or nil if
// ctx has ended.
func (r *Registry) Follow(ctx context.Context, f Following, ready chan<- struct{}) error {
	names := []string{""}
	if len(f.Services) > 0 {
		names = nil
		for _, s := range f.Services {
			names = append(names, ServiceName(s))
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var mu sync.Mutex // serializes the reports of the watches
	answers := make(map[string]registry.Answer)
	errs := make(chan error, len(names))
	for _, n := range names {
		go func() {
			errs <- f.From.Watch(ctx, registry.PortMapper, n, func(a registry.Answer) {
				mu.Lock()
				defer mu.Unlock()
				first := len(answers) < len(names)
				answers[n] = a
				if len(answers) < len(names) {
					return
				}
				fresh, stale, err := f.mappings(answers)
				r.replace(fresh)
				if f.Report != nil {
					f.Report(fresh.Len(), stale, err)
				}
				if first && ready != nil {
					close(ready)
				}
			})
		}()
	}
	var err error
	for range names {
		if e := <-errs; e != nil && err == nil {
			err = e
			cancel()
		}
	}
	return err
}

// ServiceName returns the name a conventional address has in a registry: "*:80" for an unspecified
// address, otherwise address and port.
func ServiceName(conventional netip.AddrPort) string {
	k := registryKey(conventional)
	if k.Addr().IsUnspecified() {
		return fmt.Sprintf("*:%d", k.Port())
	}
	return k.String()
}

// mappings converts the answers to a Registry. The bool result is true if an answer is stale, and
// the error explains why records were left out.
func (f Following) mappings(answers map[string]registry.Answer) (*Registry, bool, error) {
	var bad []error
	stale := false
	all := make(map[netip.AddrPort]*Mapping)
	for _, a := range answers {
		stale = stale || a.Stale
	}
	for _, a := range answers {
		for _, rec := range a.Records {
			conv, err := ParseHostPort(rec.Name)
			var target netip.AddrPort
			if err == nil {
				target, err = ParseHostPort(rec.Value)
			}
			if err == nil && target.Addr().IsMulticast() {
				err = fmt.Errorf("%v is not an address to connect to", target)
			}
			if err != nil {
				bad = append(bad, fmt.Errorf("portmap: record %s %s is left out: %w", rec.Name, rec.Value, err))
				continue
			}
			conv = registryKey(conv)
			m := all[conv]
			if m == nil {
				m = &Mapping{PmTime: f.PmTime}
				if stale {
					m.PmTime = Once
				}
				all[conv] = m
			}
			m.Targets = append(m.Targets, target)
			m.Ends = append(m.Ends, rec.Until)
		}
	}
	fresh := NewRegistry()
	for conv, m := range all {
		if err := fresh.Set(conv, *m); err != nil {
			bad = append(bad, err)
		}
	}
	return fresh, stale, errors.Join(bad...)
}
