package registry

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"viaduct/internal/perturb"
)

// These are the lifetimes of the answers of a DNS registry.
const (
	// defaultRefresh is the default interval at which a DNS registry queries a name again.
	defaultRefresh = 30 * time.Second

	// refreshes is the lifetime of an answer if later queries fail, in refresh intervals.
	refreshes = 3
)

// A DNS is a registry in the Domain Name System, read only: a name is the SRV records of service
// _viaduct and protocol _tcp at
//
//	_viaduct._tcp.NAME.KIND.DOMAIN
//
// where the name of a port mapping, ADDRESS:PORT or *:PORT, is written PORT.ADDRESS with hyphens
// for the dots and colons of the address, and PORT alone:
//
//	_viaduct._tcp.80.192-0-2-7.sdp.example.com.  SRV  0 0 8080 node7.example.com.
//	_viaduct._tcp.node7.vi.example.com.          SRV  0 0 3050 node7.example.com.
//
// The values are ADDRESS:PORT, one for each address of each target of the best priority that has
// records, in the order given by the weights.
//
// The system's resolver does not report the lifetime of an answer, so Refresh replaces the
// lifetime: an answer is reused for Refresh, and then the name is queried again. If the query
// fails, the answer remains in use, marked stale, until three times as old as Refresh. The
// resolver, or the server behind the resolver, may cache answers for the lifetime in the records.
// Names can't be listed, and nothing can be registered. A DNS is safe for concurrent use; the
// fields must not be changed after the first use.
type DNS struct {
	Domain   string
	Resolver *net.Resolver // nil means net.DefaultResolver
	Refresh  time.Duration // 0 means 30 s

	lookup dnsLookup // nil means Resolver; tests set it

	mu    perturb.Mutex
	known map[dnsName]*dnsAnswer // guarded by mu
}

// maxKnown is the maximum number of names remembered by a DNS registry.
const maxKnown = 4096

type dnsName struct{ kind, name string }

// A dnsAnswer is the last known answer for a name.
type dnsAnswer struct {
	records []Record
	at      time.Time // time of the query
}

type dnsLookup interface {
	LookupSRV(ctx context.Context, service, proto, name string) (string, []*net.SRV, error)
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Register implements Registry. It returns ErrReadOnly.
func (d *DNS) Register(_ context.Context, r Record, _ time.Duration) (Lease, error) {
	owner, err := d.owner(r.Kind, r.Name)
	if err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("%w: add an SRV record for _viaduct._tcp.%s to the zone", ErrReadOnly, owner)
}

// Resolve implements Registry. An answer younger than Refresh is returned without a query.
func (d *DNS) Resolve(ctx context.Context, kind, name string) (Answer, error) {
	return d.resolve(ctx, kind, name, d.refresh())
}

// resolve returns the known answer if younger than age. Otherwise it queries the resolver. If the
// query fails, the result is the known answer, marked stale, or ErrUnavailable.
func (d *DNS) resolve(ctx context.Context, kind, name string, age time.Duration) (Answer, error) {
	owner, err := d.owner(kind, name)
	if err != nil {
		return Answer{}, err
	}
	key := dnsName{kind, name}
	now := time.Now()
	d.mu.Lock()
	last := d.known[key]
	d.mu.Unlock()
	if last != nil && now.Sub(last.at) < age {
		return last.answer(now, false)
	}
	records, err := d.ask(ctx, owner)
	for i := range records {
		records[i].Kind, records[i].Name, records[i].Until = kind, name, now.Add(refreshes*d.refresh())
	}
	var gone *net.DNSError
	switch {
	case err == nil, errors.As(err, &gone) && gone.IsNotFound:
		last = &dnsAnswer{records, now}
		d.mu.Lock()
		defer d.mu.Unlock()
		d.remember(key, last)
		return last.answer(now, false)
	case last != nil:
		if a, err := last.answer(time.Now(), true); err == nil {
			return a, nil
		}
	}
	return Answer{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
}

// remember stores an answer. If maxKnown names are known, answers older than Refresh are removed
// first. If none is older, the new answer is not stored.
func (d *DNS) remember(key dnsName, a *dnsAnswer) {
	if d.known == nil {
		d.known = make(map[dnsName]*dnsAnswer)
	}
	if len(d.known) >= maxKnown {
		for k, o := range d.known {
			if a.at.Sub(o.at) >= d.refresh() {
				delete(d.known, k)
			}
		}
	}
	if len(d.known) < maxKnown {
		d.known[key] = a
	}
}

func (a *dnsAnswer) answer(now time.Time, stale bool) (Answer, error) {
	out := Answer{a.records, stale}.at(now)
	if len(out.Records) == 0 {
		return out, ErrNotFound
	}
	return out, nil
}

// Watch implements Registry. The name must not be empty. Watch queries the name every Refresh.
func (d *DNS) Watch(ctx context.Context, kind, name string, f func(Answer)) error {
	if name == "" {
		return fmt.Errorf("%w in DNS: say which", ErrNoList)
	}
	var t Table
	ask := func() error {
		a, err := d.resolve(ctx, kind, name, 0)
		switch {
		case errors.Is(err, ErrNotFound), err == nil && !a.Stale:
			return t.Set(a.Records)
		case err == nil && a.Stale:
			t.SetStale()
			return nil
		}
		t.SetStale()
		return err
	}
	if err := ask(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(d.refresh())
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				ask() // a failure marks the answer stale
			}
		}
	}()
	err := t.Watch(ctx, kind, name, f)
	cancel()
	<-done
	return err
}

func (d *DNS) refresh() time.Duration {
	if d.Refresh > 0 {
		return d.Refresh
	}
	return defaultRefresh
}

// ask queries the resolver and returns the records. Only the Value of each record is set.
func (d *DNS) ask(ctx context.Context, owner string) ([]Record, error) {
	l := d.lookup
	if l == nil {
		l = d.Resolver
		if d.Resolver == nil {
			l = net.DefaultResolver
		}
	}
	_, srvs, err := l.LookupSRV(ctx, "viaduct", "tcp", owner)
	if err != nil {
		return nil, err
	}
	var records []Record
	var failed error
	for i, s := range srvs {
		if i > 0 && s.Priority != srvs[i-1].Priority && len(records) > 0 {
			break // a lower priority is used only if no better one has an address
		}
		if s.Target == "." || s.Port == 0 { // the zone says that the service does not exist
			continue
		}
		as, err := l.LookupNetIP(ctx, "ip", s.Target)
		if err != nil {
			failed = err
			continue
		}
		for _, a := range as {
			records = append(records, Record{Value: netip.AddrPortFrom(a.Unmap(), s.Port).String()})
		}
	}
	if len(records) == 0 && failed != nil {
		return nil, failed
	}
	return records, nil
}

// owner returns the part of the domain name that follows _viaduct._tcp, or an error if kind or name
// is not valid.
func (d *DNS) owner(kind, name string) (string, error) {
	if err := (Record{Kind: kind, Name: name, Value: "-"}).Check(); err != nil {
		return "", err
	}
	if host, port, err := net.SplitHostPort(name); err == nil {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return "", fmt.Errorf("registry: %q has no port between 1 and 65535", name)
		}
		name = port
		if host != "" && host != "*" {
			name += "." + strings.NewReplacer(".", "-", ":", "-").Replace(host)
		}
	}
	return name + "." + kind + "." + strings.Trim(d.Domain, ".") + ".", nil
}
