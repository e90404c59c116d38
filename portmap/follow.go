package portmap

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"viaduct/registry"
)

// A Following says what Registry.Follow takes from a registry, and how it answers.
type Following struct {
	// From has the mappings, of kind registry.PortMapper: conventional addresses
	// for names, such as "192.0.2.1:80" or "*:80", and targets for values.
	From registry.Registry

	// Services are the conventional addresses that are looked up. None means all,
	// if From can list them.
	Services []netip.AddrPort

	// PmTime is the lifetime of an answer, which is shortened to what is left of
	// the record it comes from. An answer of a registry that can't be asked is for one
	// connection.
	PmTime PmTime

	// Report, if not nil, is told about every change: how many conventional
	// addresses there are now, whether they are only the last known ones, and what is
	// wrong with the records that were left out. It must not block.
	Report func(n int, stale bool, err error)
}

// Follow fills r from a registry and keeps it true to that until ctx ends: the
// mappings change all at once, and each ends with its record. It blocks; ready, if not
// nil, is closed when the mappings are known for the first time. The error, nil if
// ctx has ended, is that of From.Watch.
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
	var mu sync.Mutex // orders what the watches tell
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
				r.Replace(fresh)
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

// ServiceName returns the name that a conventional address has in a registry.
func ServiceName(conventional netip.AddrPort) string {
	k := registryKey(conventional)
	if k.Addr().IsUnspecified() {
		return fmt.Sprintf("*:%d", k.Port())
	}
	return k.String()
}

// mappings returns what the answers say.
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
