package verbs

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"viaduct/cmd/viaduct/internal/addr"
	"viaduct/cmd/viaduct/internal/names"
	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/cmd/viaduct/internal/transport"
	"viaduct/portmap"
	"viaduct/registry"
)

// defaultLease is how long a registration outlives the process.
const defaultLease = 30 * time.Second

// A registerFlags holds the common flags of verbs with lasting listeners.
type registerFlags struct {
	conn     *connFlags // has the registry
	register []string
	lease    time.Duration
}

func (f *registerFlags) add(cmd *cobra.Command, conn *connFlags) {
	f.conn = conn
	cmd.Flags().StringArrayVar(&f.register, "register", nil,
		"register the listeners as `NAME`, or sdp ones for [ADDRESS]:PORT; may be repeated")
	cmd.Flags().DurationVar(&f.lease, "lease", defaultLease, "a registration ends `TIME` after this process has died")
}

// check checks the flags before anything listens. A name without a fitting listener is an error.
func (f *registerFlags) check(us []*addr.URL) error {
	if err := checkRegister(f.conn.registry, f.register, f.lease); err != nil {
		return err
	}
	for _, n := range f.register {
		if fit, err := f.records(n, us); err != nil {
			return shell.Usage(fmt.Errorf("--register %s: %w", n, err))
		} else if len(fit) == 0 {
			return shell.Usagef("--register %s: no listener has such names: sdp has [ADDRESS]:PORT, vitcp and fcvi have any other", n)
		}
	}
	return nil
}

// checkRegister checks the flags that go with --register.
func checkRegister(at string, names []string, lease time.Duration) error {
	if at == "" && len(names) > 0 {
		return shell.Usagef("--register wants the registry, --registry ADDRESS")
	}
	if lease < registry.MinLease {
		return shell.Usagef("--lease %v is shorter than %v", lease, registry.MinLease)
	}
	return nil
}

// start registers the listeners. stop removes the registrations. Call stop even after an error.
func (f *registerFlags) start(ctx context.Context, e *shell.Env, us []*addr.URL) (stop func(), err error) {
	var records []registry.Record
	for _, n := range f.register {
		rs, err := f.records(n, us)
		if err != nil {
			return func() {}, fmt.Errorf("--register %s: %w", n, err)
		}
		records = append(records, rs...)
	}
	if len(records) == 0 {
		return func() {}, nil
	}
	return keepAll(ctx, e, f.conn.registry, records, f.lease)
}

// keepAll registers and renews records. stop removes the registrations. Call stop even after an
// error.
func keepAll(ctx context.Context, e *shell.Env, at string, records []registry.Record, lease time.Duration) (stop func(), err error) {
	var kept []*registry.Registration
	reg, closeReg, err := names.Open(at, e.Log)
	if err != nil {
		return func() {}, err
	}
	stop = sync.OnceFunc(func() {
		ending(ctx, func() {
			var wg sync.WaitGroup
			for _, k := range kept {
				wg.Go(func() {
					if err := k.Close(); err != nil {
						e.Log.Warn("registration left to its lease", "err", err)
					}
				})
			}
			wg.Wait()
			closeReg()
		})
	})
	for _, r := range records {
		log := e.Log.With("kind", r.Kind, "name", r.Name, "value", r.Value)
		// The registration does not end with ctx. The caller defers stop instead.
		k, err := registry.Keep(context.WithoutCancel(ctx), reg, r, lease, func(err error) {
			if err != nil {
				log.Warn("registration not renewed", "err", err)
			} else {
				log.Info("registered again")
			}
		})
		if err != nil {
			return stop, err
		}
		kept = append(kept, k)
		log.Info("registered", "lease", lease)
	}
	return stop, nil
}

// findTime bounds a query to a registry.
const findTime = 10 * time.Second

// finder returns a function that looks up names in the registry at an address; nil without a
// registry.
func finder(e *shell.Env, at string) (transport.Finder, error) {
	if at == "" {
		return nil, nil
	}
	open := func() (registry.Registry, func() error, error) { return names.Open(at, e.Log) }
	_, closeReg, err := open() // an address that cannot be parsed is reported at once
	if err != nil {
		return nil, err
	}
	closeReg()
	return func(ctx context.Context, kind, name string) (string, error) {
		reg, closeReg, err := open()
		if err != nil {
			return "", err
		}
		defer closeReg()
		ctx, cancel := context.WithTimeout(ctx, findTime)
		defer cancel()
		a, err := reg.Resolve(ctx, kind, name)
		if err != nil {
			return "", fmt.Errorf("%s %q in the registry: %w", kind, name, err)
		}
		if a.Stale {
			e.Log.Warn("the registry can't be asked: its last known answer is used", "kind",
				kind, "name", name, "value", a.Records[0].Value)
		}
		return a.Records[0].Value, nil
	}, nil
}

// records returns the records of a name for the listeners that can have the name.
func (f *registerFlags) records(name string, us []*addr.URL) ([]registry.Record, error) {
	var rs []registry.Record
	service, notService := portmap.ParseHostPort(name)
	for _, u := range us {
		at, err := ownAddresses(u.Host)
		if err != nil {
			return nil, err
		}
		for _, a := range at {
			r := registry.Record{Kind: registry.VI, Name: name, Value: a.String()}
			switch {
			case u.Scheme == "sdp" && notService == nil:
				conv := service
				if conv.Addr().IsUnspecified() {
					conv = netip.AddrPortFrom(a, service.Port()) // the address of this host, not the wildcard
				}
				if len(at) > 1 && conv.Addr().Is4() != a.Is4() {
					continue
				}
				r.Kind, r.Name = registry.PortMapper, portmap.ServiceName(conv)
				r.Value = netip.AddrPortFrom(a, u.Port).String()
			case (u.Scheme == "vitcp" || u.Scheme == "fcvi") && notService != nil:
				if u.Port != addr.DefaultPort(u.Scheme) && !u.Query.Has("fabric") {
					r.Value = netip.AddrPortFrom(a, u.Port).String()
				}
			default:
				continue
			}
			if err := r.Check(); err != nil {
				return nil, err
			}
			rs = append(rs, r)
		}
	}
	return rs, nil
}

// ownAddresses returns the addresses where other hosts reach the listener of a URL. A listener on
// all addresses has the addresses of the interfaces, or loopback if there is no other address.
func ownAddresses(host string) ([]netip.Addr, error) {
	if host != "" {
		a, err := lookup(context.Background(), host, netip.Addr{})
		if err != nil || !a.IsUnspecified() {
			return []netip.Addr{a}, err
		}
	}
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, shell.Hint(fmt.Errorf("the addresses of this host: %w", err),
			"listen at one of them, or let the service use AF_NETLINK")
	}
	var found []netip.Addr
	for _, n := range all {
		p, err := netip.ParsePrefix(n.String())
		if err != nil {
			continue
		}
		if a := p.Addr().Unmap(); a.IsGlobalUnicast() {
			found = append(found, a)
		}
	}
	if found == nil {
		found = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})}
	}
	return found, nil
}
