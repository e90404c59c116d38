package fcvi

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"viaduct/internal/fc"
	"viaduct/internal/fc/fabricd"
	"viaduct/internal/fc/fcip"
	"viaduct/internal/perturb"
	"viaduct/internal/wire/iu"
	"viaduct/samehost"
	"viaduct/vi"
)

// A Config holds the settings of a provider. A provider with the zero value only dials. A Config
// must not be changed after New.
type Config struct {
	// Listen is the address, host and port, on which each NIC's own fabric accepts FCIP links. Port
	// 0 picks a free port, and the NIC's LocalAddress reports it. If Listen is empty the NIC only
	// dials.
	Listen string

	// ListenFunc, if set, opens the listening sockets instead of net.Listen. Use it, for example,
	// for a socket a service manager has opened. The NIC owns the returned listener.
	ListenFunc func(network, address string) (net.Listener, error)

	// Fabric, if set, is the address of a fabric daemon. The NIC is then one N_Port of that fabric
	// and reaches the other ports. A lost link is logged as a warning and dialled again, with
	// pauses of about a second, until the NIC is closed. Meanwhile connections break, connection
	// requests wait, and listeners continue. Listen is ignored.
	Fabric string

	// network, if set, attaches the NIC's port to links inside the process. Listen and Fabric are
	// ignored.
	network network

	PortName WWN // Port_Name of the NIC; 0 means a random, locally administered one
	NodeName WWN // Node_Name of the NIC; 0 means a random, locally administered one

	// Class2 offers class 2, and uses it for every connection whose peer offers it too. Otherwise
	// class 3 is used.
	Class2 bool

	// Stream sends messages that need no response in stream Exchanges of up to 256 messages.
	// Otherwise each message has its own Exchange.
	Stream bool

	// EachAnswered requests a response to every message at Reliable Reception. Otherwise one
	// response answers several messages, to save frames.
	EachAnswered bool

	MaxTransferSize uint32        // maximum length of a message in bytes; 0 means 1 MiB, the maximum is 64 MiB
	MaxReads        int           // number of a peer's RDMA Reads that are served at once; 0 means 16
	MaxUnacked      int           // this side's window at Reliable Reception in messages, 512 at most; 0 means 256, or 64 if frames may overtake each other
	ULPTimeout      time.Duration // FCVI_ULP_TIMEOUT; 0 means 30 s
	Linger          time.Duration // time for which a request without a waiter is held; 0 refuses the request at once
	RxSize          int           // size of the receive data field in bytes; 0 means 2112
	EDTOV, RATOV    time.Duration // timers for a fabric of this NIC; 0 means 2 s and 10 s

	// Static maps host addresses to Port_Names. It is searched before any other method is tried.
	Static map[netip.Addr]WWN

	WrapConn   func(net.Conn) net.Conn // wraps each FCIP connection, if set
	Congestion string                  // congestion control of FCIP sockets; empty keeps the system's
	KeepAlive  time.Duration           // TCP keepalive period of FCIP sockets; 0 means 15 s, negative none
	SameHost   samehost.Policy         // whether FCIP links within one host use shared memory, see package samehost
	// SameHostDir is a directory where processes with separate network namespaces find each other.
	// See package samehost.
	SameHostDir string

	Logger *slog.Logger // nil disables logging

	// Class2 [FCVI-5.2.1-11], Stream [FCVI-5.2.1-4], EachAnswered [FCVI-E-2],
	// MaxTransferSize [FCVI-5.7-5], ULPTimeout [FCVI-8.3-2], Linger [FCVI-5.3.2-6],
	// Static [FCVI-7.4-1].
}

// A network connects ports inside the process, in real time.
type network interface {
	// attach connects a device. dev gets the device's sender, which also reports whether there is
	// room. now is the device's clock. After detach the device is not called any more.
	attach(now func() fc.Time, dev func(out fc.Sender) fabricd.LocalDevice) (detach func(), err error)
}

