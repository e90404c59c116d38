package regmem

import (
	"encoding/binary"
	"errors"
	"math"
	"runtime"
	"testing"

	"pgregory.net/rapid"
)

func register(t testing.TB, g *Registry, n int, o Options) *Region {
	t.Helper()
	r, err := g.Register(make([]byte, n), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestOutcomeOrder checks that the checks are made in the order of the outcomes, so that a peer
// learns nothing about a region the peer may not use. [VIA-1.4-7] [VIA-1.5-2]
func TestOutcomeOrder(t *testing.T) {
	g := New(Limits{})
	d, other := NewDomain(), NewDomain()
	owner, stranger := new(int), new(int)
	r := register(t, g, 100, Options{Rights: RemoteRead, Domain: d, Owner: owner, ZeroBased: true})
	good := struct {
		handle    uint32
		addr, len uint64
		d         *Domain
		owner     any
		need      Rights
	}{r.Handle(), 10, 20, d, owner, RemoteRead}
	// The access fails all checks at first. Each step corrects a field; the next check then fails.
	c := good
	c.handle, c.d, c.owner, c.need, c.addr, c.len = ^good.handle, other, stranger, RemoteWrite, math.MaxUint64-5, 200
	try := func(want Outcome) {
		t.Helper()
		ref, out := g.Access(c.handle, c.addr, c.len, c.d, c.owner, c.need)
		if out != want {
			t.Errorf("access: %v, want %v", out, want)
		}
		if got := g.Check(c.handle, c.addr, c.len, c.d, c.owner, c.need); got != want {
			t.Errorf("check: %v, want %v", got, want)
		}
		if (ref.B() != nil) != (want == OK) || (ref.Pins()) != (want == OK) ||
			RegistryOf(ref) != nil && RegistryOf(ref) != g {
			t.Errorf("%v with a ref of %d bytes", out, len(ref.B()))
		}
		ref.Release()
	}
	try(NoRegion)
	c.handle = good.handle
	try(WrongDomain)
	c.d = good.d
	try(WrongOwner)
	c.owner = nil
	try(WrongOwner)
	c.owner = good.owner
	try(NoRights)
	c.need = RemoteRead | RemoteWrite // every bit must be granted
	try(NoRights)
	c.need = RemoteRead
	try(Wrap)
	c.len = 5
	try(OutOfBounds)
	c.addr, c.len = good.addr, 91
	try(OutOfBounds)
	c.len = good.len
	try(OK)
	c.d = nil // a nil domain matches every domain
	try(OK)
	if err := g.Deregister(r); err != nil {
		t.Fatal(err)
	}
	try(NoRegion)
	if _, out := r.Access(10, 20, d, owner, RemoteRead); out != NoRegion {
		t.Errorf("access through a region that is gone: %v", out)
	}
}

// regionAt returns a region of n bytes whose addresses begin at base, wherever the memory is. It is
// for tests of the arithmetic at the upper end of the address space.
func regionAt(base uint64, n int) *Region {
	r := &Region{mem: make([]byte, n), size: uint64(n), base: base, drained: make(chan struct{}, 1)}
	r.attrs.Store(&attributes{rights: Local})
	return r
}

// TestBounds checks ranges at the ends of regions and of the address space. [VIA-1.4-3]
// [VIA-8.3-15]
func TestBounds(t *testing.T) {
	const top = math.MaxUint64
	for _, c := range []struct {
		name      string
		base      uint64
		n         int
		addr, len uint64
		want      Outcome
	}{
		{"first byte", 1000, 10, 1000, 1, OK},
		{"last byte", 1000, 10, 1009, 1, OK},
		{"all", 1000, 10, 1000, 10, OK},
		{"one more", 1000, 10, 1000, 11, OutOfBounds},
		{"one before", 1000, 10, 999, 1, OutOfBounds},
		{"one behind", 1000, 10, 1010, 1, OutOfBounds},
		{"nothing at the start", 1000, 10, 1000, 0, OK},
		{"nothing right behind", 1000, 10, 1010, 0, OK},
		{"nothing further", 1000, 10, 1011, 0, OutOfBounds},
		{"nothing before", 1000, 10, 999, 0, OutOfBounds},
		{"length that wraps back into the region", 1000, 10, 1005, top - 3, Wrap},
		{"longest length", 0, 10, 0, top, OutOfBounds},
		{"longest length from 1", 0, 10, 1, top, OutOfBounds},
		{"longest length from 2", 0, 10, 2, top, Wrap},
		{"last byte of all", top - 9, 10, top, 1, OK},
		{"all up to the end of all", top - 9, 10, top - 9, 10, OK},
		{"two bytes at the end of all", top - 9, 10, top, 2, Wrap},
		{"around the end of all", top - 9, 10, top - 9, 11, Wrap},
		{"behind the end of all", top - 9, 10, 0, 1, OutOfBounds},
		{"nothing behind the end of all", top - 9, 10, 0, 0, OutOfBounds},
		{"nothing at the end of all", top - 9, 10, top, 0, OK},
		{"before one at the end", top - 9, 10, top - 10, 1, OutOfBounds},
		{"end of all, region elsewhere", 1000, 10, top, 1, OutOfBounds},
		{"addresses from 0", 0, 10, 0, 10, OK},
	} {
		r := regionAt(c.base, c.n)
		ref, out := r.Access(c.addr, c.len, nil, nil, LocalRead)
		if out != c.want {
			t.Errorf("%s: %v, want %v", c.name, out, c.want)
		}
		far, out := farRegionAt(c.base, c.n).Access(c.addr, c.len, nil, nil, LocalRead)
		if out != c.want || out == OK &&
			(!far.Far() || far.B() != nil || uint64(far.Len()) != c.len || far.at != c.addr-c.base+farBase) {
			t.Errorf("%s, far: %v, want %v; %d bytes at %#x", c.name, out, c.want, far.Len(), far.at)
		}
		if out == OK && (uint64(len(ref.B())) != c.len || cap(ref.B()) != len(ref.B()) || c.len > 0 && &ref.B()[0] != &r.mem[c.addr-c.base]) {
			t.Errorf("%s: got %d bytes with room for %d", c.name, len(ref.B()), cap(ref.B()))
		}
	}
}

// FuzzBounds compares Access with a calculation in 128 bits.
func FuzzBounds(f *testing.F) {
	f.Add(uint64(1000), uint16(10), uint64(1000), uint64(10))
	f.Add(uint64(math.MaxUint64-9), uint16(10), uint64(math.MaxUint64), uint64(2))
	f.Add(uint64(0), uint16(1), uint64(5), uint64(math.MaxUint64))
	f.Fuzz(func(t *testing.T, base uint64, n uint16, addr, length uint64) {
		if n == 0 || base+uint64(n)-1 < base {
			return // such a region cannot exist
		}
		want := OK
		switch {
		case length > 0 && length-1 > math.MaxUint64-addr:
			want = Wrap
		case addr < base || addr-base > uint64(n) || length > uint64(n) || addr-base+length > uint64(n):
			want = OutOfBounds
		}
		if _, out := farRegionAt(base, int(n)).Access(addr, length, nil, nil, LocalWrite); out != want {
			t.Errorf("far region of %d at %#x, access of %d at %#x: %v, want %v", n, base, length, addr, out, want)
		}
		if _, out := regionAt(base, int(n)).Access(addr, length, nil, nil, LocalWrite); out != want {
			t.Errorf("region of %d at %#x, access of %d at %#x: %v, want %v", n, base, length, addr, out, want)
		}
	})
}

func TestRegisterRefuses(t *testing.T) {
	g := New(Limits{Regions: 3, Bytes: 100, RegionBytes: 60})
	want := func(what string, err, want error) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	_, err := g.Register(nil, Options{})
	want("no memory", err, ErrInvalid)
	_, err = g.Register(make([]byte, 61), Options{})
	want("too long", err, ErrLimit)
	a := register(t, g, 60, Options{})
	_, err = g.Register(make([]byte, 41), Options{})
	want("too much together", err, ErrLimit)
	b := register(t, g, 40, Options{})
	if _, err := g.Bind(a, 0, 60, Options{}); err != nil { // a window is one more region, but its memory was counted already
		t.Error(err)
	}
	_, err = g.Bind(a, 0, 1, Options{})
	want("too many", err, ErrLimit)
	if g.Count() != 3 {
		t.Errorf("%d regions", g.Count())
	}
	if err := g.Deregister(b); err != nil {
		t.Fatal(err)
	}
	want("deregistering again", g.Deregister(b), ErrNoRegion)
	register(t, g, 40, Options{}) // fits, because b was deregistered
	want("another registry's", New(Limits{}).Deregister(a), ErrNoRegion)
}

func TestWindows(t *testing.T) {
	g := New(Limits{})
	d := NewDomain()
	r := register(t, g, 100, Options{Rights: RemoteRead, Domain: d})
	for _, c := range []struct {
		off, n uint64
		ok     bool
	}{
		{0, 100, true}, {99, 1, true}, {10, 20, true},
		{0, 0, false}, {100, 0, false}, {100, 1, false}, {0, 101, false}, {99, 2, false},
		{math.MaxUint64, 2, false}, {1, math.MaxUint64, false},
	} {
		w, err := g.Bind(r, c.off, c.n, Options{Rights: RemoteWrite, Domain: d})
		if (err == nil) != c.ok || err != nil && !errors.Is(err, ErrInvalid) {
			t.Errorf("window of %d at %d: %v", c.n, c.off, err)
		}
		if err != nil {
			continue
		}
		if w.Base() != r.Base()+c.off || uint64(w.Len()) != c.n || w.Parent() != r || w.Handle() == r.Handle() {
			t.Errorf("window of %d at %d: %d at %#x", c.n, c.off, w.Len(), w.Base())
		}
		if err := g.Deregister(w); err != nil {
			t.Error(err)
		}
	}
	owner := new(int)
	w, err := g.Bind(r, 10, 20, Options{Rights: RemoteWrite, Domain: d, Owner: owner, ZeroBased: true})
	if err != nil {
		t.Fatal(err)
	}
	// An access through a window is checked against the rights, bounds and owner of the window, not
	// of the region.
	for _, c := range []struct {
		addr, n uint64
		owner   any
		need    Rights
		want    Outcome
	}{
		{0, 20, owner, RemoteWrite, OK},
		{0, 20, nil, RemoteWrite, WrongOwner},
		{0, 20, owner, RemoteRead, NoRights},
		{0, 20, owner, LocalRead, NoRights}, // a window adds no local rights for its owner
		{0, 21, owner, RemoteWrite, OutOfBounds},
		{r.Base() + 10, 1, owner, RemoteWrite, OutOfBounds},
	} {
		ref, out := g.Access(w.Handle(), c.addr, c.n, d, c.owner, c.need)
		if out != c.want {
			t.Errorf("access of %d at %d for %v: %v, want %v", c.n, c.addr, c.need, out, c.want)
		}
		if out == OK && &ref.B()[0] != &r.Bytes()[10] {
			t.Error("the window looks elsewhere")
		}
		ref.Release()
	}
	if _, err := g.Bind(w, 0, 1, Options{}); !errors.Is(err, ErrInvalid) {
		t.Errorf("window of a window: %v", err)
	}
	if err := g.Deregister(r); !errors.Is(err, ErrBusy) {
		t.Errorf("deregistering a region with a window: %v", err)
	}
	if _, out := g.Access(r.Handle(), r.Base(), 1, d, nil, RemoteRead); out != OK {
		t.Errorf("and it is gone: %v", out)
	} else {
		r.unpin()
	}
	if err := g.Deregister(w); err != nil {
		t.Fatal(err)
	}
	if err := g.Deregister(r); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Bind(r, 0, 1, Options{}); !errors.Is(err, ErrNoRegion) {
		t.Errorf("window of a region that is gone: %v", err)
	}
}

func TestAttributes(t *testing.T) {
	g := New(Limits{})
	d := NewDomain()
	r := register(t, g, 10, Options{})
	if r.Rights() != Local || r.Domain() != nil || r.Owner() != nil || r.Parent() != nil {
		t.Errorf("rights %v, domain %v, owner %v", r.Rights(), r.Domain(), r.Owner())
	}
	g.SetAttributes(r, RemoteAtomic, d, t)
	if r.Rights() != Local|RemoteAtomic || r.Domain() != d || r.Owner() != t {
		t.Errorf("rights %v, domain %v, owner %v", r.Rights(), r.Domain(), r.Owner())
	}
	if got := (LocalRead | RemoteWrite).String(); got != "local-read|remote-write" {
		t.Error(got)
	}
	if got := Rights(0).String(); got != "none" {
		t.Error(got)
	}
	for o := OK; o <= OutOfBounds+1; o++ {
		if o.String() == "" {
			t.Errorf("outcome %d has no name", o)
		}
	}
	if g.Lookup(r.Handle()) != r || g.Lookup(0) != nil {
		t.Error("lookup")
	}
	if Address(nil) != 0 || Address(r.Bytes()) != r.Base() ||
		Address(r.Bytes()[10:]) != r.Base()+10 && cap(r.Bytes()[10:]) > 0 {
		t.Error("addresses")
	}
}

// TestHandles checks that a handle is not 0, can't be predicted, has the fixed key, if any, and is
// not reused soon.
func TestHandles(t *testing.T) {
	g := New(Limits{})
	mem := make([]byte, 1)
	recent := map[uint32]bool{}
	var or, and uint32 = 0, math.MaxUint32
	for i := range quarantine {
		r, err := g.Register(mem, Options{Key: 0xa5, KeySet: i%4 == 0})
		if err != nil {
			t.Fatal(err)
		}
		h := r.Handle()
		if h == 0 || recent[h] {
			t.Fatalf("handle %#x", h)
		}
		if i%4 == 0 && byte(h) != 0xa5 {
			t.Fatalf("handle %#x with key a5", h)
		}
		recent[h] = true
		or, and = or|h, and&h
		if err := g.Deregister(r); err != nil {
			t.Fatal(err)
		}
	}
	if or != math.MaxUint32 || and != 0 {
		t.Errorf("bits that never change: %#x, %#x", ^or, and)
	}
	for h := range recent {
		if !g.isRetiredLocked(h) {
			t.Fatalf("handle %#x may be drawn again", h)
		}
	}
}

// TestDraw checks that a drawn handle is skipped if it is 0, in use, or retired. The oldest retired
// handles must become free again. [VIA-1.4-5] [VIA-1.4-6]
func TestDraw(t *testing.T) {
	g := New(Limits{})
	mem := make([]byte, 1)
	draw := func(hs ...uint32) *Region {
		t.Helper()
		g.unread = nil
		for _, h := range hs {
			g.unread = binary.NativeEndian.AppendUint32(g.unread, h)
		}
		r, err := g.Register(mem, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if want := hs[len(hs)-1]; r.Handle() != want {
			t.Fatalf("drew %d of %v", r.Handle(), hs)
		}
		return r
	}
	draw(0, 1)
	two := draw(1, 2)
	if err := g.Deregister(two); err != nil {
		t.Fatal(err)
	}
	for i := range uint32(quarantine - 1) {
		if err := g.Deregister(draw(2, 100+i)); err != nil { // 2 is still retired
			t.Fatal(err)
		}
	}
	if err := g.Deregister(draw(3)); err != nil {
		t.Fatal(err)
	}
	draw(100, 3, 2) // handle 2 is free again; 100 and 3 are still retired
}

// TestTableAgainstMap checks that a table behaves like a Go map, also while growing and collecting
// tombstones.
func TestTableAgainstMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var tab table
		tab.init()
		model := map[uint32]*Region{}
		// There are only few distinct handles, so that handles collide and are drawn repeatedly.
		handle := rapid.Custom(func(t *rapid.T) uint32 {
			if rapid.Bool().Draw(t, "dense") {
				return rapid.Uint32Range(1, 40).Draw(t, "h")
			}
			return rapid.Uint32Range(1, 40).Draw(t, "h") << 24
		})
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				h := handle.Draw(t, "handle")
				if model[h] != nil {
					t.Skip()
				}
				r := &Region{handle: h}
				tab.put(r)
				model[h] = r
			},
			"remove": func(t *rapid.T) {
				h := handle.Draw(t, "handle")
				if model[h] == nil {
					t.Skip()
				}
				tab.remove(model[h])
				delete(model, h)
			},
			"": func(t *rapid.T) {
				if tab.count != len(model) {
					t.Fatalf("%d regions, want %d", tab.count, len(model))
				}
				for h := uint32(0); h <= 41; h++ {
					for _, h := range [...]uint32{h, h << 24} {
						if got := tab.get(h); got != model[h] {
							t.Fatalf("handle %#x: %v, want %v", h, got, model[h])
						}
					}
				}
				slots := *tab.slots.Load()
				used := 0
				for i := range slots {
					if slots[i].Load() != nil {
						used++
					}
				}
				if tab.used != used {
					t.Fatalf("%d slots counted as used, %d are", tab.used, used)
				}
				if len(slots) > max(minSlots, 16*(len(model)+1)) && tab.used == tab.count {
					t.Fatalf("%d slots for %d regions", len(slots), len(model))
				}
			},
		})
	})
}

