package viplconf

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"time"

	"viaduct/fcvi"
	"viaduct/internal/fc/fcip"
	"viaduct/internal/wire/vitcpwire"
	"viaduct/samehost"
	"viaduct/vi"
	"viaduct/vitcp"
)

// An Opener opens NICs by one configuration. NICs of VI/TCP with the same settings share a provider
// and its listening addresses. So a single process can be client and server, and can open a NIC
// twice. Methods may be called concurrently.
type Opener struct {
	cfg *Config
	log *slog.Logger // nil: silent

	mu    sync.Mutex
	vitcp map[vitcpKey]*vitcp.Provider // guarded by mu
}

// A vitcpKey holds the settings of a provider: NICs with equal keys share a provider.
type vitcpKey struct {
	port       uint16
	grace      time.Duration
	congestion string
	sameHost   samehost.Policy
}

// New returns an Opener for c.
func New(c *Config) *Opener {
	o := &Opener{cfg: c, vitcp: make(map[vitcpKey]*vitcp.Provider)}
	if c.Log != nil {
		o.log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: *c.Log}))
	}
	return o
}

// Config returns the configuration.
func (o *Opener) Config() *Config { return o.cfg }

// A Place describes how to use an open NIC.
type Place struct {
	// Wait is the host part of the address on which the NIC waits for connections; nil means every
	// address at which the NIC listens.
	Wait []byte

	// Gather allows successive sends to be transmitted together.
	Gather bool
}

// Open opens the NIC called name. The error matches vi.ErrInvalidParameter if the name is unknown
// or the provider refuses the settings, and vi.ErrResource if the hosts file cannot be read or an
// address is in use.
func (o *Opener) Open(name string) (*vi.NIC, Place, error) {
	d, err := o.cfg.Find(name)
	if err != nil {
		return nil, Place{}, err
	}
	hosts, err := readHosts(d.Hosts)
	if err != nil {
		return nil, Place{}, fmt.Errorf("%w: %w", vi.ErrResource, err)
	}
	cfg := &vi.Config{StrictPtags: d.StrictPtags, Hosts: hosts, Logger: o.log}
	if d.Provider == "fcvi" {
		n, err := d.openFCVI(cfg)
		return n, Place{Gather: !d.EachPost}, err
	}
	return o.openVITCP(d, cfg)
}

func readHosts(file string) ([]byte, error) {
	optional := file == ""
	if optional {
		file = DefaultHosts
	}
	b, err := os.ReadFile(file)
	if optional && errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return b, err
}

// openVITCP opens a NIC that listens only from the first VipConnectWait or peer-to-peer request on,
// because a program that only connects needs no port. [V-31] A NIC with port 0 listens at once,
// because the NIC's address must contain the actual port.
func (o *Opener) openVITCP(d NIC, cfg *vi.Config) (*vi.NIC, Place, error) {
	device, port, listen := d.Address, uint16(0), ""
	if d.Listen != "" {
		host, p, _ := net.SplitHostPort(d.Listen)
		n, _ := strconv.ParseUint(p, 10, 16)
		if port = uint16(n); port == 0 {
			listen = d.Listen
		}
		if device == "" {
			device = host
		}
	}
	p, err := o.provider(d, port, listen)
	if err != nil {
		return nil, Place{}, err
	}
	n, err := vi.Open(shaped{p, d, vitcpwire.Port}, device, cfg)
	if err != nil {
		return nil, Place{}, err
	}
	where := Place{Gather: !d.EachPost}
	if own, ok := (vi.Address{Host: n.Query().LocalAddress}).AddrPort(); ok && device == "" &&
		listen == "" && own.Addr().Is4() {
		// Wait at every address of the host, of the family whose addresses have the length the NIC
		// reports.
		where.Wait = vi.IPAddress(netip.AddrPortFrom(netip.IPv4Unspecified(), 0), "").Host
	}
	return n, where, nil
}