// A Provider makes FC-VI NICs.
type Provider struct {
	cfg Config

	mu    perturb.Mutex
	stats Stats // counters of closed NICs; guarded by mu
	open  map[*device]struct{}
}

var _ vi.Provider = (*Provider)(nil)

// New checks c and returns a provider.
func New(c Config) (*Provider, error) {
	if c.MaxTransferSize == 0 {
		c.MaxTransferSize = defaultMaxTransfer
	}
	if c.MaxReads == 0 {
		c.MaxReads = DefaultMaxReads
	}
	if c.MaxUnacked == 0 {
		c.MaxUnacked = defaultMaxUnacked
	}
	switch {
	case c.MaxTransferSize > LimitMaxTransfer:
		return nil, fmt.Errorf("fcvi: maximum transfer size %d exceeds %d", c.MaxTransferSize, LimitMaxTransfer)
	case c.MaxReads < 0 || c.MaxReads > window || c.MaxUnacked < 0 || c.MaxUnacked > limitMaxUnacked:
		return nil, fmt.Errorf("fcvi: windows of %d reads and %d messages, at most %d and %d",
			c.MaxReads, c.MaxUnacked, window, limitMaxUnacked)
	case c.RxSize != 0 && (c.RxSize < fc.MinRxSize || c.RxSize > fc.MaxData || c.RxSize%4 != 0):
		return nil, fmt.Errorf("fcvi: receive data field size %d", c.RxSize) // [FCFS-2.7-2]
	}
	return &Provider{cfg: c, open: map[*device]struct{}{}}, nil
}

// Stats returns the counters of all NICs, closed ones included.
func (p *Provider) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	total := p.stats
	for d := range p.open {
		total.add(d.stats())
	}
	return total
}

// A device is an open NIC.
type device struct {
	p      *Provider
	nic    *vi.NIC
	name   string
	host   []byte       // host part of the NIC's address
	ips    []netip.Addr // host addresses of the home station
	mac    uint64
	ctx    context.Context
	cancel context.CancelCauseFunc

	daemon *fabricd.Daemon // of Listen
	home   *station        // the port that receives connection requests; nil if the NIC only dials

	mu    perturb.Mutex
	away  map[string]*dialing // stations at other fabrics, by FCIP address; guarded by mu
	same  map[string]*halves  // requests to this NIC itself, by discriminator; guarded by mu
	ports int                 // guarded by mu
	wg    sync.WaitGroup
}

type dialing struct {
	done chan struct{}
	s    *station
	err  error
}

// Open opens a NIC. The name is its host address, an IP address. An empty name means the address of
// Listen, or the local address of the link to Fabric.
func (p *Provider) Open(name string, nic *vi.NIC) (vi.Device, error) {
	d := &device{p: p, nic: nic, name: name, away: map[string]*dialing{}, same: map[string]*halves{}}
	var mac [8]byte
	rand.Read(mac[:])
	d.mac = binary.BigEndian.Uint64(mac[:])&0x00FCFFFFFFFFFFFF>>0&0xFFFFFFFFFFFF | 0x020000000000
	d.mac &^= 0x010000000000 // locally administered, not a group [FCFS-2.6-2]
	d.ctx, d.cancel = context.WithCancelCause(context.Background())
	var port uint16
	if name != "" {
		a, err := netip.ParseAddr(name)
		if err != nil {
			return nil, fmt.Errorf("%w: %q is no host address", vi.ErrInvalidParameter, name)
		}
		d.ips = []netip.Addr{a.Unmap()}
	}
	var err error
	switch {
	case p.cfg.network != nil:
		d.home, err = d.station(d.ips, func(*station) (outlet, error) { return &netOutlet{n: p.cfg.network}, nil })
	case p.cfg.Fabric != "":
		var l *fcip.Link
		if l, err = d.dial(d.ctx, p.cfg.Fabric); err != nil {
			return nil, fmt.Errorf("%w: fabric %s: %w", vi.ErrNotReachable, p.cfg.Fabric, err)
		}
		if len(d.ips) == 0 {
			if ap, err := netip.ParseAddrPort(l.NetConn().LocalAddr().String()); err == nil {
				d.ips = []netip.Addr{ap.Addr().Unmap()}
			}
		}
		keep := &keeper{ctx: d.ctx, redial: fcip.Redialer{Address: p.cfg.Fabric, Config: d.linkConfig()}}
		d.home, err = d.station(d.ips, func(*station) (outlet, error) { return &linkOutlet{l: l, keep: keep}, nil })
	case p.cfg.Listen != "":
		port, err = d.listen()
	}
	if err != nil {
		return nil, err
	}
	if d.home != nil && !d.home.online(onlineTime) {
		d.Close()
		return nil, fmt.Errorf("%w: the fabric does not take the port", vi.ErrNotReachable)
	}
	own := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if len(d.ips) > 0 {
		own = d.ips[0]
	}
	if port == fcip.Port {
		port = 0
	}
	d.host = vi.IPAddress(netip.AddrPortFrom(own, port), "").Host
	p.mu.Lock()
	p.open[d] = struct{}{}
	p.mu.Unlock()
	return d, nil
}

