package vitest

import (
	"math"
	"slices"
	"sync"

	"viaduct/vi"
)

// remoteOp executes an RDMA operation of side 0 and reports whether the target allowed it. A
// refused operation raises the error code at the target, and breaks the connection at a reliable
// level.
func (p *pair) remoteOp(d *vi.Descriptor, code vi.ErrorCode) bool {
	p.Helper()
	p.post(0, d)
	if p.level == vi.ReliableReception || d.Control.Op() == vi.OpRDMARead {
		s := p.reapSend(p.v[0], d)
		if s.Failed() {
			p.wantStatus("refused", s&^vi.StatusOpMask, vi.StatusRDMAProtection)
			p.claim(1, p.v[1], code, vi.ErrorConnLost)
			return false
		}
		return true
	}
	if !p.reliable() {
		// Errors are raised in order. So the following message, finding no receive, raises an error
		// after the operation's error.
		p.post(0, vi.NewSend())
		p.drain(p.v[0])
		var got []vi.ErrorCode
		p.eventually("the errors", func() bool {
			got = p.async[1].codes()
			return slices.Contains(got, vi.ErrorRecvQEmpty)
		})
		p.async[1].take()
		return got[0] != code
	}
	// At the other levels only a later message shows that the operation was handled.
	r := p.postRecv(1, vi.NewRecv())
	p.post(0, vi.NewSend())
	if s := p.reapRecv(p.v[1], r); s.Failed() {
		p.claim(1, p.v[1], code, vi.ErrorConnLost)
		return false
	}
	p.drain(p.v[0])
	return true
}

func (p *pair) write(addr uint64, h vi.MemHandle, n int) bool {
	p.Helper()
	return p.remoteOp(vi.NewRDMAWrite(vi.RemoteSegment{Address: addr, Handle: h}, p.seg(0, 0, n)), vi.ErrorRDMAWProt)
}

func (p *pair) read(addr uint64, h vi.MemHandle, n int) bool {
	p.Helper()
	return p.remoteOp(vi.NewRDMARead(vi.RemoteSegment{Address: addr, Handle: h}, p.seg(0, 0, n)), vi.ErrorRDMARProt)
}

// testEdges accesses the first byte of a region, the last byte, the byte after the end, and
// addresses around 2^64. [VIA-8.3-15] [VIA-1.4-3] [VIA-1.4-2]
func testEdges(e *env) {
	const n = 1000
	for _, c := range []struct {
		name string
		off  uint64 // relative to the region's first byte
		len  int
		ok   bool
	}{
		{"FirstByte", 0, 1, true},
		{"LastByte", n - 1, 1, true},
		{"Whole", 0, n, true},
		{"PastEnd", n, 1, false},
		{"AcrossEnd", n - 1, 2, false},
		{"BeforeStart", math.MaxUint64, 1, false},
		{"AcrossStart", math.MaxUint64, 2, false},
		{"TooLong", 0, n + 1, false},
	} {
		e.sub(c.name, func(e *env) { e.edge(n, func(base uint64) uint64 { return base + c.off }, c.len, c.ok) })
	}
	e.sub("Wrap", func(e *env) { e.edge(n, func(uint64) uint64 { return math.MaxUint64 }, 2, false) })
	e.sub("WrapWhole", func(e *env) { e.edge(n, func(uint64) uint64 { return math.MaxUint64 - 9 }, 500, false) })
}

