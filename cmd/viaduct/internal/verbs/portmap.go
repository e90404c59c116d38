package verbs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"viaduct/cmd/viaduct/internal/names"
	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/portmap"
)

func portmapCommand(e *shell.Env) *cobra.Command {
	c := &cobra.Command{
		Use:   "portmap serve|query",
		Short: "the SDP Port Mapper, server and client",
		Args:  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("one of serve and query is wanted: %w", unknownVerb(cmd, "verb of portmap", args[0]))
			}
			return shell.Usagef("one of serve and query is wanted")
		},
	}
	c.AddCommand(portmapServe(e), portmapQuery(e))
	return c
}

func portmapServe(e *shell.Env) *cobra.Command {
	var src mapSource
	var listen string
	var maps, services []string
	var cache string
	c := &cobra.Command{
		Use:   "serve [--listen UDPADDR] [--map CONVENTIONAL=SDPADDR[,SDPADDR...] ... | --file FILE | --registry ADDRESS]",
		Short: "answer clients with the SDP addresses of services",
		Long: `Answer clients that ask which address speaks SDP for a service. A conventional
address without host (":80"), or with host *, means every address of this host.
An SDP address without host means the address in the question. Several SDP
addresses are used in turn. FILE has one mapping per line (CONVENTIONAL
SDPADDR,... [cache=TIME]) and is read again after changes. Programs under viaduct
run --listen on this host register their own mappings as well.

With --registry, the mappings are those that services have registered, on any
host; see viaduct registry --help. An answer is valid for at most as long as its
registration. While the registry is unreachable, clients get the last known
mappings, until their leases expire, each for one connection only.`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			reg := portmap.NewRegistry()
			life, err := portmap.ParsePmTime(cache)
			if err != nil {
				return shell.Usage(fmt.Errorf("--cache: %w", err))
			}
			for _, m := range maps {
				if err := addMapping(reg, m, life); err != nil {
					return shell.Usage(fmt.Errorf("--map %s: %w", m, err))
				}
			}
			n := 0
			for _, given := range []bool{src.file != "", src.registry != "", len(maps) > 0} {
				if given {
					n++
				}
			}
			if n > 1 {
				return shell.Usagef("--map, --file and --registry exclude each other")
			}
			src.life = life
			for _, s := range services {
				a, err := portmap.ParseHostPort(s)
				if err != nil {
					return shell.Usage(fmt.Errorf("--service: %w", err))
				}
				src.services = append(src.services, a)
			}
			if src.registry == "" && len(services) > 0 {
				return shell.Usagef("--service goes with --registry")
			}
			return runPortmapServe(cmd.Context(), e, listen, src, reg)
		},
	}
	c.Flags().StringVar(&listen, "listen", ":"+strconv.Itoa(portmap.Port), "listen on `UDPADDR`")
	c.Flags().StringArrayVar(&maps, "map", nil, "a mapping, `CONVENTIONAL=SDPADDR`; may be repeated")
	c.Flags().StringVar(&src.file, "file", "", "read the mappings from `FILE` and follow its changes")
	c.Flags().StringVar(&src.registry, "registry", "", "use the mappings in the registry at `ADDRESS`")
	c.Flags().StringArrayVar(&services, "service", nil,
		"answer only for `CONVENTIONAL`; needed with dns:, which cannot list its names")
	c.Flags().StringVar(&cache, "cache", "30s",
		"how long clients may keep an answer of --map or --registry: never, forever or a `TIME` up to 254s")
	return c
}

func addMapping(reg *portmap.Registry, s string, life portmap.PmTime) error {
	conv, targets, ok := strings.Cut(s, "=")
	if !ok {
		return errors.New("want CONVENTIONAL=SDPADDR")
	}
	a, err := portmap.ParseHostPort(conv)
	if err != nil {
		return err
	}
	m := portmap.Mapping{PmTime: life}
	for t := range strings.SplitSeq(targets, ",") {
		b, err := portmap.ParseHostPort(t)
		if err != nil {
			return err
		}
		m.Targets = append(m.Targets, b)
	}
	return reg.Set(a, m)
}

// A mapSource is a source of mappings that change while the server runs.
type mapSource struct {
	file     string
	registry string
	services []netip.AddrPort
	life     portmap.PmTime
}

