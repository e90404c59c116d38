package iwarp

import (
	"errors"
	"fmt"
	"sync/atomic"

	"viaduct/internal/perturb"
	"viaduct/internal/regmem"
)

// Limits of a [Device]. Zero means the default. Streams, Regions and Bytes limit what exists at a
// time.
type Limits struct { // [I-70] [SEC-6.4.1-1] [RDMAP-8.1.2-5] [DDP-8.3.2-4]
	Streams     int    // default 65536
	Regions     int    // regions and windows; default 1<<20
	Bytes       uint64 // registered bytes; 0: no limit
	RegionBytes uint64 // size limit of one region in bytes; 0: no limit
	QueueDepth  int    // largest depth of a send or receive queue; default 1024
	CQEntries   int    // largest capacity of a completion queue; default 1<<20
}

// DeviceConfig is the operator's configuration for all connections of a program.
type DeviceConfig struct {
	Limits Limits

	// NoCRC switches MPA's CRCs off on connections whose peer does not want CRCs either. Only the
	// administrator should set NoCRC, and only where the whole path protects data at least as well
	// as a CRC32c: a TCP checksum does not. Nothing else changes for a program.
	NoCRC bool

	// Requirements: NoCRC [MPA-4.4-6] [MPA-4.4-2] [MPA-4.4-3] [MPA-4.4-5] [MPA-1.2-2] [I-05].
}

// A Device has the role of an RDMA adapter: a table of registered memory, and limits shared by all
// streams of the Device. It is the privileged resource manager of RFC 5042. Safe for concurrent
// use.
type Device struct {
	cfg DeviceConfig
	reg *regmem.Registry
	far atomic.Bool // whether RegisterSpace was ever called, so that peers may access far memory

	nudger nudger

	mu      perturb.Mutex
	streams map[*QueuePair]struct{} // guarded by mu
}

// Errors of the objects of a Device. Test with errors.Is.
var (
	ErrLimit      = errors.New("iwarp: limit of the device reached")
	ErrInvalid    = errors.New("iwarp: invalid argument")
	ErrWindows    = errors.New("iwarp: windows are bound to the region")
	ErrRegistered = errors.New("iwarp: region is not, or no longer, registered")
)

// NewDevice returns a Device. A stream whose Config names no Device creates a private Device.
func NewDevice(cfg DeviceConfig) *Device {
	def := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	def(&cfg.Limits.Streams, 65536)
	def(&cfg.Limits.Regions, 1<<20)
	def(&cfg.Limits.QueueDepth, 1024)
	def(&cfg.Limits.CQEntries, 1<<20)
	return &Device{
		cfg: cfg,
		reg: regmem.New(regmem.Limits{
			Regions:     cfg.Limits.Regions,
			Bytes:       cfg.Limits.Bytes,
			RegionBytes: cfg.Limits.RegionBytes,
		}),
		streams: make(map[*QueuePair]struct{}),
	}
}

// Streams returns the streams in use, so that an administrator can find idle or greedy ones. See
// [QueuePair.Stats] and [QueuePair.Abort].
func (d *Device) Streams() []*QueuePair { // [SEC-6.4.1-2] [SEC-6.4.2-1] [SEC-6.4.4-1]
	d.mu.Lock()
	defer d.mu.Unlock()
	s := make([]*QueuePair, 0, len(d.streams))
	for q := range d.streams {
		s = append(s, q)
	}
	return s
}

// Regions returns the number of registered regions and windows.
func (d *Device) Regions() int { return d.reg.Count() }

func (d *Device) add(q *QueuePair) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.streams) >= d.cfg.Limits.Streams {
		return fmt.Errorf("%w: %d streams", ErrLimit, d.cfg.Limits.Streams)
	}
	d.streams[q] = struct{}{}
	return nil
}

func (d *Device) remove(q *QueuePair) {
	d.mu.Lock()
	delete(d.streams, q)
	d.mu.Unlock()
}

// A ProtectionDomain groups streams and memory: only streams of a domain can use the regions of the
// domain. Streams of a domain must trust each other. Safe for concurrent use.
type ProtectionDomain struct { // [SEC-2.2.4-2] [RDMAP-8.1.1-1]
	dev *Device
	dom *regmem.Domain
}