func (o *Opener) provider(d NIC, port uint16, listen string) (*vitcp.Provider, error) {
	cfg := vitcp.Config{Port: port, SharePort: true, Listen: listen, Grace: d.Grace,
		Congestion: d.Congestion, SameHost: d.SameHost, Logger: o.log}
	if listen != "" {
		return vitcp.New(cfg)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	key := vitcpKey{port, d.Grace, d.Congestion, d.SameHost}
	p := o.vitcp[key]
	if p == nil {
		var err error
		if p, err = vitcp.New(cfg); err != nil {
			return nil, fmt.Errorf("%w: %w", vi.ErrInvalidParameter, err)
		}
		o.vitcp[key] = p
	}
	return p, nil
}

// openFCVI opens a NIC with a separate fabric, or attaches the NIC to a daemon. If another NIC or
// process uses the usual port, the NIC listens at a free port, and the NIC's address contains this
// port.
func (d NIC) openFCVI(cfg *vi.Config) (*vi.NIC, error) {
	if d.everywhere() {
		// If possible, give the NIC an address other hosts can reach.
		if ifs, err := interfaces(); err == nil && len(ifs) > 0 && ifs[0].addr.Is4() {
			d.Address = ifs[0].addr.String()
		}
	}
	open := func(listen string) (*vi.NIC, error) {
		p, err := fcvi.New(fcvi.Config{Listen: listen, Fabric: d.Fabric,
			MaxTransferSize: min(d.MaxTransfer, fcvi.LimitMaxTransfer), Congestion: d.Congestion,
			SameHost: d.SameHost, Logger: cfg.Logger})
		if err != nil {
			return nil, fmt.Errorf("%w: %w", vi.ErrInvalidParameter, err)
		}
		return vi.Open(shaped{p, d, fcip.Port}, d.Address, cfg)
	}
	if d.Listen != "" || d.Fabric != "" {
		return open(d.Listen)
	}
	n, err := open(fmt.Sprintf(":%d", fcip.Port))
	if errors.Is(err, vi.ErrResource) {
		n, err = open(":0")
	}
	return n, err
}

// everywhere reports whether a NIC listens at all addresses of the host and the configuration gives
// no address for peers.
func (d NIC) everywhere() bool {
	if d.Address != "" || d.Fabric != "" {
		return false
	}
	host, _, _ := net.SplitHostPort(d.Listen)
	ip, err := netip.ParseAddr(host)
	return host == "" || err == nil && ip.IsUnspecified()
}

// shaped is a provider whose NICs report the attributes the configuration sets.
type shaped struct {
	vi.Provider
	d     NIC
	usual uint16 // the default port of an address without one
}

func (p shaped) Open(name string, nic *vi.NIC) (vi.Device, error) {
	d, err := p.Provider.Open(name, nic)
	if err != nil {
		return nil, err
	}
	a := d.Attributes()
	a.Name = p.d.Name
	a.MaxTransferSize = min(a.MaxTransferSize, p.d.MaxTransfer)
	a.NativeMTU = min(a.NativeMTU, a.MaxTransferSize)
	if ap, ok := (vi.Address{Host: a.LocalAddress}).AddrPort(); ok && ap.Port() == 0 && p.d.PortAlways {
		a.LocalAddress = vi.IPAddress(netip.AddrPortFrom(ap.Addr(), p.usual), "").Host
	}
	return device{d, a}, nil
}

type device struct {
	vi.Device
	attrs vi.NICAttributes
}

func (d device) Attributes() vi.NICAttributes { return d.attrs }

// LookupHost asks the system's resolver if the provider has no name service of its own, since hosts
// of FC-VI have IP addresses too. The name of an interface of the host resolves to the interface's
// address. [VIA 6.6]
func (d device) LookupHost(ctx context.Context, name string) ([][]byte, error) {
	if i, err := net.InterfaceByName(name); err == nil {
		if a := firstAddress(*i); a.IsValid() {
			return [][]byte{vi.IPAddress(netip.AddrPortFrom(a, 0), "").Host}, nil
		}
	}
	hosts, err := d.Device.LookupHost(ctx, name)
	if !errors.Is(err, vi.ErrNameService) {
		return hosts, err
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", vi.ErrNameService, err)
	}
	for _, ip := range ips {
		hosts = append(hosts, vi.IPAddress(netip.AddrPortFrom(ip.Unmap(), 0), "").Host)
	}
	return hosts, nil
}