// edge accesses a range of a region in each way, and checks whether the access is allowed.
func (e *env) edge(n int, addr func(base uint64) uint64, length int, allowed bool) {
	mem := [2]*vi.Region{e.region(0, n), e.region(1, n)}
	p := e.connected()
	if got := p.write(addr(mem[1].Address()), mem[1].Handle(), length); got != allowed {
		e.Errorf("write allowed: %t", got)
	}
	if e.canRead() {
		p = e.connected()
		if got := p.read(addr(mem[1].Address()), mem[1].Handle(), length); got != allowed {
			e.Errorf("read allowed: %t", got)
		}
	}
	seg := func(side int) vi.Segment {
		return vi.Segment{Address: addr(mem[side].Address()), Handle: mem[side].Handle(), Length: uint32(length)}
	}
	want := vi.Status(0)
	if !allowed {
		want = vi.StatusProtectionError
	}
	p = e.connected()
	r := p.postRecv(1, vi.NewRecv(seg(1)))
	p.post(0, vi.NewSend(p.seg(0, 0, length)))
	p.wantStatus("scatter", p.reapRecv(p.v[1], r), vi.StatusOpReceive|want)
	p = e.connected()
	p.postRecv(1, vi.NewRecv(p.seg(1, 0, 2*n)))
	s := p.post(0, vi.NewSend(seg(0)))
	p.wantStatus("gather", p.reapSend(p.v[0], s), vi.StatusOpSend|want)
}

// testProtection violates each condition on tags and enables separately. [VIA-8.3-14] [VIA-1.5-1]
// [VIA-1.5-2] [VIA-1.5-7] [VIA-1.5-8] [VIA-1.5-9] [VIA-1.4-7]
func testProtection(e *env) {
	type setup struct {
		name                   string
		vi, region             int // numbers of the tags of the VI and the region; 0 means none
		viWrite, viRead        bool
		regionWrite, regonRead bool
		local, write, read     bool // the operations that must be allowed
	}
	for _, c := range []setup{
		{"All", 1, 1, true, true, true, true, true, true, true},
		{"NoTagAtVI", 0, 1, true, true, true, true, true, true, true},
		{"NoTagAtRegion", 1, 0, true, true, true, true, true, true, true},
		{"OtherTag", 1, 2, true, true, true, true, false, false, false},
		{"VIWriteOff", 1, 1, false, true, true, true, true, false, true},
		{"VIReadOff", 1, 1, true, false, true, true, true, true, false},
		{"RegionWriteOff", 1, 1, true, true, false, true, true, false, true},
		{"RegionReadOff", 1, 1, true, true, true, false, true, true, false},
		{"AllOff", 1, 1, false, false, false, false, true, false, false},
	} {
		e.sub(c.name, func(e *env) {
			var tags [3]*vi.Ptag
			for i := 1; i < 3; i++ {
				t, err := e.nics[1].CreatePtag()
				e.must(err)
				tags[i] = t
			}
			target := e.regionOf(1, make([]byte, 100), vi.MemAttributes{
				Ptag: tags[c.region], EnableRDMAWrite: c.regionWrite, EnableRDMARead: c.regonRead && e.canRead(),
			})
			pair := func() *pair {
				// All enables of the initiator are off. The initiator's enables do not restrict the
				// initiator's own operations.
				p := &pair{env: e}
				p.v[0] = e.vi(0, func(a *vi.Attributes) { a.EnableRDMAWrite, a.EnableRDMARead = false, false })
				p.v[1] = e.vi(1, func(a *vi.Attributes) {
					a.Ptag, a.EnableRDMAWrite, a.EnableRDMARead = tags[c.vi], c.viWrite, c.viRead && e.canRead()
				})
				p.mem = [2]*vi.Region{e.region(0, 4096), target}
				p.connect()
				return p
			}
			if got := pair().write(target.Address(), target.Handle(), 10); got != c.write {
				e.Errorf("write allowed: %t, want %t", got, c.write)
			}
			if e.canRead() {
				if got := pair().read(target.Address(), target.Handle(), 10); got != c.read {
					e.Errorf("read allowed: %t, want %t", got, c.read)
				}
			}
			want := vi.Status(0)
			if !c.local {
				want = vi.StatusProtectionError
			}
			p := pair()
			r := p.postRecv(1, vi.NewRecv(p.seg(1, 0, 10)))
			p.post(0, vi.NewSend(p.seg(0, 0, 10)))
			p.wantStatus("scatter", p.reapRecv(p.v[1], r), vi.StatusOpReceive|want)
			p = pair()
			p.postRecv(0, vi.NewRecv(p.seg(0, 0, 10)))
			s := p.post(1, vi.NewSend(p.seg(1, 0, 10)))
			p.wantStatus("gather", p.reapSend(p.v[1], s), vi.StatusOpSend|want)
		})
	}
}