// onlineTime is the time Open waits until the fabric knows the port.
const onlineTime = 10 * time.Second

// online waits until other ports can reach the NIC's port, and returns false after the time limit.
func (s *station) online(limit time.Duration) bool {
	up := make(chan struct{})
	s.do(func(now fc.Time) {
		if s.np.State() == fc.Online {
			close(up)
			return
		}
		s.p.onlineFn = append(s.p.onlineFn, func(fc.Time) { close(up) })
	})
	select {
	case <-up:
		return true
	case <-time.After(limit):
		return false
	}
}

// listen starts the NIC's own fabric, and returns the TCP port where the fabric accepts links.
func (d *device) listen() (port uint16, err error) {
	c := &d.p.cfg
	listen := c.ListenFunc
	if listen == nil {
		listen = net.Listen
	}
	ln, err := listen("tcp", c.Listen)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", vi.ErrResource, err)
	}
	ap := netip.MustParseAddrPort(ln.Addr().String())
	if len(d.ips) == 0 && !ap.Addr().IsUnspecified() {
		d.ips = []netip.Addr{ap.Addr().Unmap()}
	}
	if len(d.ips) == 0 || ap.Addr().IsUnspecified() {
		// The NIC can be reached at every address of the host.
		all, _ := net.InterfaceAddrs()
		for _, a := range all {
			if pf, err := netip.ParsePrefix(a.String()); err == nil &&
				!slices.Contains(d.ips, pf.Addr().Unmap()) && len(d.ips) < 64 {
				d.ips = append(d.ips, pf.Addr().Unmap())
			}
		}
	}
	d.daemon = fabricd.New(fabricd.Config{Name: fc.NodeName(d.mac ^ 1), EDTOV: c.EDTOV, RATOV: c.RATOV,
		WrapConn: c.WrapConn, Congestion: c.Congestion, KeepAlive: c.KeepAlive, SameHost: c.SameHost,
		SameHostDir: c.SameHostDir, Logger: c.Logger})
	own, err := d.daemon.Listen(ln)
	if err != nil {
		ln.Close()
		d.daemon.Close()
		return 0, fmt.Errorf("%w: %w", vi.ErrResource, err)
	}
	ln = own
	if d.home, err = d.station(d.ips, func(*station) (outlet, error) { return &localOutlet{d: d.daemon}, nil }); err != nil {
		ln.Close()
		d.daemon.Close()
		return 0, err
	}
	d.wg.Go(func() { d.daemon.Serve(ln) })
	return ap.Port(), nil
}

func (d *device) dial(ctx context.Context, address string) (*fcip.Link, error) {
	return fcip.Dial(ctx, address, d.linkConfig())
}

