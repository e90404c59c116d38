package vitcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"viaduct/internal/perturb"
	"viaduct/internal/wire/vitcpwire"
	"viaduct/vi"
)

// maxDiscriminator is the maximum length in bytes enforced by package vi. [V-04]
const maxDiscriminator = vitcpwire.MaxDiscriminator

// A Provider is VI over TCP. All NICs of a Provider share the listening addresses. So several
// applications of a process can share a port, and the discriminator selects the application. The
// methods may be called concurrently.
type Provider struct { // [VIT-2.2.2.2.1-2]
	cfg   Config
	count counters

	mu        perturb.Mutex
	listeners map[*listener]struct{} // guarded by mu
	links     map[*link]struct{}     // guarded by mu
	ended     Stats                  // guarded by mu: counters of links that have ended
	perPeer   map[netip.Addr]int     // guarded by mu: number of open incoming connections, by caller
}

var _ vi.Provider = (*Provider)(nil)

// New returns a provider with the given settings. The error names the invalid setting.
func New(c Config) (*Provider, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	return &Provider{
		cfg:       c,
		listeners: make(map[*listener]struct{}),
		links:     make(map[*link]struct{}),
		perPeer:   make(map[netip.Addr]int),
	}, nil
}

// Stats returns the counters so far.
func (p *Provider) Stats() Stats {
	p.mu.Lock()
	s := p.ended
	for l := range p.links {
		l.count.addTo(&s)
	}
	p.mu.Unlock()
	c := &p.count
	s.Connections = c.connections.Load()
	s.ActiveRequests = c.activeRequests.Load()
	s.ActiveFailures = c.activeFailures.Load()
	s.Incoming = c.incoming.Load()
	s.IncomingLimited = c.incomingLimited.Load()
	s.IncomingTimeouts = c.incomingTimeouts.Load()
	s.IncomingInvalid = c.incomingInvalid.Load()
	s.NoMatches = c.noMatches.Load()
	s.Rejects = c.rejects.Load()
	s.SecurityRefusals = c.secur.Load()
	s.ProtocolErrors = c.protocolErrors.Load()
	s.RemoteErrors = c.remoteErrors.Load()
	return s
}

// A device is an open NIC.
type device struct {
	p     *Provider
	nic   *vi.NIC
	name  string
	addr  netip.AddrPort // default listening address, with a port; the IP address may be unspecified
	known netip.AddrPort // address that peers on other hosts use for the device, with a port

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup // waits, attempts to connect, and links

	mu        perturb.Mutex
	closed    bool                   // guarded by mu
	listeners map[*listener]struct{} // guarded by mu: listeners that the device uses; nil once closed
	pending   map[*request]struct{}  // guarded by mu: requests the consumer has not decided
	misses    map[netip.AddrPort]int // guarded by mu: No Match in a row, by target
}

// Open implements vi.Provider. The name is the IP address for listening. "" and "vitcp0" mean all
// addresses of the host: the NIC then reports some address as LocalAddress, and a wait at
// LocalAddress answers at all addresses. To wait at a single address, open the NIC by that address.
func (p *Provider) Open(name string, nic *vi.NIC) (vi.Device, error) {
	d := &device{p: p, nic: nic, name: name, listeners: make(map[*listener]struct{}),
		misses: make(map[netip.AddrPort]int), pending: make(map[*request]struct{})}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	ip := netip.IPv6Unspecified()
	if name == "" || name == "vitcp0" {
		d.name = "vitcp0"
	} else {
		var err error
		if ip, err = netip.ParseAddr(name); err != nil {
			return nil, fmt.Errorf("%w: device %q is no IP address", vi.ErrInvalidParameter, name)
		}
		ip = ip.Unmap()
	}
	d.addr = netip.AddrPortFrom(ip, p.cfg.Port)
	if p.cfg.Listen != "" {
		l, err := p.listenString(p.cfg.Listen)
		if err != nil {
			return nil, err
		}
		d.listeners[l] = struct{}{}
		d.addr = l.addr
	} else if p.cfg.ImplicitListen {
		if _, err := d.listen(d.addr); err != nil { // [VIT-4.3-1]
			return nil, err
		}
	}
	d.known = d.addr
	if d.addr.Addr().IsUnspecified() {
		d.known = netip.AddrPortFrom(ownAddr(), d.addr.Port())
	}
	return d, nil
}

