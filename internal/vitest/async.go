package vitest

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"viaduct/vi"
)

// testErrorHandler: errors are reported one at a time and in order. The handler can be replaced,
// and the default restored. [VIA-8.3-19] [VIA-5.1-1] [VIA-5.4-2]
func testErrorHandler(e *env) {
	var log syncBuffer
	nic := e.open(0, &vi.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	var vis []*vi.VI
	for range 20 {
		v, err := nic.CreateVI(e.attrs(), nil, nil)
		e.must(err)
		vis = append(vis, v)
	}
	running := make(chan struct{}, 1)
	got := make(chan *vi.VI, len(vis))
	nic.ErrorCallback(func(d vi.ErrorDescriptor) {
		select {
		case running <- struct{}{}:
		default:
			e.Error("two errors at a time")
		}
		if d.NIC != nic || d.Code != vi.ErrorPostDesc || d.Resource != vi.ResourceDescriptor || d.Descriptor == nil {
			e.Errorf("error %+v", d)
		}
		<-running
		got <- d.VI
	})
	for _, v := range vis {
		v.ReportPostError(vi.NewSend()) // [VIA-5.2-2] [VIA-5.3-2]
		if s := v.State(); s != vi.Error {
			e.Errorf("state %v after a post error", s)
		}
	}
	for i, v := range vis {
		select {
		case d := <-got:
			if d != v {
				e.Errorf("error %d is of another VI", i)
			}
		case <-time.After(e.patience()):
			e.Fatal("no error")
		}
	}
	nic.ErrorCallback(nil) // the default handler logs a line
	before := log.String()
	e.must(vis[0].Disconnect())
	vis[0].ReportPostError(vi.NewSend())
	e.eventually("a line in the log",
		func() bool { return strings.Contains(log.String()[len(before):], vi.ErrorPostDesc.String()) })
	// An error of a NIC is not reported to the handler of another NIC.
	e.claim(0, nil)
	e.claim(1, nil)
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(b)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// testTeardownInHandler disconnects and destroys the VI, destroys the completion queue and closes
// the NIC, all inside the error handler. [VIA-5.4-1]
func testTeardownInHandler(e *env) {
	nic := e.open(0, nil)
	cq, err := nic.CreateCQ(4)
	e.must(err)
	v, err := nic.CreateVI(e.attrs(), nil, cq)
	e.must(err)
	other := e.vi(1)
	at := e.address(1)
	ctx := e.ctx()
	accepted := e.accept(ctx, at, other)
	done := make(chan error, 1)
	nic.ErrorCallback(func(d vi.ErrorDescriptor) {
		if d.Code != vi.ErrorConnLost {
			return
		}
		s, _, _, _ := d.VI.Query()
		if s != vi.Error { // [VIA-5.2-3]
			e.Errorf("state %v in the handler", s)
		}
		err := d.VI.Disconnect()
		for {
			if r, _ := d.VI.RecvDone(); r == nil {
				break
			}
		}
		done <- errors.Join(err, d.VI.Destroy(), cq.Destroy(), nic.Close())
	})
	for range 3 {
		e.must(v.PostRecv(vi.NewRecv()))
	}
	e.must(e.request(ctx, v, e.Address(nic, []byte("me")), at))
	e.must(<-accepted)
	e.must(other.Disconnect())
	select {
	case err := <-done:
		e.must(err)
	case <-time.After(e.patience()):
		e.Fatal("tearing down inside the handler does not end")
	}
}

// testLimits uses a NIC up to each limit, and frees everything again. [VIA-8.3-2] [VIA-8.2-1]
func testLimits(e *env) {
	n := e.open(0, nil)
	a := n.Query()
	buf := make([]byte, 1)
	tries := []struct {
		name  string
		limit int
		make  func() (release func() error, err error)
	}{
		{"MaxPtags", a.MaxPtags, func() (func() error, error) {
			t, err := n.CreatePtag()
			return func() error { return n.DestroyPtag(t) }, err
		}},
		{"MaxRegisterRegions", a.MaxRegisterRegions, func() (func() error, error) {
			r, err := n.RegisterMem(buf, vi.MemAttributes{})
			return func() error { return n.DeregisterMem(r) }, err
		}},
		{"MaxVI", a.MaxVI, func() (func() error, error) {
			v, err := n.CreateVI(e.attrs(), nil, nil)
			return func() error { return v.Destroy() }, err
		}},
		{"MaxCQ", a.MaxCQ, func() (func() error, error) {
			q, err := n.CreateCQ(1)
			return func() error { return q.Destroy() }, err
		}},
	}
	for _, c := range tries {
		if c.limit <= 0 {
			e.Errorf("%s is %d", c.name, c.limit)
		}
		if c.limit > 1<<17 {
			continue // package vi tests this with a NIC that has a lower limit
		}
		var release []func() error
		for i := range c.limit {
			r, err := c.make()
			if err != nil {
				e.Fatalf("%s: number %d of %d: %v", c.name, i, c.limit, err)
			}
			release = append(release, r)
		}
		_, err := c.make()
		e.wantErr(c.name+" and one more", err, vi.ErrResource)
		e.must(release[0]())
		r, err := c.make()
		if err != nil {
			e.Fatalf("%s: after one was released: %v", c.name, err)
		}
		release[0] = r
		for _, r := range release {
			e.must(r())
		}
	}
	if a.MaxRegisterBlockBytes == 0 || a.MaxRegisterBytes == 0 || a.MaxDescriptorsPerQueue == 0 ||
		a.MaxSegmentsPerDesc == 0 || a.MaxTransferSize == 0 || a.NativeMTU == 0 || a.MaxCQEntries == 0 {
		e.Errorf("a limit is 0: %+v", a)
	}
	if a.MaxSegmentsPerDesc < 252 { // [VIA-3.4-5]
		e.Errorf("%d segments in a descriptor", a.MaxSegmentsPerDesc)
	}
	// A VI can use RDMA Read exactly at the levels reported by the NIC. [VIA-4.3-2]
	if a.RDMAReadSupport&vi.UnreliableDelivery != 0 || a.RDMAReadSupport&^a.ReliabilityLevels != 0 {
		e.Errorf("RDMA Read at %v of %v", a.RDMAReadSupport, a.ReliabilityLevels)
	}
	for _, level := range []vi.Reliability{vi.UnreliableDelivery, vi.ReliableDelivery, vi.ReliableReception} {
		if a.ReliabilityLevels&level == 0 {
			continue
		}
		v, err := n.CreateVI(vi.Attributes{Reliability: level, EnableRDMARead: true}, nil, nil)
		if (err == nil) != (a.RDMAReadSupport&level != 0) {
			e.Errorf("a VI with RDMA Read at %v: %v, supported at %v", level, err, a.RDMAReadSupport)
		}
		if err == nil {
			e.must(v.Destroy())
		}
	}
	if len(a.LocalAddress) == 0 || a.MaxDiscriminatorLen < 1 {
		e.Errorf("address %x, discriminators of %d bytes", a.LocalAddress, a.MaxDiscriminatorLen)
	}
}

// testNIC: two NICs of one device are independent. [VIA-1.1-1] [VIA-1.1-2]
func testNIC(e *env) {
	n := e.open(0, nil)
	if n == e.nics[0] {
		e.Fatal("opening twice gave one NIC")
	}
	v, err := n.CreateVI(e.attrs(), nil, nil)
	e.must(err)
	tag, err := n.CreatePtag()
	e.must(err)
	a := e.attrs()
	a.Ptag = tag
	_, err = e.nics[0].CreateVI(a, nil, nil)
	e.wantErr("the tag of another NIC", err, vi.ErrInvalidPtag)
	_, err = e.nics[0].RegisterMem(make([]byte, 1), vi.MemAttributes{Ptag: tag})
	e.wantErr("the tag of another NIC", err, vi.ErrInvalidPtag)
	e.wantErr("the tag of another NIC", e.nics[0].DestroyPtag(tag), vi.ErrInvalidParameter)
	// A VI of a NIC can't use a region of the other NIC.
	p := &pair{env: e, v: [2]*vi.VI{e.vi(0), e.vi(1)}, mem: [2]*vi.Region{e.region(0, memSize), e.region(1, memSize)}}
	foreign, err := n.RegisterMem(make([]byte, 100), vi.MemAttributes{})
	e.must(err)
	p.connect()
	p.postRecv(1, vi.NewRecv(p.seg(1, 0, 100)))
	d := p.post(0, vi.NewSend(foreign.Segment(0, 10)))
	p.wantStatus("a send of another NIC's memory", p.reapSend(p.v[0], d), vi.StatusOpSend|vi.StatusProtectionError)
	e.must(v.Destroy())

	_, err = vi.Open(nil, "", nil)
	e.wantErr("no provider", err, vi.ErrInvalidParameter)

	strict := e.open(0, &vi.Config{StrictPtags: true})
	_, err = strict.CreateVI(e.attrs(), nil, nil)
	e.wantErr("no tag on a strict NIC", err, vi.ErrInvalidPtag)
	_, err = strict.RegisterMem(make([]byte, 1), vi.MemAttributes{})
	e.wantErr("no tag on a strict NIC", err, vi.ErrInvalidPtag)
}

// testNames: the name service finds names and addresses, and fails for unknown names and addresses.
// [VIA-8.3-20] [VIA-6.4-28]
func testNames(e *env) {
	host := e.Address(e.nics[1], nil).Host
	text := e.nics[0].Device().FormatHost(host)
	n := e.open(0, &vi.Config{Hosts: []byte("# a comment\n\n" + text + "\tdatabase db # and more\n" +
		text + " spare db\n")})
	ctx := e.ctx()
	_, err := n.NSGetHostByName(ctx, "db", 0)
	e.wantErr("a lookup before NSInit", err, vi.ErrNameService)
	_, err = n.NSGetHostByAddr(ctx, host)
	e.wantErr("a lookup before NSInit", err, vi.ErrNameService)
	e.must(n.NSInit())
	e.must(n.NSInit())
	for name, count := range map[string]int{"database": 1, "DB": 2, "spare": 1, text: 1} {
		for i := range count {
			got, err := n.NSGetHostByName(ctx, name, i)
			if err != nil || !bytes.Equal(got, host) {
				e.Errorf("address %d of %s: %x, %v, want %x", i, name, got, err, host)
			}
		}
		for _, i := range []int{count, count + 1, -1} {
			_, err := n.NSGetHostByName(ctx, name, i)
			e.wantErr("an index past the end", err, vi.ErrNameService)
		}
	}
	// A label of more than 63 bytes is no host name, so no resolver is asked.
	_, err = n.NSGetHostByName(ctx, strings.Repeat("n", 64)+".invalid", 0)
	e.wantErr("an unknown name", err, vi.ErrNameService)
	if name, err := n.NSGetHostByAddr(ctx, host); err != nil || name != "database" {
		e.Errorf("name of %x: %q, %v", host, name, err)
	}
	if got := n.KnownHosts(); len(got) != 2 || !bytes.Equal(got[0], host) {
		e.Errorf("known hosts %x", got)
	}
	e.must(n.NSShutdown())
	_, err = n.NSGetHostByName(ctx, "db", 0)
	e.wantErr("a lookup after NSShutdown", err, vi.ErrNameService)
	for _, bad := range []string{"???!", text, "???! name"} {
		n := e.open(0, &vi.Config{Hosts: []byte(bad)})
		e.wantErr("hosts file "+bad, n.NSInit(), vi.ErrNameService)
	}
}

// testThreads makes all calls concurrently on a single connection. The race detector reports
// faults. [VIA-6.7-1]
func testThreads(e *env) {
	p := e.connected()
	stop, end := context.WithTimeout(context.Background(), 60*time.Millisecond)
	defer end()
	var wg sync.WaitGroup
	loop := func(f func()) {
		wg.Go(func() {
			for stop.Err() == nil {
				f()
				time.Sleep(20 * time.Microsecond)
			}
		})
	}
	for side, v := range p.v {
		loop(func() { v.PostSend(vi.NewRDMAWrite(p.mem[1-side].Remote(0))) })
		loop(func() {
			v.PostRecv(vi.NewRecv(p.seg(side, 0, 100)))
			p.v[1-side].PostSend(vi.NewSend())
		})
		for range 2 {
			loop(func() { v.SendWait(stop) })
			loop(func() { v.RecvDone() })
		}
		loop(func() { v.Query(); v.State(); v.RemoteAddress() })
		loop(func() { v.SetUserData(v.UserData()) })
		loop(func() { v.Poll(); v.Unpoll() })
		loop(func() { v.SetAttributes(e.attrs()) })
		loop(func() { v.SendNotify(func(*vi.Descriptor) {}) })
		loop(func() {
			r, err := e.nics[side].RegisterMem(make([]byte, 10), vi.MemAttributes{})
			if err == nil {
				e.nics[side].DeregisterMem(r)
			}
		})
		loop(func() {
			e.nics[side].SetMemAttributes(p.mem[side], vi.MemAttributes{EnableRDMAWrite: true})
			e.nics[side].QueryMem(p.mem[side])
		})
		loop(func() {
			// This call is refused, because Guarded can't be changed.
			e.nics[side].SetMemAttributes(p.mem[side], vi.MemAttributes{EnableRDMAWrite: true, Guarded: true})
		})
	}
	time.AfterFunc(40*time.Millisecond, func() { p.v[0].Disconnect() })
	wg.Wait()
	for side, v := range p.v {
		e.must(v.Disconnect())
		for {
			d, _ := v.SendDone()
			r, _ := v.RecvDone()
			if d == nil && r == nil {
				break
			}
		}
		e.async[side].take()
	}
}
