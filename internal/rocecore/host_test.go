package rocecore

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"viaduct/internal/testkit"
	"viaduct/internal/wire/ib"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// A slice is a Buffer.
type slice []byte

func (s slice) Len() int                       { return len(s) }
func (s slice) ReadAt(p []byte, off int) error { copy(p, s[off:off+len(p)]); return nil }
func (s slice) WriteAt(p []byte, off int) error {
	copy(s[off:off+len(p)], p)
	return nil
}

// A gone is a Buffer whose memory no longer exists.
type gone int

func (g gone) Len() int                  { return int(g) }
func (g gone) ReadAt([]byte, int) error  { return errors.New("gone") }
func (g gone) WriteAt([]byte, int) error { return errors.New("gone") }

// A done is a completed request.
type done struct {
	id uint64
	c  Completion
}

// A got is a completed receive, with the received bytes.
type got struct {
	id   uint64
	a    Arrival
	data []byte
}

// A fakeHost has one region with the key 0x100, whose addresses begin at base.
type fakeHost struct {
	mem      []byte
	rights   Access
	touched  int // number of writes and atomic operations
	receives []Receive
	done     []done
	got      []got
	failed   []Status
	refused  []ib.Syndrome
	invalid  []uint32
}

const (
	base = 0x10000
	key  = 0x100
)

func (h *fakeHost) Check(p Place, n uint64, a Access) Verdict {
	if p.Key != key || h.rights&a != a || slices.Contains(h.invalid, p.Key) || p.VA < base ||
		p.VA-base > uint64(len(h.mem)) || n > uint64(len(h.mem))-(p.VA-base) {
		return Refused
	}
	return Allowed
}

func (h *fakeHost) Write(p Place, b []byte) Verdict {
	if v := h.Check(p, uint64(len(b)), RemoteWrite); v != Allowed {
		return v
	}
	h.touched++
	copy(h.mem[p.VA-base:], b)
	return Allowed
}

func (h *fakeHost) Read(p Place, b []byte) Verdict {
	if v := h.Check(p, uint64(len(b)), RemoteRead); v != Allowed {
		return v
	}
	copy(b, h.mem[p.VA-base:])
	return Allowed
}

func (h *fakeHost) Atomic(op Op, p Place, swapAdd, compare uint64) (uint64, Verdict) {
	if p.VA%8 != 0 {
		return 0, Misaligned
	}
	if v := h.Check(p, 8, RemoteAtomic); v != Allowed {
		return 0, v
	}
	h.touched++
	w := h.mem[p.VA-base:]
	old := binary.NativeEndian.Uint64(w)
	switch {
	case op == FetchAdd:
		binary.NativeEndian.PutUint64(w, old+swapAdd)
	case old == compare:
		binary.NativeEndian.PutUint64(w, swapAdd)
	}
	return old, Allowed
}

func (h *fakeHost) Invalidate(k uint32) Verdict {
	if k != key {
		return Refused
	}
	h.invalid = append(h.invalid, k)
	return Allowed
}

func (h *fakeHost) NextReceive() (Receive, bool) {
	if len(h.receives) == 0 {
		return Receive{}, false
	}
	r := h.receives[0]
	h.receives = h.receives[1:]
	return r, true
}

func (h *fakeHost) RequestDone(r *Request, c Completion) { h.done = append(h.done, done{r.ID, c}) }

func (h *fakeHost) Received(r Receive, a Arrival) {
	g := got{id: r.ID, a: a}
	if s, ok := r.Buf.(slice); ok && !a.Write {
		g.data = slices.Clone(s[:a.Len])
	}
	h.got = append(h.got, g)
}

func (h *fakeHost) Refused(nak ib.Syndrome) { h.refused = append(h.refused, nak) }

func (h *fakeHost) Failed(s Status) { h.failed = append(h.failed, s) }

// packets returns the packets that c sends now, decoded.
func packets(t testing.TB, now Time, c interface {
	Transmit(Time, *Output, int) bool
}, limit int) (ps []ib.Packet) {
	var out Output
	c.Transmit(now, &out, limit)
	for i := range out.Len() {
		b, _ := out.Packet(i)
		p, err := ib.Parse(slices.Clone(b[:len(b)-ib.ICRCLen]))
		if err != nil {
			t.Fatalf("packet that was sent: %v: %x", err, b)
		}
		ps = append(ps, p)
	}
	return ps
}