// hostPart returns the device's address in the form for peers on other hosts.
func (d *device) hostPart() []byte {
	ap := d.known
	if ap.Port() == vitcpwire.Port {
		ap = netip.AddrPortFrom(ap.Addr(), 0)
	}
	return vi.IPAddress(ap, "").Host
}

// ownAddr returns an address of this host, preferably IPv4. It returns loopback if the host has no
// other.
func ownAddr() netip.Addr {
	as, _ := net.InterfaceAddrs()
	var v6 netip.Addr
	for _, a := range as {
		n, ok := a.(*net.IPNet)
		if !ok {
			continue
		}
		ip, ok := netip.AddrFromSlice(n.IP)
		if ip = ip.Unmap(); !ok || ip.IsLoopback() || !ip.IsGlobalUnicast() {
			continue
		}
		if ip.Is4() {
			return ip
		}
		if !v6.IsValid() {
			v6 = ip
		}
	}
	if v6.IsValid() {
		return v6
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

// Attributes implements vi.Device.
func (d *device) Attributes() vi.NICAttributes {
	levels := vi.UnreliableDelivery | vi.ReliableDelivery | vi.ReliableReception
	if d.p.cfg.ReliableIsDelivery {
		levels &^= vi.ReliableReception
	}
	return vi.NICAttributes{
		Name:                   d.name,
		HardwareVersion:        vitcpwire.Version,
		ProviderVersion:        1,
		LocalAddress:           d.hostPart(),
		ThreadSafe:             true,
		MaxDiscriminatorLen:    maxDiscriminator,
		MaxRegisterBytes:       1 << 48,
		MaxRegisterRegions:     1 << 20,
		MaxRegisterBlockBytes:  1 << 47,
		MaxVI:                  1 << 16,
		MaxDescriptorsPerQueue: 1 << 16,
		MaxSegmentsPerDesc:     maxPieces,
		MaxCQ:                  1 << 16,
		MaxCQEntries:           1 << 24,
		MaxTransferSize:        d.p.cfg.MaxTransferSize,
		NativeMTU:              min(32<<10, d.p.cfg.MaxTransferSize),
		MaxPtags:               1 << 16,
		ReliabilityLevels:      levels,
		RDMAReadSupport:        levels &^ vi.UnreliableDelivery,
	}
}

// FormatHost implements vi.Device.
func (d *device) FormatHost(host []byte) string {
	ap, ok := (vi.Address{Host: host}).AddrPort()
	if !ok {
		return fmt.Sprintf("0x%x", host)
	}
	if ap.Port() == 0 {
		return ap.Addr().String()
	}
	return ap.String()
}

// ParseHost implements vi.Device. It parses an IP address with or without a port.
func (d *device) ParseHost(s string) ([]byte, error) {
	if ip, err := netip.ParseAddr(s); err == nil {
		return vi.IPAddress(netip.AddrPortFrom(ip, 0), "").Host, nil
	}
	ap, err := netip.ParseAddrPort(s)
	if err != nil {
		return nil, fmt.Errorf("%w: %q is neither an IP address nor one with a port", vi.ErrInvalidParameter, s)
	}
	return vi.IPAddress(ap, "").Host, nil
}

// LookupHost implements vi.Device with the system's resolver.
func (d *device) LookupHost(ctx context.Context, name string) ([][]byte, error) {
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", vi.ErrNameService, err)
	}
	hosts := make([][]byte, len(ips))
	for i, ip := range ips {
		hosts[i] = vi.IPAddress(netip.AddrPortFrom(ip, 0), "").Host
	}
	return hosts, nil
}

// LookupAddr implements vi.Device with the system's resolver.
func (d *device) LookupAddr(ctx context.Context, host []byte) (string, error) {
	ap, ok := (vi.Address{Host: host}).AddrPort()
	if !ok {
		return "", fmt.Errorf("%w: %x is no IP address", vi.ErrInvalidParameter, host)
	}
	names, err := net.DefaultResolver.LookupAddr(ctx, ap.Addr().String())
	if err != nil || len(names) == 0 {
		return "", fmt.Errorf("%w: %w", vi.ErrNameService, err)
	}
	return names[0], nil
}

// Close implements vi.Device.
func (d *device) Close() error {
	d.mu.Lock()
	d.closed = true
	ls, pending := d.listeners, d.pending
	d.listeners, d.pending = nil, nil
	d.mu.Unlock()
	d.cancel()
	for r := range pending {
		r.drop()
	}
	for l := range ls {
		d.p.release(l)
	}
	d.wg.Wait()
	return nil
}

// enter registers a goroutine working for the device; the goroutine must call wg.Done. If the
// device is closed, enter returns an error and registers nothing.
func (d *device) enter() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return vi.ErrClosed
	}
	d.wg.Add(1)
	return nil
}

