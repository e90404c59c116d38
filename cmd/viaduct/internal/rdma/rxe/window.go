package rxe

import (
	"crypto/rand"
	"encoding/binary"
	"sync"
	"sync/atomic"

	"viaduct/cmd/viaduct/internal/rdma/abi"
)

// A Space holds the memory windows and address handles of a context, named by number in requests.
type Space struct {
	port *Port

	bound   atomic.Int32 // number of windows
	mu      sync.Mutex
	windows map[uint32]*Window // guarded by mu; by the upper 24 bits of the key
	ahs     map[uint32]*AH     // guarded by mu
	nextAH  uint32             // guarded by mu
}

// NewSpace creates an empty space.
func NewSpace(port *Port) *Space {
	return &Space{port: port, windows: map[uint32]*Window{}, ahs: map[uint32]*AH{}}
}

// An AH is an address handle.
type AH struct {
	Num    uint32
	memory Memory
	path   Path
}

// NewAH creates an address handle. attr are the attributes in the body of create_ah. The error is
// ErrInvalid.
func (s *Space) NewAH(m Memory, attr abi.Body) (*AH, error) {
	a := &AH{memory: m, path: parseAHPath(attr)}
	if !a.path.usable(s.port) {
		return nil, ErrInvalid
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// 0 is not used as a number: the provider takes 0 for an old kernel, and then passes the whole
	// address in each entry.
	for s.nextAH = max(s.nextAH, 1); s.ahs[s.nextAH] != nil; s.nextAH = max(s.nextAH+1, 1) {
	}
	a.Num = s.nextAH
	s.ahs[a.Num] = a
	s.nextAH++
	return a, nil
}

// parseAHPath decodes the attributes of create_ah. Their order differs from the order of modify_qp.
func parseAHPath(b abi.Body) Path {
	p := make(abi.Body, pathLen)
	copy(p, b.Bytes(0, 16))
	p.Put8(24, b.U8(20)) // source GID
	p.Put8(30, b.U8(29)) // is_global
	p.Put8(31, b.U8(30)) // port
	return parsePath(p)
}

// CloseAH removes an address handle.
func (s *Space) CloseAH(a *AH) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.ahs, a.Num)
}

// path returns the path of address handle num of the domain m; ok is false if there is none.
func (s *Space) path(num uint32, m Memory) (p Path, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a := s.ahs[num]; a != nil && a.memory == m {
		return a.path, true
	}
	return p, false
}

// A WindowType determines how a window is bound and invalidated.
type WindowType uint8

// The types.
const (
	Type1 WindowType = 1 // bound by a command, to the whole domain
	Type2 WindowType = 2 // bound by a request, to a queue pair
)

// A Window is a key for a part of a region.
type Window struct {
	typ    WindowType
	memory Memory

	// Guarded by Space.mu:
	key          uint32
	region       Region // nil while the window is not bound
	qp           *QP    // the queue pair of a bound window of type 2
	addr, length uint64
	access       uint32
}

// zeroBased is the access flag of a window whose addresses begin at 0.
const zeroBased = 1 << 5

// NewWindow creates a window with an unused key. taken reports whether a region has the key. The
// error is ErrInvalid for an unknown type.
func (s *Space) NewWindow(m Memory, t WindowType, taken func(key uint32) bool) (*Window, error) {
	if t != Type1 && t != Type2 {
		return nil, ErrInvalid
	}
	w := &Window{typ: t, memory: m}
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		var b [4]byte
		rand.Read(b[:])
		if w.key = binary.LittleEndian.Uint32(b[:]); w.key>>8 != 0 && s.windows[w.key>>8] == nil &&
			!taken(w.key&^0xff) {
			break
		}
	}
	s.windows[w.key>>8] = w
	s.bound.Add(1)
	return w, nil
}

// Key returns the current key of the window. A binding replaces the lowest byte.
func (s *Space) Key(w *Window) uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return w.key
}

// HasKey reports whether a window has the key, ignoring the lowest byte.
func (s *Space) HasKey(key uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.windows[key>>8] != nil
}

// CloseWindow removes a window and ends the binding.
func (s *Space) CloseWindow(w *Window) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.unbind()
	delete(s.windows, w.key>>8)
	s.bound.Add(-1)
}

// unbind ends the binding of the window, if any. Space.mu is locked.
func (w *Window) unbind() {
	if w.region != nil {
		w.region.Bound(-1)
	}
	w.region, w.qp, w.length, w.access = nil, nil, 0, 0
}

// bind binds a window as an entry of q requests, and returns the status of the entry.
func (s *Space) bind(q *QP, b *bindRequest) Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.windows[b.key>>8]
	switch {
	case w == nil, w.key != b.key, w.memory != q.memory,
		w.typ == Type1 && b.access&zeroBased != 0,
		w.typ == Type2 && (w.region != nil || b.length == 0):
		return WindowBind
	}
	var r Region
	if b.length > 0 {
		need := uint32(abi.AccessMWBind)
		if b.access&(abi.AccessRemoteWrite|abi.AccessRemoteAtomic) != 0 {
			need |= abi.AccessLocalWrite
		}
		if r = q.memory.Find(b.regionKey, b.addr, b.length, need); r == nil {
			return WindowBind
		}
		r.Bound(1)
		r.Release()
	}
	w.unbind()
	w.key = w.key&^0xff | b.newKey&0xff // the upper 24 bits name the window
	w.region, w.addr, w.length, w.access = r, b.addr, b.length, b.access
	if w.typ == Type2 {
		w.qp = q
	}
	return Success
}

// invalidate unbinds the window of type 2 with the given key. It returns false if there is none.
func (s *Space) invalidate(key uint32, m Memory) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.windows[key>>8]
	if w == nil || w.key != key || w.memory != m || w.typ != Type2 || w.region == nil {
		return false
	}
	w.unbind()
	return true
}

// find looks up n bytes at addr by the key of a window. It returns the region, with a hold for the
// caller to release, and the address in the region. The region is nil if the window does not allow
// q the access. found is false if no window has the key.
func (s *Space) find(q *QP, key uint32, addr, n uint64, need uint32) (r Region, at uint64, found bool) {
	if s.bound.Load() == 0 {
		return nil, 0, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.windows[key>>8]
	if w == nil {
		return nil, 0, false
	}
	if w.key != key || w.memory != q.memory || w.region == nil || w.access&need != need || w.typ == Type2 && w.qp != q {
		return nil, 0, true
	}
	off := addr
	if w.access&zeroBased == 0 {
		off = addr - w.addr // wraps around if addr precedes the window
	}
	if off > w.length || n > w.length-off || !w.region.Hold() {
		return nil, 0, true
	}
	return w.region, w.addr + off, true
}