// NewPD returns a new, empty domain.
func (d *Device) NewPD() *ProtectionDomain {
	return &ProtectionDomain{dev: d, dom: regmem.NewDomain()}
}

// Device returns the device of the domain.
func (p *ProtectionDomain) Device() *Device { return p.dev }

// RegionOptions are further choices at registration. The zero value suits most uses.
type RegionOptions struct {
	// Virtual makes tagged offsets start at the virtual address of the memory instead of 0. The
	// peer then sees addresses of this process.
	Virtual bool
	// Guarded marks memory whose access may fault, for example a truncated mapped file. A fault
	// then fails the transfer instead of ending the program.
	Guarded bool
	// Key fixes the low eight bits of the STag if KeySet is true. Otherwise the low bits are random
	// too.
	Key    uint8
	KeySet bool

	// Requirements: Virtual [I-57].
}

// Register makes mem usable by all streams of the domain, and by no others. Local use is always
// allowed; access lists the rights of their peers. mem may be Go memory, a mapping, or memory of C
// (unsafe.Slice). The memory must stay allocated until [MemoryRegion.Close]. Slice mem to exactly
// the bytes to share, for example buf[:n], and zero the bytes before a peer may read. Do not give
// mutually distrustful peers the right to write to the same bytes through different regions.
//
// A peer cannot invalidate a region of a domain.
//
// The error wraps ErrInvalid or ErrLimit.
func (p *ProtectionDomain) Register(mem []byte, access Access, opt ...RegionOptions) (*MemoryRegion, error) { // [DDP-8.2-3] [SEC-6.1.1-2] [DDP-8.3-1] [SEC-6.3.6-1] [SEC-6.3.4-1] [SEC-6.3.2-1] [RDMAP-8.1.1-4] [RDMAP-8.1.1-7]
	return p.register(mem, access, nil, opt)
}

func (p *ProtectionDomain) register(mem []byte, access Access, owner *memory, opt []RegionOptions) (*MemoryRegion, error) {
	var o RegionOptions
	if len(opt) > 0 {
		o = opt[0]
	}
	ro := regmem.Options{
		Rights:    access.rights(),
		Domain:    p.dom,
		ZeroBased: !o.Virtual,
		Guarded:   o.Guarded,
		Key:       o.Key,
		KeySet:    o.KeySet,
	}
	if owner != nil { // a nil *memory in an interface would be an owner
		ro.Owner = owner
	}
	r, err := p.dev.reg.Register(mem, ro)
	if err != nil {
		return nil, wrapRegistry(err)
	}
	return &MemoryRegion{pd: p, r: r, owner: owner}, nil
}

// RegisterSpace registers n bytes of the space s, from address base on; see
// [ProtectionDomain.Register]. A space is memory outside of the address space of this process. It is
// for viaduct run, which registers memory of other processes. The methods of s must not wait for a
// peer. Tagged offsets are the addresses of the space. The memory may disappear at any time: a local
// request for the memory then fails with StatusLocalAccess, and a request of a peer fails as if the
// region had been closed. [MemoryRegion.Bytes] returns nil, and Atomic Operations are refused. Only
// the options Key and KeySet are used.
//
// The error wraps ErrInvalid or ErrLimit.
func (p *ProtectionDomain) RegisterSpace(s regmem.Space, base, n uint64, access Access, opt ...RegionOptions) (*MemoryRegion, error) {
	ro := regmem.Options{Rights: access.rights() &^ regmem.RemoteAtomic, Domain: p.dom}
	if len(opt) > 0 {
		ro.Key, ro.KeySet = opt[0].Key, opt[0].KeySet
	}
	p.dev.far.Store(true)
	r, err := p.dev.reg.RegisterSpace(s, base, n, ro)
	if err != nil {
		return nil, wrapRegistry(err)
	}
	return &MemoryRegion{pd: p, r: r}, nil
}

// wrapRegistry returns the error of this package for an error of the registry, or err itself if
// this package has no matching error.
func wrapRegistry(err error) error {
	for _, m := range [...]struct{ from, to error }{
		{regmem.ErrLimit, ErrLimit}, {regmem.ErrInvalid, ErrInvalid},
		{regmem.ErrBusy, ErrWindows}, {regmem.ErrNoRegion, ErrRegistered},
	} {
		if errors.Is(err, m.from) {
			return fmt.Errorf("%w (%v)", m.to, err)
		}
	}
	return err
}