// testAttributeChange: a change of tags and enables applies to later operations. [VIA-1.5-3]
// [VIA-6.4-4] [VIA-6.4-2]
func testAttributeChange(e *env) {
	nic := e.nics[1]
	tag, err := nic.CreatePtag()
	e.must(err)
	other, err := nic.CreatePtag()
	e.must(err)
	open := vi.MemAttributes{Ptag: tag, EnableRDMAWrite: true, EnableRDMARead: e.canRead()}
	r := e.regionOf(1, make([]byte, 100), open)
	pair := func() *pair {
		p := &pair{env: e}
		p.v[0], p.v[1] = e.vi(0), e.vi(1, func(a *vi.Attributes) { a.Ptag = tag })
		p.mem = [2]*vi.Region{e.region(0, 4096), r}
		p.connect()
		return p
	}
	p := pair()
	check := func(what string, a vi.MemAttributes, want bool) {
		e.Helper()
		e.must(nic.SetMemAttributes(r, a))
		got, err := nic.QueryMem(r)
		if err != nil || got != a {
			e.Errorf("%s: attributes %+v, %v", what, got, err)
		}
		if got := p.write(r.Address(), r.Handle(), 10); got != want {
			e.Errorf("%s: write allowed: %t", what, got)
		}
		if !want {
			p = pair()
		}
	}
	check("as registered", open, true)
	closed := open
	closed.EnableRDMAWrite = false
	check("write off", closed, false)
	check("write on", open, true)
	moved := open
	moved.Ptag = other
	check("another tag", moved, false)
	e.wantErr("destroying a tag in use", nic.DestroyPtag(other), vi.ErrResource)
	check("the first tag", open, true)
	e.must(nic.DestroyPtag(other))
	e.wantErr("destroying it again", nic.DestroyPtag(other), vi.ErrInvalidParameter)
	e.wantErr("a destroyed tag", nic.SetMemAttributes(r, moved), vi.ErrInvalidPtag)
	e.wantErr("a tag of another NIC", e.nics[0].DestroyPtag(tag), vi.ErrInvalidParameter)
	_, err = nic.RegisterMem(make([]byte, 1), vi.MemAttributes{Ptag: other})
	e.wantErr("registering with a destroyed tag", err, vi.ErrInvalidPtag)
	if e.nics[0].Query().RDMAReadSupport == 0 {
		_, err = nic.RegisterMem(make([]byte, 1), vi.MemAttributes{EnableRDMARead: true})
		e.wantErr("read where there is none", err, vi.ErrInvalidRDMARead)
	}
	// A change of the tag of a VI applies to later operations too.
	p.must(p.v[1].Disconnect())
	p.waitState(p.v[0], vi.Error)
	p.must(p.v[0].Disconnect())
	fresh, err := nic.CreatePtag()
	e.must(err)
	a := e.attrs()
	a.Ptag = fresh
	e.must(p.v[1].SetAttributes(a))
	p.drain(p.v[0])
	p.drain(p.v[1])
	e.async[0].take()
	e.async[1].take()
	p.connect()
	if p.write(r.Address(), r.Handle(), 10) {
		e.Error("write allowed after the VI's tag changed")
	}
	e.wantErr("the tag the VI has now", nic.DestroyPtag(fresh), vi.ErrResource)
}

func (r *recorder) take() {
	r.mu.Lock()
	r.events = nil
	r.mu.Unlock()
}