func (d *device) linkConfig() fcip.Config {
	c := &d.p.cfg
	return fcip.Config{FabricName: fc.NodeName(d.mac), Entity: d.mac, WrapConn: c.WrapConn, Congestion: c.Congestion,
		KeepAlive: c.KeepAlive, SameHost: c.SameHost, SameHostDir: c.SameHostDir, Logger: c.Logger}
}

// station creates an FC-VI port of the NIC. ips is empty for a port in another NIC's fabric,
// because such a port only makes calls.
func (d *device) station(ips []netip.Addr, out func(*station) (outlet, error)) (*station, error) {
	c := &d.p.cfg
	d.mu.Lock()
	d.ports++
	n := d.ports
	d.mu.Unlock()
	pc := fc.PortConfig{PortName: fc.PortName(d.mac, n), NodeName: fc.NodeName(d.mac), IPs: ips, RxSize: c.RxSize,
		Class2: c.Class2, EDTOV: c.EDTOV, RATOV: c.RATOV, OXSeed: uint16(d.mac), Logger: c.Logger}
	if c.PortName != 0 && n == 1 {
		pc.PortName = fc.WWN(c.PortName)
	}
	if c.NodeName != 0 {
		pc.NodeName = fc.WWN(c.NodeName)
	}
	var seed [8]byte
	rand.Read(seed[:])
	mc := machineConfig{ulpTimeout: c.ULPTimeout, linger: c.Linger, stream: c.Stream, maxUnacked: c.MaxUnacked,
		static: c.Static, seed: binary.BigEndian.Uint64(seed[:]), logger: c.Logger}
	if c.Class2 {
		mc.class = fc.Class2
	}
	return newStation(pc, mc, out)
}