func TestTableGrowsAndShrinks(t *testing.T) {
	g := New(Limits{})
	mem := make([]byte, 1)
	var rs []*Region
	for range 3000 {
		r, err := g.Register(mem, Options{})
		if err != nil {
			t.Fatal(err)
		}
		rs = append(rs, r)
	}
	for _, r := range rs {
		if g.Lookup(r.Handle()) != r {
			t.Fatal("a region got lost in growth")
		}
	}
	for _, r := range rs {
		if err := g.Deregister(r); err != nil {
			t.Fatal(err)
		}
	}
	for range 9000 { // rebuild removes tombstones, so that they do not accumulate
		r, err := g.Register(mem, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := g.Deregister(r); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(*g.live.slots.Load()); n > 64 {
		t.Errorf("%d slots for no region", n)
	}
}

func TestAccessDoesNotAllocate(t *testing.T) {
	g := New(Limits{})
	d := NewDomain()
	r := register(t, g, 4096, Options{Rights: RemoteWrite, Domain: d})
	w, err := g.Bind(r, 0, 100, Options{Rights: RemoteWrite, Domain: d})
	if err != nil {
		t.Fatal(err)
	}
	dst := make([]byte, 64)
	if n := testing.AllocsPerRun(1000, func() {
		for _, h := range [...]uint32{r.Handle(), w.Handle()} {
			ref, out := g.Access(h, r.Base(), 64, d, nil, RemoteWrite)
			if out != OK {
				t.Fatal(out)
			}
			Copy(dst, ref.B(), ref.Guarded())
			ref.Release()
		}
		g.Check(r.Handle(), r.Base(), 64, d, nil, RemoteWrite)
	}); n != 0 {
		t.Errorf("%v allocations per access", n)
	}
}

func BenchmarkAccess(b *testing.B) {
	g := New(Limits{})
	d := NewDomain()
	var hs []uint32
	mem := make([]byte, 4096)
	for range 1000 {
		r, err := g.Register(mem, Options{Rights: RemoteWrite, Domain: d})
		if err != nil {
			b.Fatal(err)
		}
		hs = append(hs, r.Handle())
	}
	addr := Address(mem)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		ref, _ := g.Access(hs[i%len(hs)], addr, 64, d, nil, RemoteWrite)
		ref.Release()
	}
}

// TestAccessByPin checks that Within returns further ranges of a pinned region after the same
// checks as Access, until the region is being deregistered.
func TestAccessByPin(t *testing.T) {
	g := New(Limits{})
	d := NewDomain()
	r := register(t, g, 100, Options{Rights: RemoteRead, Domain: d, ZeroBased: true})
	ref, _ := g.Access(r.Handle(), 0, 1, d, nil, RemoteRead)
	for _, c := range []struct {
		addr, n uint64
		d       *Domain
		need    Rights
		want    Outcome
	}{
		{90, 10, d, RemoteRead, OK},
		{90, 11, d, RemoteRead, OutOfBounds},
		{math.MaxUint64, 2, d, RemoteRead, Wrap},
		{0, 1, NewDomain(), RemoteRead, WrongDomain},
		{0, 1, d, RemoteWrite, NoRights},
	} {
		part, out := Within(ref, c.addr, c.n, c.d, nil, c.need)
		b := part.B()
		if out != c.want || out == OK && (part.Pins() || len(b) != int(c.n) || cap(b) != int(c.n) || &b[0] != &r.Bytes()[c.addr]) {
			t.Errorf("%d bytes at %d: %v, %d bytes; want %v", c.n, c.addr, out, len(b), c.want)
		}
	}
	if !r.Live() {
		t.Error("a region in use is not live")
	}
	done := make(chan error)
	go func() { done <- g.Deregister(r) }()
	for r.Live() {
		runtime.Gosched()
	}
	if _, out := Within(ref, 0, 1, d, nil, RemoteRead); out != NoRegion {
		t.Errorf("access to a region that is being deregistered: %v", out)
	}
	ref.Release()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
