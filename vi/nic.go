package vi

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"viaduct/internal/perturb"
	"viaduct/internal/regmem"
)

// Config holds the settings for opening a NIC. The zero value and nil mean the same.
type Config struct {
	// Logger gets events of connections; nil disables them.
	Logger *slog.Logger

	// StrictPtags refuses the nil protection tag. Without StrictPtags nil matches everything of the
	// same NIC.
	StrictPtags bool

	// Hosts is the text of a hosts file. The name service searches Hosts before asking the system.
	// Each line has an address and one or more names; # begins a comment. See [NIC.NSInit].
	Hosts []byte

	// StrictPtags [VIA 6.6].
}

// A NIC is an open VI NIC. Objects created on a NIC belong to the NIC. A call with objects of two
// NICs returns ErrInvalidParameter.
type NIC struct { // [VIA 1.1]
	dev    Device
	cfg    Config
	attrs  NICAttributes
	memory *regmem.Registry
	async  async
	notify dispatcher
	names  nameService

	attempts sync.WaitGroup // counts the connection attempts in progress

	mu     perturb.Mutex
	closed bool                          // guarded by mu
	vis    map[*VI]struct{}              // guarded by mu
	cqs    map[*CompletionQueue]struct{} // guarded by mu
	ending map[Link]struct{}             // guarded by mu; stopped links that have not ended
	ptags  int                           // guarded by mu
}

// Open opens the device called name of a provider. A device may be opened several times; each NIC
// is independent of the others.
//
// Errors: ErrInvalidParameter for an unknown name, ErrResource.
func Open(p Provider, name string, cfg *Config) (*NIC, error) { // [VIA 6.4.1]
	if p == nil {
		return nil, fmt.Errorf("%w: no provider", ErrInvalidParameter)
	}
	n := &NIC{vis: make(map[*VI]struct{}), cqs: make(map[*CompletionQueue]struct{}), ending: make(map[Link]struct{})}
	if cfg != nil {
		n.cfg = *cfg
	}
	if n.cfg.Logger == nil {
		n.cfg.Logger = slog.New(slog.DiscardHandler)
	}
	n.async.init(n)
	dev, err := p.Open(name, n) // [VIA-1.1-1]
	if err != nil {
		return nil, err
	}
	n.dev = dev
	n.attrs = dev.Attributes()
	n.memory = regmem.New(regmem.Limits{
		Regions:     n.attrs.MaxRegisterRegions,
		Bytes:       n.attrs.MaxRegisterBytes,
		RegionBytes: n.attrs.MaxRegisterBlockBytes,
	})
	return n, nil
}

// Query returns the attributes of the NIC.
func (n *NIC) Query() NICAttributes { // [VIA 6.4.1]
	a := n.attrs
	a.LocalAddress = slices.Clone(a.LocalAddress)
	return a
}

// Device returns the provider's object for the NIC. It serves programs that use provider features
// beyond the architecture.
func (n *NIC) Device() Device { return n.dev }

// Logger returns the logger of the NIC, never nil. Providers log to it.
func (n *NIC) Logger() *slog.Logger { return n.cfg.Logger }

// Close ends all remaining objects of the NIC: connections as by Disconnect, completion queues, and
// regions. It may be called twice, and from an error handler, but not from a Notify handler. It
// waits for the provider's goroutines and for Notify handlers. It drops asynchronous errors whose
// handler has not begun by then.
func (n *NIC) Close() error { // [VIA 6.4.1] [VIA-6.4-1]
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return nil
	}
	n.closed = true
	vis := make([]*VI, 0, len(n.vis))
	for v := range n.vis {
		vis = append(vis, v)
	}
	cqs := make([]*CompletionQueue, 0, len(n.cqs))
	for c := range n.cqs {
		cqs = append(cqs, c)
	}
	n.mu.Unlock()
	for _, v := range vis {
		v.close()
	}
	for _, c := range cqs {
		c.close()
	}
	n.attempts.Wait() // v.close has cancelled the attempts
	err := n.dev.Close()
	n.mu.Lock()
	links := slices.Collect(maps.Keys(n.ending))
	n.mu.Unlock()
	for _, l := range links {
		l.Wait()
	}
	n.notify.wait()
	n.async.d.close()
	return err
}

// stop stops a link. NIC.Close then waits until the link has sent its last messages to the peer,
// even if the VI is destroyed before. The caller must call end afterwards.
func (n *NIC) stop(l Link, reason StopReason) {
	n.mu.Lock()
	n.ending[l] = struct{}{}
	n.mu.Unlock()
	l.Stop(reason)
}

// end makes a stopped link end the connection on the wire. The caller holds no lock.
func (n *NIC) end(l Link) {
	gone := func() {
		n.mu.Lock()
		delete(n.ending, l)
		n.mu.Unlock()
	}
	if e, ok := l.(ender); ok {
		e.End(gone)
		return
	}
	go func() {
		l.Wait()
		gone()
	}()
}

// A Ptag is a protection tag: a VI may use the regions with the same tag.
type Ptag struct { // [VIA 1.5]
	nic    *NIC
	domain *regmem.Domain
	uses   int  // guarded by nic.mu; number of VIs and regions that have the tag
	gone   bool // guarded by nic.mu; the tag was destroyed
}

// CreatePtag creates a protection tag. Errors: ErrResource, ErrClosed.
func (n *NIC) CreatePtag() (*Ptag, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil, ErrClosed
	}
	if n.attrs.MaxPtags > 0 && n.ptags >= n.attrs.MaxPtags {
		return nil, fmt.Errorf("%w: %d protection tags", ErrResource, n.ptags) // [VIA-8.2-1] [VIA-8.3-2]
	}
	n.ptags++
	return &Ptag{nic: n, domain: regmem.NewDomain()}, nil // [VIA-1.5-1]
}

// DestroyPtag ends a protection tag. Errors: ErrInvalidParameter if p does not belong to the NIC,
// ErrResource while a VI or region has the tag.
func (n *NIC) DestroyPtag(p *Ptag) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case p == nil || p.nic != n || p.gone:
		return fmt.Errorf("%w: protection tag", ErrInvalidParameter)
	case p.uses > 0:
		return fmt.Errorf("%w: protection tag in use %d times", ErrResource, p.uses) // [VIA-6.4-2]
	}
	p.gone = true
	n.ptags--
	return nil
}

// usePtagLocked counts a use of p by a VI or region, and returns the domain of p, nil for a nil p.
// The error is ErrInvalidPtag if p is not a tag of the NIC, or nil with StrictPtags.
func (n *NIC) usePtagLocked(p *Ptag) (*regmem.Domain, error) {
	if p == nil {
		if n.cfg.StrictPtags {
			return nil, fmt.Errorf("%w: none given", ErrInvalidPtag)
		}
		return nil, nil
	}
	if p.nic != n || p.gone { // [VIA-1.1-2]
		return nil, ErrInvalidPtag
	}
	p.uses++
	return p.domain, nil
}

func (n *NIC) dropPtagLocked(p *Ptag) {
	if p != nil {
		p.uses--
	}
}