// stationFor returns the port for reaching remote. If home is set, remote will connect to this NIC,
// and the result is the home port. A NIC that calls itself does so from a second port.
func (d *device) stationFor(ctx context.Context, remote vi.Address, home bool) (*station, error) {
	if home || d.p.cfg.network != nil || d.p.cfg.Fabric != "" {
		return d.home, nil
	}
	ap, ok := remote.AddrPort()
	if !ok {
		if d.home != nil {
			return d.home, nil // a Port_Name is searched for in the NIC's own fabric
		}
		return nil, fmt.Errorf("%w: a NIC without a fabric dials IP addresses", vi.ErrNotReachable)
	}
	if ap.Port() == 0 {
		ap = netip.AddrPortFrom(ap.Addr(), fcip.Port)
	}
	key := ap.String()
	for {
		d.mu.Lock()
		x := d.away[key]
		if x == nil {
			x = &dialing{done: make(chan struct{})}
			d.away[key] = x
			d.wg.Go(func() { d.dialStation(key, x) })
		}
		d.mu.Unlock()
		select {
		case <-x.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if x.err == nil && x.s.alive() {
			return x.s, nil
		}
		d.mu.Lock()
		if d.away[key] == x {
			delete(d.away, key)
		}
		d.mu.Unlock()
		if x.err != nil {
			return nil, fmt.Errorf("%w: %s: %w", vi.ErrNotReachable, key, x.err)
		}
		x.s.close()
	}
}

// alive reports whether the FCIP link of s is up. s must have an FCIP link.
func (s *station) alive() bool {
	select {
	case <-s.out.(*linkOutlet).l.Done():
		return false
	default:
		return true
	}
}

func (d *device) dialStation(address string, x *dialing) {
	defer close(x.done)
	ctx, cancel := context.WithTimeout(d.ctx, 30*time.Second)
	defer cancel()
	l, err := d.dial(ctx, address)
	if err != nil {
		x.err = err
		return
	}
	x.s, x.err = d.station(nil, func(*station) (outlet, error) { return &linkOutlet{l: l}, nil })
}

// Close implements vi.Device.
func (d *device) Close() error {
	d.cancel(vi.ErrClosed)
	d.mu.Lock()
	away := d.away
	d.away = nil
	d.mu.Unlock()
	for _, x := range away {
		<-x.done
		if x.s != nil {
			x.s.close()
		}
	}
	if d.home != nil {
		d.home.close()
	}
	if d.daemon != nil {
		d.daemon.Close()
	}
	d.wg.Wait()
	d.p.mu.Lock()
	if _, open := d.p.open[d]; open {
		delete(d.p.open, d)
		d.p.stats.add(d.stats())
	}
	d.p.mu.Unlock()
	return nil
}

func (d *device) stats() (total Stats) {
	d.mu.Lock()
	stations := []*station{d.home}
	for _, x := range d.away {
		select {
		case <-x.done:
			stations = append(stations, x.s)
		default:
		}
	}
	d.mu.Unlock()
	for _, s := range stations {
		if s != nil {
			s.mu.Lock()
			total.add(s.p.stats)
			s.mu.Unlock()
		}
	}
	return total
}

// Attributes implements vi.Device.
func (d *device) Attributes() vi.NICAttributes {
	const levels = vi.UnreliableDelivery | vi.ReliableDelivery | vi.ReliableReception
	return vi.NICAttributes{
		Name:                   d.name,
		HardwareVersion:        iu.ProjectVersion,
		ProviderVersion:        1,
		LocalAddress:           d.host,
		ThreadSafe:             true,
		MaxDiscriminatorLen:    iu.MaxDiscriminator, // [FCVI-7.2-4]
		MaxRegisterBytes:       1 << 48,
		MaxRegisterRegions:     1 << 20,
		MaxRegisterBlockBytes:  1 << 47,
		MaxVI:                  1 << 16,
		MaxDescriptorsPerQueue: 1 << 14,
		MaxSegmentsPerDesc:     252, // [VIA-3.4-5]
		MaxCQ:                  1 << 16,
		MaxCQEntries:           1 << 24,
		MaxTransferSize:        d.p.cfg.MaxTransferSize,
		NativeMTU:              fc.MaxData - iu.LongLen,
		MaxPtags:               1 << 16,
		ReliabilityLevels:      levels,
		RDMAReadSupport:        levels &^ vi.UnreliableDelivery, // [FCVI-3-9]
	}
}

// FormatHost implements vi.Device.
func (d *device) FormatHost(host []byte) string {
	if len(host) == 8 {
		return fc.WWN(binary.BigEndian.Uint64(host)).String()
	}
	ap, ok := (vi.Address{Host: host}).AddrPort()
	switch {
	case !ok:
		return fmt.Sprintf("0x%x", host)
	case ap.Port() == 0:
		return ap.Addr().String()
	}
	return ap.String()
}

// ParseHost implements vi.Device. It parses an IP address, with or without a port, or a Port_Name.
func (d *device) ParseHost(s string) ([]byte, error) {
	if w, err := fc.ParseWWN(s); err == nil {
		return binary.BigEndian.AppendUint64(nil, uint64(w)), nil
	}
	if a, err := netip.ParseAddr(s); err == nil {
		return vi.IPAddress(netip.AddrPortFrom(a, 0), "").Host, nil
	}
	h, p, err := net.SplitHostPort(s)
	if err == nil {
		var a netip.Addr
		var n uint64
		if a, err = netip.ParseAddr(h); err == nil {
			if n, err = strconv.ParseUint(p, 10, 16); err == nil {
				return vi.IPAddress(netip.AddrPortFrom(a, uint16(n)), "").Host, nil
			}
		}
	}
	return nil, fmt.Errorf("%w: %q is no host address", vi.ErrInvalidParameter, s)
}

// LookupHost implements vi.Device. It returns an error, because Fibre Channel has no host names for
// people. [VIA 7]
func (d *device) LookupHost(context.Context, string) ([][]byte, error) {
	return nil, vi.ErrNameService
}

// LookupAddr implements vi.Device.
func (d *device) LookupAddr(context.Context, []byte) (string, error) { return "", vi.ErrNameService }

// netAddress converts a VI address to an FCVI_NET_ADDRESS.
func netAddress(a vi.Address) (iu.NetAddress, error) {
	if len(a.Host) == 0 {
		return iu.NetAddress{Discriminator: a.Discriminator}, nil
	}
	if len(a.Host) == 8 {
		return iu.NameAddress(binary.BigEndian.Uint64(a.Host), a.Discriminator), nil
	}
	ap, ok := a.AddrPort()
	if !ok {
		return iu.NetAddress{}, fmt.Errorf("%w: host address of %d bytes", vi.ErrInvalidParameter, len(a.Host))
	}
	return iu.IPAddress(ap.Addr(), a.Discriminator), nil
}

// viAddress converts an FCVI_NET_ADDRESS to a VI address. The result has no host part if n has
// none.
func viAddress(n iu.NetAddress) vi.Address {
	a := vi.Address{Discriminator: n.Discriminator}
	if ip := n.IP(); ip.IsValid() {
		a.Host = ip.AsSlice()
	} else if name, ok := n.PortName(); ok {
		a.Host = binary.BigEndian.AppendUint64(nil, name)
	}
	return a
}

// setupError returns the error of package vi for the outcome of a set-up. [FCVI-5.9.7-6]
func setupError(r iu.Reason) error {
	var err error
	switch r {
	case iu.Confirmed:
		return nil
	case iu.NoMatch, iu.BadMode:
		err = vi.ErrNoMatch
	case iu.ULPReject:
		err = vi.ErrReject
	case iu.ULPTimeout, iu.Stale, iu.Cancelled:
		err = vi.ErrTimeout
	case iu.InvalidReliability:
		err = vi.ErrInvalidReliability
	case iu.InvalidMTS:
		err = vi.ErrInvalidMTU
	case iu.InvalidQoS:
		err = vi.ErrInvalidQoS
	case iu.InvalidRDMARead:
		err = vi.ErrInvalidRDMARead
	case iu.NoResources:
		err = vi.ErrResource
	case iu.BadState:
		err = vi.ErrInvalidState
	case iu.BadFormat:
		err = vi.ErrNotSupported
	case iu.AddressMismatch, notReachable:
		err = vi.ErrNotReachable
	default:
		err = vi.ErrReject
	}
	if r == notReachable {
		return err
	}
	return fmt.Errorf("%w (%v)", err, r)
}

var errNoPort = errors.New("fcvi: this NIC only dials")

// add adds the counters o to s.
func (s *Stats) add(o Stats) {
	for _, f := range []struct{ to, from *uint64 }{
		{&s.SentMessages, &o.SentMessages}, {&s.SentBytes, &o.SentBytes}, {&s.DeliveredMessages, &o.DeliveredMessages},
		{&s.PlacedBytes, &o.PlacedBytes}, {&s.SentIUs, &o.SentIUs}, {&s.RecvFrames, &o.RecvFrames},
		{&s.RCtlMismatch, &o.RCtlMismatch}, {&s.Synonyms, &o.Synonyms}, {&s.LateFrames, &o.LateFrames},
		{&s.UnknownHandle, &o.UnknownHandle}, {&s.WrongSource, &o.WrongSource}, {&s.WrongState, &o.WrongState},
		{&s.BadOpcode, &o.BadOpcode}, {&s.Malformed, &o.Malformed}, {&s.Discarded, &o.Discarded},
		{&s.NoReceive, &o.NoReceive}, {&s.Gaps, &o.Gaps}, {&s.WindowFull, &o.WindowFull}, {&s.DupRqst, &o.DupRqst},
		{&s.Retries, &o.Retries}, {&s.Connected, &o.Connected}, {&s.Rejected, &o.Rejected}, {&s.SetupsLost, &o.SetupsLost},
		{&s.Broken, &o.Broken}, {&s.Aborts, &o.Aborts}, {&s.StaleResponses, &o.StaleResponses}, {&s.SetupLimit, &o.SetupLimit},
	} {
		*f.to += *f.from
	}
}
