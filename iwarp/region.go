package iwarp

import (
	"fmt"
	"maps"
	"slices"
	"sync/atomic"

	"viaduct/internal/perturb"
	"viaduct/internal/regmem"
)

// A MemoryRegion is registered memory. [ProtectionDomain.Register] makes a region for all streams
// of a domain, [QueuePair.Register] for a single stream. Safe for concurrent use.
type MemoryRegion struct {
	pd    *ProtectionDomain
	r     *regmem.Region
	owner *memory // the only stream that may use the region, or nil
}

// STag returns the number by which peers name the region. The number is unpredictable, and is not
// reused until long after the region was closed.
func (m *MemoryRegion) STag() uint32 { return m.r.Handle() } // [RDMAP-8.1.1-8] [RDMAP-8.1.1-9] [SEC-6.1.1-4] [SEC-6.1.1-5] [I-56]

// TO returns the tagged offset of the first byte: 0, the virtual address with
// RegionOptions.Virtual, or the address in a space.
func (m *MemoryRegion) TO() uint64 { return m.r.Base() }

// Len returns the length in bytes.
func (m *MemoryRegion) Len() int { return m.r.Len() }

// Bytes returns the memory, or nil for a region of a space.
func (m *MemoryRegion) Bytes() []byte { return m.r.Bytes() }

// Close invalidates the STag and waits for accesses in progress. After Close has returned, no peer
// and no request of ours accesses the memory; unfinished transfers fail.
//
// The error wraps ErrRegistered if the region was closed before, and ErrWindows if the region still
// has windows.
func (m *MemoryRegion) Close() error { // [RDMAP-8.1.1-6] [SEC-6.2.2-2] [DDP-8.3-2] [RDMAP-3.2-8]
	return wrapRegistry(m.pd.dev.reg.Deregister(m.r))
}

// SetAccess replaces the rights of peers, for accesses beginning after the call. Grant a right only
// as long as needed, for example RemoteWrite until the peer's data has arrived.
func (m *MemoryRegion) SetAccess(access Access) { // [SEC-6.3.3-1]
	var owner any
	if m.owner != nil {
		owner = m.owner
	}
	m.pd.dev.reg.SetAttributes(m.r, access.rights(), m.pd.dom, owner)
}

// SGE returns the element of a request for n bytes at offset off of the region. The range is
// checked when the request is posted.
func (m *MemoryRegion) SGE(off, n int) SGE {
	return SGE{Region: m, Off: uint64(off), Len: uint64(n)}
}

// A Window is an STag for an exact range of a region, usable by a single stream. A Window is open
// until invalidated by a Send of the peer, until [Window.Close] or a request of
// [OpLocalInvalidate], or until the stream ends. Safe for concurrent use.
type Window struct {
	all    *windows // the windows of the stream
	reg    *regmem.Registry
	r      *regmem.Region
	closed atomic.Bool
}

// Bind opens a window of n bytes at offset off of m for the peer of q. Tagged offsets begin at 0,
// or with RegionOptions.Virtual at the tagged offset the first byte has in the region. The window
// is open when Bind returns, so the STag may be sent to the peer at once. The region cannot be
// closed while the window is open.
//
// The error wraps ErrInvalid if the range is empty or exceeds the region, or if the region belongs
// to another domain or stream. Other errors wrap ErrRegistered, ErrLimit or ErrClosed.
func (q *QueuePair) Bind(m *MemoryRegion, off, n int, access Access, opt ...RegionOptions) (*Window, error) {
	if !q.mem.admits(m) {
		return nil, fmt.Errorf("%w: region of another domain or stream", ErrInvalid)
	}
	if off < 0 || n < 0 {
		return nil, fmt.Errorf("%w: window of %d bytes at %d", ErrInvalid, n, off)
	}
	var o RegionOptions
	if len(opt) > 0 {
		o = opt[0]
	}
	r, err := q.mem.dev.reg.Bind(m.r, uint64(off), uint64(n), regmem.Options{
		Rights: access.rights(), Domain: q.mem.pd.dom, Owner: &q.mem, ZeroBased: !o.Virtual, Key: o.Key, KeySet: o.KeySet,
	})
	if err != nil {
		return nil, wrapRegistry(err)
	}
	w := &Window{all: &q.windows, reg: q.mem.dev.reg, r: r}
	if !q.windows.keep(w) {
		w.Close()
		return nil, q.life.closedErr()
	}
	return w, nil
}

// STag returns the number the peer uses to name the window.
func (w *Window) STag() uint32 { return w.r.Handle() }

// TO returns the tagged offset of the first byte: 0, or with RegionOptions.Virtual the tagged
// offset in the region.
func (w *Window) TO() uint64 { return w.r.Base() }

// Valid reports whether the window is open. The peer may close the window at any moment.
func (w *Window) Valid() bool { return !w.closed.Load() }

// Close invalidates the window locally. After Close has returned, the peer cannot access the memory
// through the window, so the program may safely read written bytes. A second Close does nothing.
// The error is always nil.
func (w *Window) Close() error { // [SEC-6.2.2-1] [SEC-A-1]
	w.invalidate()
	return nil
}

// invalidate closes the window. It returns false if the window was closed before.
func (w *Window) invalidate() bool {
	if w.closed.Swap(true) {
		return false
	}
	w.reg.Deregister(w.r)
	w.all.drop(w)
	return true
}

// formerWindows is the number of closed windows a stream remembers, so that a peer's Send with
// Invalidate is not an error when crossing our own invalidation. [I-55]
const formerWindows = 1024

// windows holds the windows made by Bind for a stream.
type windows struct {
	mu     perturb.Mutex
	open   map[uint32]*Window // guarded by mu
	former []uint32           // guarded by mu; ring of the STags of closed windows
	next   uint32             // guarded by mu; index in former of the oldest STag
	gone   bool               // guarded by mu; closeAll was called
}

// keep adds an open window. It returns false after closeAll.
func (a *windows) keep(w *Window) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.gone {
		return false
	}
	if a.open == nil {
		a.open = make(map[uint32]*Window)
	}
	a.open[w.STag()] = w
	return true
}

// drop removes a closed window and remembers its STag.
func (a *windows) drop(w *Window) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.open, w.STag())
	if len(a.former) < formerWindows {
		a.former = append(a.former, w.STag())
		return
	}
	a.former[a.next] = w.STag()
	a.next = (a.next + 1) % formerWindows
}

// find returns the open window with the given STag, or nil. former is true if the STag belonged to
// any of the last formerWindows closed windows.
func (a *windows) find(stag uint32) (w *Window, former bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if w := a.open[stag]; w != nil {
		return w, false
	}
	return nil, slices.Contains(a.former, stag)
}

// closeAll invalidates all windows and prevents new windows.
func (a *windows) closeAll() {
	a.mu.Lock()
	a.gone = true
	ws := slices.Collect(maps.Values(a.open))
	a.mu.Unlock()
	for _, w := range ws {
		w.invalidate()
	}
}
