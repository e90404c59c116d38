package iwarp

import (
	"fmt"
	"sync/atomic"

	"viaduct/internal/regmem"
)

// A MemoryRegion is registered memory. It is made by
// [ProtectionDomain.Register], for all streams of a domain, or by
// [QueuePair.Register], for one stream. Safe for concurrent use.
type MemoryRegion struct {
	pd    *ProtectionDomain
	r     *regmem.Region
	owner *QueuePair
}

// STag returns the name by which peers know the region: an unpredictable
// number, which names nothing else for long after the region is gone.
func (m *MemoryRegion) STag() uint32 { return m.r.Handle() } // [RDMAP-8.1.1-8] [RDMAP-8.1.1-9] [SEC-6.1.1-4] [SEC-6.1.1-5] [I-56]

// TO returns the tagged offset of the first byte: 0, or its virtual address.
func (m *MemoryRegion) TO() uint64 { return m.r.Base() }

// Len returns the length in bytes.
func (m *MemoryRegion) Len() int { return m.r.Len() }

// Bytes returns the memory.
func (m *MemoryRegion) Bytes() []byte { return m.r.Bytes() }

// Close revokes the STag. When it returns no peer and no request of ours
// touches the memory any more, and none ever will; transfers in progress fail.
//
// Errors: ErrRegistered if it was closed before, ErrWindows if windows are
// bound to it.
func (m *MemoryRegion) Close() error { // [RDMAP-8.1.1-6] [SEC-6.2.2-2] [DDP-8.3-2] [RDMAP-3.2-8]
	return wrapRegistry(m.pd.dev.reg.Deregister(m.r))
}

// SetAccess replaces the rights of peers, for accesses that begin from now on:
// a right is best given no longer than it is needed.
func (m *MemoryRegion) SetAccess(access Access) { // [SEC-6.3.3-1]
	var owner any
	if m.owner != nil {
		owner = m.owner
	}
	m.pd.dev.reg.SetAttributes(m.r, access.rights(), m.pd.dom, owner)
}

// SGE returns the element of a request that names n bytes at offset off of the
// region.
func (m *MemoryRegion) SGE(off, n int) SGE {
	return SGE{Region: m, Off: uint64(off), Len: uint64(n)}
}

// A Window is an STag for an exact range of a region, usable by one stream
// only. It ends when the peer invalidates it with a Send, when [Window.Close]
// or a request of [OpLocalInvalidate] does, or with the stream. Safe for
// concurrent use.
type Window struct {
	qp     *QueuePair
	r      *regmem.Region
	closed atomic.Bool
}

// Bind opens a window of n bytes at offset off of m for the peer of q. Tagged offsets begin at 0,
// or with RegionOptions.Virtual at those of the region. The window is open when Bind returns, so
// that its STag may be sent to the peer. The region stays registered at least as long as the
// window.
//
// Errors: ErrInvalid if the range is empty or leaves the region or the region belongs to another
// domain or stream, ErrRegistered, ErrLimit, ErrClosed.
func (q *QueuePair) Bind(m *MemoryRegion, off, n int, access Access, opt ...RegionOptions) (*Window, error) {
	if m.pd != q.pd || m.owner != nil && m.owner != q {
		return nil, fmt.Errorf("%w: region of another domain or stream", ErrInvalid)
	}
	if off < 0 || n < 0 {
		return nil, fmt.Errorf("%w: window of %d bytes at %d", ErrInvalid, n, off)
	}
	var o RegionOptions
	if len(opt) > 0 {
		o = opt[0]
	}
	r, err := q.dev.reg.Bind(m.r, uint64(off), uint64(n), regmem.Options{
		Rights: access.rights(), Domain: q.pd.dom, Owner: q, ZeroBased: !o.Virtual, Key: o.Key, KeySet: o.KeySet,
	})
	if err != nil {
		return nil, wrapRegistry(err)
	}
	w := &Window{qp: q, r: r}
	if !q.keepWindow(w) {
		w.Close()
		return nil, q.closedErr()
	}
	return w, nil
}

// STag returns the name of the window.
func (w *Window) STag() uint32 { return w.r.Handle() }

// TO returns the tagged offset of the first byte.
func (w *Window) TO() uint64 { return w.r.Base() }

// Len returns the length in bytes.
func (w *Window) Len() int { return w.r.Len() }

// Valid reports whether the window is open. A peer may close it at any moment.
func (w *Window) Valid() bool { return !w.closed.Load() }

// Close invalidates the window locally. When it returns the peer cannot access the memory through
// it any more, so that the written bytes may be read. A second Close does nothing.
func (w *Window) Close() error { // [SEC-6.2.2-1] [SEC-A-1]
	w.invalidate()
	return nil
}

// invalidate closes the window, once, and reports whether it did.
func (w *Window) invalidate() bool {
	if w.closed.Swap(true) {
		return false
	}
	w.qp.dev.reg.Deregister(w.r)
	w.qp.dropWindow(w)
	return true
}

// formerWindows is how many closed windows a stream remembers, so that a
// peer's Send with Invalidate that crosses our own invalidation does no harm.
// [I-55]
const formerWindows = 1024

// windows keeps what Bind made for one stream. Guarded by QueuePair.mu.
type windows struct {
	open   map[uint32]*Window
	former []uint32 // ring
	next   int
	gone   bool
}

func (q *QueuePair) keepWindow(w *Window) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.win.gone {
		return false
	}
	if q.win.open == nil {
		q.win.open = make(map[uint32]*Window)
	}
	q.win.open[w.STag()] = w
	return true
}

func (q *QueuePair) dropWindow(w *Window) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.win.open, w.STag())
	if len(q.win.former) < formerWindows {
		q.win.former = append(q.win.former, w.STag())
		return
	}
	q.win.former[q.win.next] = w.STag()
	q.win.next = (q.win.next + 1) % formerWindows
}

// findWindow returns the open window of an STag. former means that the STag belongs to a closed
// window.
func (q *QueuePair) findWindow(stag uint32) (w *Window, former bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w := q.win.open[stag]; w != nil {
		return w, false
	}
	for _, s := range q.win.former {
		if s == stag {
			return nil, true
		}
	}
	return nil, false
}

// closeWindows invalidates all windows of the stream and keeps new ones out.
func (q *QueuePair) closeWindows() {
	q.mu.Lock()
	q.win.gone = true
	ws := make([]*Window, 0, len(q.win.open))
	for _, w := range q.win.open {
		ws = append(ws, w)
	}
	q.mu.Unlock()
	for _, w := range ws {
		w.invalidate()
	}
}