// follow keeps reg equal to the source until ctx ends. ready is closed when reg is filled.
func (src mapSource) follow(ctx context.Context, e *shell.Env, reg *portmap.Registry, ready chan<- struct{}) error {
	if src.file != "" {
		return reg.WatchFile(ctx, src.file, 0, ready, func(n int, err error) {
			if err != nil {
				e.Log.Warn("mappings kept as they were", "file", src.file, "err", err)
				return
			}
			e.Log.Info("mappings read", "file", src.file, "services", n)
		})
	}
	from, closeFrom, err := names.Open(src.registry, e.Log)
	if err != nil {
		return err
	}
	defer closeFrom()
	m := newRegistryStats()
	if err := e.Metrics.Register(m); err != nil {
		return err
	}
	was := -1
	f := portmap.Following{From: from, Services: src.services, PmTime: src.life}
	f.Report = func(n int, stale bool, err error) {
		m.set(n, stale)
		if err != nil {
			e.Log.Warn("records of the registry left out", "err", err)
		}
		if n != was {
			e.Log.Info("mappings read", "services", n, "stale", stale)
		}
		was = n
	}
	return reg.Follow(ctx, f, ready)
}

// registryStats exports the state of a registry's answers.
type registryStats struct{ names, stale prometheus.Gauge }

func newRegistryStats() registryStats {
	return registryStats{
		prometheus.NewGauge(prometheus.GaugeOpts{Name: "viaduct_registry_names",
			Help: "Names that the registry has for this process."}),
		prometheus.NewGauge(prometheus.GaugeOpts{Name: "viaduct_registry_stale",
			Help: "1 while the registry can't be asked and its last known names are used."}),
	}
}

func (m registryStats) set(names int, stale bool) {
	m.names.Set(float64(names))
	m.stale.Set(0)
	if stale {
		m.stale.Set(1)
	}
}

func (m registryStats) Describe(ch chan<- *prometheus.Desc) {
	m.names.Describe(ch)
	m.stale.Describe(ch)
}
func (m registryStats) Collect(ch chan<- prometheus.Metric) { m.names.Collect(ch); m.stale.Collect(ch) }

func runPortmapServe(ctx context.Context, e *shell.Env, listen string, src mapSource, reg *portmap.Registry) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := e.Inherit(); err != nil {
		return err
	}
	cfg := portmap.ServerConfig{Registry: reg, More: portmap.NewRegistry(), Logger: e.Log}
	if e.Capture != nil {
		cfg.Tap = e.Capture.Datagram
	}
	if src.file != "" || src.registry != "" {
		ready, ended := make(chan struct{}), make(chan error, 1)
		go func() { ended <- src.follow(ctx, e, reg, ready) }()
		select {
		case err := <-ended:
			return err
		case <-ready:
			defer func() { cancel(); <-ended }()
		}
	}
	var s *portmap.Server
	var err error
	if c := e.InheritedUDP(listen); c != nil {
		s, err = portmap.NewServer(c, cfg)
	} else {
		s, err = portmap.Listen(listen, cfg)
	}
	if err != nil {
		return err
	}
	if err := e.Metrics.Register(portmapStats{s}); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { s.Close() })
	defer stop()
	defer offerMapper(e, s.Addr(), cfg.More)()
	host, _, _ := net.SplitHostPort(listen)
	if host == "" {
		host = s.Addr().Addr().String()
	}
	e.PrintListening("udp://" + net.JoinHostPort(host, strconv.Itoa(int(s.Addr().Port()))))
	if err := e.Ready(); err != nil {
		return err
	}
	err = s.Serve()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// portmapStats exports the counters of a server.
type portmapStats struct{ s *portmap.Server }

var portmapDesc = prometheus.NewDesc("viaduct_portmap_events_total", "Events of the Port Mapper, by kind.",
	[]string{"kind"}, nil)
var portmapPending = prometheus.NewDesc("viaduct_portmap_pending",
	"Requests waiting for their acknowledgement.", nil, nil)

func (p portmapStats) Describe(ch chan<- *prometheus.Desc) { ch <- portmapDesc; ch <- portmapPending }

func (p portmapStats) Collect(ch chan<- prometheus.Metric) {
	st := p.s.Stats()
	for kind, n := range map[string]uint64{"received": st.Received, "accept": st.Accepts, "deny": st.Denies, "ack": st.Acks, "duplicate": st.Duplicates,
		"malformed": st.Malformed, "rate_limited": st.RateLimited, "unmatched": st.Unmatched, "expired": st.Expired, "evicted": st.Evicted} {
		ch <- prometheus.MustNewConstMetric(portmapDesc, prometheus.CounterValue, float64(n), kind)
	}
	ch <- prometheus.MustNewConstMetric(portmapPending, prometheus.GaugeValue, float64(st.Pending))
}

