package regmem

import (
	crand "crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"

	"viaduct/internal/perturb"
)

// These errors of registration are wrapped with details. Test with errors.Is.
var (
	ErrLimit    = errors.New("regmem: limit reached")
	ErrInvalid  = errors.New("regmem: invalid argument")
	ErrBusy     = errors.New("regmem: windows are bound to the region")
	ErrNoRegion = errors.New("regmem: not registered")
)

// Limits bounds a Registry. A zero field means no limit.
type Limits struct {
	Regions     int    // number of registrations at one time
	Bytes       uint64 // sum of the lengths of all regions; windows do not count
	RegionBytes uint64 // length of the longest registration
}

// A Registry holds the regions of one NIC or device. The zero value is not usable; call [New].
type Registry struct {
	limits Limits
	live   table // lookups take no lock

	mu      perturb.Mutex
	bytes   uint64   // guarded by mu
	retired []uint32 // guarded by mu; ring of handles that are not reused soon
	next    int      // guarded by mu; position in retired
	random  [512]byte
	unread  []byte // guarded by mu; unused bytes of random

	holdersMu perturb.Mutex
	holders   map[Holder]struct{} // guarded by holdersMu
}

// A Holder keeps pins while waiting for a peer, for example a sender whose socket is full.
type Holder interface {
	// Relinquish copies the still needed bytes of pinned memory and releases the pins. It must not
	// wait for a peer.
	Relinquish()
}

// AddHolder registers h, so that Deregister asks h to relinquish the pins. A holder first calls
// AddHolder and then checks [Ref.Closing] of all pins. Otherwise the holder would miss a Deregister
// begun before AddHolder.
func (g *Registry) AddHolder(h Holder) {
	g.holdersMu.Lock()
	if g.holders == nil {
		g.holders = make(map[Holder]struct{})
	}
	g.holders[h] = struct{}{}
	g.holdersMu.Unlock()
}

// RemoveHolder unregisters h.
func (g *Registry) RemoveHolder(h Holder) {
	g.holdersMu.Lock()
	delete(g.holders, h)
	g.holdersMu.Unlock()
}

func (g *Registry) askHolders() {
	g.holdersMu.Lock()
	hs := make([]Holder, 0, len(g.holders))
	for h := range g.holders {
		hs = append(hs, h)
	}
	g.holdersMu.Unlock()
	for _, h := range hs {
		h.Relinquish()
	}
}

// quarantine is the number of deregistrations after which a handle may be drawn again. Until then a
// handle a peer still holds names no region. The quarantine has the purpose of a generation number,
// but leaves all bits of the handle random.
const quarantine = 4096

// New returns an empty registry with the given limits.
func New(l Limits) *Registry {
	g := &Registry{limits: l}
	g.live.init()
	return g
}

// Options holds the settings of a registration. The zero value gives local rights only, virtual
// addressing and the wildcard domain.
type Options struct {
	Rights Rights  // remote rights; local rights are always added
	Domain *Domain // protection tag or domain
	Owner  any     // a comparable value; if not nil, only accesses with the same owner succeed

	// ZeroBased makes addresses run from 0 instead of from the memory's virtual address.
	ZeroBased bool

	// Guarded marks memory that may fault on access, for example a mapped file another process can
	// truncate; see [Copy].
	Guarded bool

	// FaultBreaks allows the kernel to access Guarded memory directly. A fault in such a system
	// call ends the connection.
	FaultBreaks bool

	// Key is the value of the low eight bits of the handle, if KeySet is true.
	Key    uint8
	KeySet bool
}

// Register makes mem accessible under a new handle. The memory must stay in place until Deregister;
// for Go memory the registry's own reference ensures that. An empty mem is refused.
//
// Errors: ErrInvalid, ErrLimit.
func (g *Registry) Register(mem []byte, o Options) (*Region, error) {
	if len(mem) == 0 {
		return nil, fmt.Errorf("%w: region of length 0", ErrInvalid)
	}
	r := &Region{mem: mem[:len(mem):len(mem)], size: uint64(len(mem)), guarded: o.Guarded,
		faultBreaks: o.FaultBreaks, reg: g}
	if !o.ZeroBased {
		r.base = Address(mem)
	}
	r.attrs.Store(&attributes{o.Rights | Local, o.Domain, o.Owner})
	if err := g.add(r, o, true); err != nil {
		return nil, err
	}
	return r, nil
}