// join returns a context that ends with ctx, and also when the device is closed.
func (d *device) join(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(d.ctx, func() { cancel(vi.ErrClosed) })
	return ctx, func() { stop(); cancel(nil) }
}

// listen makes sure that the device listens on ap, and keeps the listener open until the device is
// closed.
func (d *device) listen(ap netip.AddrPort) (*listener, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, vi.ErrClosed
	}
	for l := range d.listeners {
		if l.serves(ap) {
			return l, nil
		}
	}
	l, err := d.p.acquire(ap)
	if err != nil {
		return nil, err
	}
	d.listeners[l] = struct{}{}
	return l, nil
}

// place returns the address to listen at for the host part of a local address: an IP address with
// or without a port. An empty host part, or the device's own address, stands for all addresses
// where the device listens, because a device at a wildcard is known by a single address and answers
// at all. [VIT-2.2.2.2.1-1]
func (d *device) place(local vi.Address) (ap netip.AddrPort, err error) {
	if len(local.Host) == 0 {
		return d.addr, nil
	}
	ap, ok := local.AddrPort()
	if !ok {
		return ap, fmt.Errorf("%w: host part %x is no IP address", vi.ErrInvalidParameter, local.Host)
	}
	if ap.Port() == 0 {
		ap = netip.AddrPortFrom(ap.Addr(), d.addr.Port())
	}
	if ap = netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()); ap == d.known {
		return d.addr, nil
	}
	return ap, nil
}

// noteMatch counts consecutive No Match answers of one target, and returns the count. missed is
// false for any other answer; the count is then reset.
func (d *device) noteMatch(target netip.AddrPort, missed bool) (inRow int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !missed {
		delete(d.misses, target)
		return 0
	}
	if len(d.misses) >= 1024 {
		clear(d.misses) // a caller of that many targets is slow enough without pauses
	}
	d.misses[target]++
	return d.misses[target]
}

// These are the pauses after consecutive No Match answers of one target. They exist because callers
// of VIPL repeat a request without a pause, and each request is a TCP connection. [VIA 6.4.5]
const (
	missPause    = time.Millisecond
	missPauseMax = 10 * time.Millisecond
)

func (d *device) pace(ctx context.Context, target netip.AddrPort) {
	n := d.noteMatch(target, true)
	if n < 2 {
		return
	}
	t := time.NewTimer(min(time.Duration(n-1)*missPause, missPauseMax))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// discriminator checks the length of b and returns b as a discriminator. [V-04]
func discriminator(b []byte) (vitcpwire.Discriminator, error) {
	dis, err := vitcpwire.MakeDiscriminator(b)
	if err != nil {
		return dis, fmt.Errorf("%w: discriminator of %d bytes, at most %d", vi.ErrInvalidParameter,
			len(b), maxDiscriminator)
	}
	return dis, nil
}

// contextError returns the error of package vi for an expired or cancelled context.
func contextError(ctx context.Context) error {
	err := context.Cause(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		return vi.ErrTimeout
	}
	return err
}

// listenError returns the error of package vi for a failure to listen.
func listenError(err error) error {
	if errors.Is(err, syscall.EADDRNOTAVAIL) {
		return fmt.Errorf("%w: %w", vi.ErrInvalidParameter, err)
	}
	return fmt.Errorf("%w: %w", vi.ErrResource, err)
}