// testRegistration registers and deregisters regions, with valid and invalid attributes.
// [VIA-1.4-1] [VIA-1.4-2] [VIA-1.4-4] [VIA-1.4-5] [VIA-1.4-6] [VIA-1.1-5] [VIA-6.4-3]
func testRegistration(e *env) {
	nic := e.nics[1]
	buf := make([]byte, 100)
	for _, off := range []int{0, 1, 3, 7} {
		for n := 1; n <= 5; n++ {
			r := e.regionOf(1, buf[off:off+n], vi.MemAttributes{})
			if r.Handle() == 0 || r.Len() != n || &r.Bytes()[0] != &buf[off] {
				e.Errorf("region of %d bytes at %d: handle %d", n, off, r.Handle())
			}
			e.must(nic.DeregisterMem(r))
			e.wantErr("deregistering it again", nic.DeregisterMem(r), vi.ErrInvalidParameter)
			_, err := nic.QueryMem(r)
			e.wantErr("querying it", err, vi.ErrInvalidParameter)
			e.wantErr("changing it", nic.SetMemAttributes(r, vi.MemAttributes{}), vi.ErrInvalidParameter)
		}
	}
	_, err := nic.RegisterMem(nil, vi.MemAttributes{})
	e.wantErr("registering nothing", err, vi.ErrInvalidParameter)
	e.wantErr("deregistering nothing", nic.DeregisterMem(nil), vi.ErrInvalidParameter)
	e.wantErr("a region of another NIC", e.nics[0].DeregisterMem(e.region(1, 1)), vi.ErrInvalidParameter)

	// The same memory has two handles here, each with separate rights.
	shut := e.regionOf(1, buf, vi.MemAttributes{})
	open := e.regionOf(1, buf[10:90], vi.MemAttributes{EnableRDMAWrite: true})
	if shut.Handle() == open.Handle() {
		e.Error("two regions with one handle")
	}
	if p := e.connected(); p.write(shut.Address()+20, shut.Handle(), 10) {
		e.Error("write allowed by the region that is shut")
	}
	if p := e.connected(); !p.write(shut.Address()+20, open.Handle(), 10) {
		e.Error("write refused by the region that is open")
	}
	e.must(nic.DeregisterMem(shut))
	if p := e.connected(); !p.write(open.Address(), open.Handle(), 10) {
		e.Error("deregistering one hurt the other")
	}
	// A released handle is not reused soon.
	old := map[vi.MemHandle]bool{}
	for range 100 {
		r := e.regionOf(1, buf, vi.MemAttributes{})
		if old[r.Handle()] {
			e.Fatal("a handle was given out again at once")
		}
		old[r.Handle()] = true
		e.must(nic.DeregisterMem(r))
	}
	e.must(nic.DeregisterMem(open))
	if p := e.connected(); p.write(open.Address(), open.Handle(), 10) {
		e.Error("write allowed by a region that is gone")
	}
}

// testDeregister repeatedly deregisters a region while the peer reads and writes. Accesses in
// progress end before DeregisterMem returns, and no access follows; the race detector would report
// a later access. [VIA-8.3-16] [VIA-6.4-3]
func testDeregister(e *env) {
	size := min(20000, int(e.mtu()))
	buf := [2][]byte{make([]byte, 2*size), make([]byte, 2*size)} // concurrent Writes and Reads use one half each
	for round := range 6 {
		p := e.connected()
		attrs := vi.MemAttributes{EnableRDMAWrite: true, EnableRDMARead: e.canRead()}
		r := [2]*vi.Region{e.regionOf(0, buf[0], attrs), e.regionOf(1, buf[1], attrs)}
		var wg sync.WaitGroup
		wg.Go(func() {
			for i := range 40 {
				d := vi.NewRDMAWrite(r[1].Remote(0), r[0].Segment(0, size))
				if i%2 == 1 && e.canRead() {
					d = vi.NewRDMARead(r[1].Remote(size), r[0].Segment(size, size))
				}
				if err := p.v[0].PostSend(d); err != nil {
					e.Error(err)
				}
				if i%4 == 3 {
					p.v[0].SendWait(p.ctx())
				}
			}
		})
		side := round % 2
		for range round {
			p.v[0].Poll()
		}
		e.must(e.nics[side].DeregisterMem(r[side]))
		clear(buf[side])
		wg.Wait()
		p.drain(p.v[0])
		if !isZero(buf[side]) {
			e.Error("memory was written after it was deregistered")
		}
		for side, v := range p.v {
			e.must(v.Disconnect())
			if side != round%2 {
				e.must(e.nics[side].DeregisterMem(r[side]))
			}
		}
		for _, rec := range e.async {
			rec.take()
		}
	}
}