// Bind opens a window: a new handle for n bytes at offset off of r, with separate rights and owner.
// Deregister closes the window, and r cannot be deregistered before. A window has r's addresses,
// unless o.ZeroBased makes them start at 0.
//
// Errors: ErrInvalid if the range is empty or leaves r or r is a window itself, ErrNoRegion if r is
// gone, ErrLimit.
func (g *Registry) Bind(r *Region, off, n uint64, o Options) (*Region, error) {
	if r.parent != nil || n == 0 || off > r.size || n > r.size-off {
		return nil, fmt.Errorf("%w: window of %d bytes at %d in a region of %d", ErrInvalid, n, off, r.size)
	}
	w := &Region{size: n, guarded: r.guarded, faultBreaks: r.faultBreaks, parent: r, reg: g}
	if r.mem == nil {
		w.space, w.at = r.space, r.at+off
	} else {
		w.mem = r.mem[off : off+n : off+n]
	}
	if !o.ZeroBased {
		w.base = r.base + off
	}
	w.attrs.Store(&attributes{o.Rights, o.Domain, o.Owner})
	if err := g.add(w, o, false); err != nil {
		return nil, err
	}
	return w, nil
}

func (g *Registry) add(r *Region, o Options, counted bool) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := r.size
	switch l := g.limits; {
	case l.Regions > 0 && g.live.count >= l.Regions:
		return fmt.Errorf("%w: %d regions", ErrLimit, l.Regions)
	case l.RegionBytes > 0 && n > l.RegionBytes:
		return fmt.Errorf("%w: region of %d bytes, at most %d", ErrLimit, n, l.RegionBytes)
	case counted && l.Bytes > 0 && n > l.Bytes-g.bytes:
		return fmt.Errorf("%w: %d bytes on top of %d, at most %d", ErrLimit, n, g.bytes, l.Bytes)
	}
	if p := r.parent; p != nil {
		if g.live.get(p.handle) != p {
			return ErrNoRegion
		}
		p.windows++
	}
	if counted {
		g.bytes += n
	}
	r.drained = make(chan struct{}, 1)
	r.handle = g.drawLocked(o)
	g.live.put(r)
	return nil
}

// drawLocked returns a handle that is not 0, not in use and not in quarantine. Handles come from
// the system's random generator, so that a peer cannot guess the handle of a region not given to
// the peer.
func (g *Registry) drawLocked(o Options) uint32 {
	for {
		if len(g.unread) < 4 {
			crand.Read(g.random[:]) // never fails
			g.unread = g.random[:]
		}
		h := binary.NativeEndian.Uint32(g.unread)
		g.unread = g.unread[4:]
		if o.KeySet {
			h = h&^0xff | uint32(o.Key)
		}
		if h == 0 || g.live.get(h) != nil || g.isRetiredLocked(h) { // [VIA-1.4-5] [VIA-1.4-6]
			continue
		}
		return h
	}
}

func (g *Registry) isRetiredLocked(h uint32) bool {
	for _, old := range g.retired {
		if old == h {
			return true
		}
	}
	return false
}

// Deregister removes r from the registry and waits until all pins of r are released. Afterwards
// every access with the handle of r returns [NoRegion].
//
// Errors: ErrNoRegion if r is not registered here (any more), ErrBusy if windows are bound to r.
func (g *Registry) Deregister(r *Region) error {
	g.mu.Lock()
	if g.live.get(r.handle) != r {
		g.mu.Unlock()
		return ErrNoRegion
	}
	if r.windows > 0 {
		g.mu.Unlock()
		return ErrBusy
	}
	g.live.remove(r)
	if r.parent != nil {
		r.parent.windows--
	} else {
		g.bytes -= r.size
	}
	if len(g.retired) < quarantine {
		g.retired = append(g.retired, r.handle)
	} else {
		g.retired[g.next] = r.handle
		g.next = (g.next + 1) % quarantine
	}
	pins := r.state.Add(closing)
	g.mu.Unlock()
	if pins != closing {
		g.askHolders()
		pins = r.state.Load()
	}
	for pins != closing {
		<-r.drained
		pins = r.state.Load()
	}
	return nil
}

// SetAttributes replaces the rights, domain and owner of r. Accesses in progress continue under the
// old attributes. A region, unlike a window, keeps the local rights.
func (g *Registry) SetAttributes(r *Region, rights Rights, d *Domain, owner any) {
	if r.parent == nil {
		rights |= Local
	}
	r.attrs.Store(&attributes{rights, d, owner})
}

// Lookup returns the region of a handle, or nil if there is none.
func (g *Registry) Lookup(handle uint32) *Region { return g.live.get(handle) }

// Count returns the number of registered regions and windows.
func (g *Registry) Count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.live.count
}