func portmapQuery(e *shell.Env) *cobra.Command {
	var server string
	var rc reach
	c := &cobra.Command{
		Use:   "query HOST:PORT [--server HOST[:PORT]]",
		Short: "ask for the SDP address of a service",
		Args:  usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			service, err := resolveTCP(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			var cfg portmap.ClientConfig
			cfg.Logger = e.Log
			if server != "" {
				if cfg.Server, err = ResolveMapper(cmd.Context(), server, service.Addr()); err != nil {
					return err
				}
			}
			cfg.Dial = e.DialUDP
			// A query names a local port. The listener reserves a port, as for a connection.
			l, err := net.ListenTCP("tcp", nil)
			if err != nil {
				return err
			}
			defer l.Close()
			port := l.Addr().(*net.TCPAddr).AddrPort().Port()
			start := time.Now()
			m, err := retrying(rc.retrier(cmd.Context(), e), func() (portmap.Mapped, error) {
				// Use a new client each time, since a client remembers that nothing answered.
				return portmap.NewClient(cfg).Resolve(cmd.Context(),
					portmap.Query{Service: service, Local: netip.AddrPortFrom(netip.Addr{}, port)})
			})
			took := time.Since(start)
			switch {
			case errors.Is(err, portmap.ErrDenied):
				return shell.Hint(fmt.Errorf("%v has no SDP address: %w", service, err),
					"connect to it by plain TCP, or map it with viaduct portmap serve --map")
			case errors.Is(err, portmap.ErrNoAnswer):
				return shell.Hint(fmt.Errorf("%v: %w", service, err),
					"connect to it by plain TCP, or check that a Port Mapper runs there")
			case err != nil:
				return err
			}
			if e.JSON {
				return e.PrintJSON(map[string]any{"service": service.String(), "sdp": m.Address.String(),
					"pmtime":        m.PmTime,
					"cache_seconds": m.PmTime.Duration().Seconds(), "milliseconds": float64(took.Microseconds()) / 1000})
			}
			keep := fmt.Sprintf("to be kept for %v", m.PmTime.Duration())
			switch m.PmTime {
			case portmap.Once:
				keep = "for one connection"
			case portmap.Forever:
				keep = "to be kept until it fails"
			}
			e.Printf("%v speaks SDP at %v (%s)\n", service, m.Address, keep)
			return nil
		},
	}
	c.Flags().StringVar(&server, "server", "", "ask the mapper at `HOST[:PORT]` instead of the service's own host")
	rc.add(c, false)
	return c
}

// resolveTCP resolves HOST:PORT to an address. The port must be a number other than 0.
func resolveTCP(ctx context.Context, s string) (netip.AddrPort, error) {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return netip.AddrPort{}, shell.Usagef("%q is not HOST:PORT", s)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return netip.AddrPort{}, shell.Usagef("%q has no port between 1 and 65535", s)
	}
	a, err := lookup(ctx, host, netip.Addr{})
	return netip.AddrPortFrom(a, uint16(n)), err
}

// lookup returns an address of a host, if possible of the same family as like. If like is invalid,
// any family will do.
func lookup(ctx context.Context, host string, like netip.Addr) (netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return a.Unmap(), nil
	}
	as, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return netip.Addr{}, err
	}
	for _, a := range as {
		if a = a.Unmap(); !like.IsValid() || a.Is4() == like.Is4() {
			return a, nil
		}
	}
	return as[0].Unmap(), nil
}

// ResolveMapper resolves HOST[:PORT], the address of a Port Mapper, if possible to an address of
// the same family as service.
func ResolveMapper(ctx context.Context, s string, service netip.Addr) (netip.AddrPort, error) {
	host, port := s, uint64(portmap.Port)
	if h, p, err := net.SplitHostPort(s); err == nil {
		if port, err = strconv.ParseUint(p, 10, 16); err != nil || port == 0 {
			return netip.AddrPort{}, shell.Usagef("%q has no port between 1 and 65535", s)
		}
		host = h
	}
	a, err := lookup(ctx, strings.Trim(host, "[]"), service)
	return netip.AddrPortFrom(a, uint16(port)), err
}
