package vitest

import (
	"context"
	"errors"
	"time"

	"viaduct/vi"
)

// testCreate: a new VI is Idle and has the requested attributes. [VIA-2.1-1] [VIA-2.2-1]
// [VIA-2.2-14] [VIA-4.5-1]
func testCreate(e *env) {
	v := e.vi(0)
	s, a, sendEmpty, recvEmpty := v.Query()
	if s != vi.Idle || !sendEmpty || !recvEmpty {
		e.Errorf("a new VI: state %v, queues empty %t, %t", s, sendEmpty, recvEmpty)
	}
	if want := e.attrs(); a.Reliability != want.Reliability || a.MaxTransferSize != want.MaxTransferSize ||
		!a.EnableRDMAWrite {
		e.Errorf("attributes %+v, want %+v", a, want)
	}
	e.must(v.Destroy())
	v = e.vi(0, func(a *vi.Attributes) { a.MaxTransferSize = 0 })
	if _, a, _, _ := v.Query(); a.MaxTransferSize != e.nics[0].Query().MaxTransferSize {
		e.Errorf("default transfer size %d", a.MaxTransferSize)
	}
	// CreateVI checks the attributes. [VIA-6.4-5]
	nic := e.nics[0].Query()
	for _, c := range []struct {
		name string
		set  func(*vi.Attributes)
		want error
	}{
		{"no level", func(a *vi.Attributes) { a.Reliability = 0 }, vi.ErrInvalidReliability},
		{"two levels", func(a *vi.Attributes) { a.Reliability = 3 }, vi.ErrInvalidReliability},
		{"unknown level", func(a *vi.Attributes) { a.Reliability = 8 }, vi.ErrInvalidReliability},
		{"transfer size", func(a *vi.Attributes) { a.MaxTransferSize = nic.MaxTransferSize + 1 }, vi.ErrInvalidMTU},
		{"read at unreliable delivery", func(a *vi.Attributes) { a.Reliability, a.EnableRDMARead = vi.UnreliableDelivery, true }, vi.ErrInvalidRDMARead},
		{"foreign tag", func(a *vi.Attributes) { a.Ptag, _ = e.nics[1].CreatePtag() }, vi.ErrInvalidPtag},
	} {
		if c.want == vi.ErrInvalidMTU && nic.MaxTransferSize == ^uint32(0) {
			continue
		}
		if c.want == vi.ErrInvalidRDMARead && nic.ReliabilityLevels&vi.UnreliableDelivery == 0 {
			continue
		}
		a := e.attrs()
		c.set(&a)
		_, err := e.nics[0].CreateVI(a, nil, nil)
		e.wantErr("creating with "+c.name, err, c.want)
		e.wantErr("setting "+c.name, v.SetAttributes(a), c.want)
	}
}

// pending returns a VI of side 0 in state Connect Pending.
func (e *env) pending() *vi.VI {
	e.Helper()
	v := e.vi(0)
	e.must(v.ConnectPeerRequest(e.address(0), e.address(1), time.Minute))
	if s := v.State(); s != vi.ConnectPending {
		e.Fatalf("state %v after a peer request", s)
	}
	return v
}

// broken returns a pair whose v[0] is in state Error.
func (e *env) broken() *pair {
	e.Helper()
	p := e.connected()
	e.must(p.v[1].Disconnect())
	e.waitState(p.v[0], vi.Error)
	e.claim(0, p.v[0], vi.ErrorConnLost)
	return p
}

// inState returns a VI of side 0 in state s.
func (e *env) inState(s vi.State) *vi.VI {
	switch s {
	case vi.Connected:
		return e.connected().v[0]
	case vi.ConnectPending:
		return e.pending()
	case vi.Error:
		return e.broken().v[0]
	}
	return e.vi(0)
}

// testStates: in each state exactly the allowed calls succeed. [VIA-8.3-3]
func testStates(e *env) {
	for _, s := range []vi.State{vi.Idle, vi.Connected, vi.ConnectPending, vi.Error} {
		e.sub(s.String(), func(e *env) { e.operations(s) })
	}
}

func (e *env) operations(s vi.State) {
	v := e.inState(s)
	mem := e.region(0, 4096)
	if got, _, sendEmpty, recvEmpty := v.Query(); got != s || !sendEmpty || !recvEmpty {
		e.Errorf("query: %v, queues empty %t %t", got, sendEmpty, recvEmpty) // [VIA-2.3-7]
	}
	// Reaping works in every state. [VIA-2.3-3]
	for name, f := range map[string]func() (*vi.Descriptor, error){
		"SendDone": v.SendDone, "RecvDone": v.RecvDone,
		"SendWait": func() (*vi.Descriptor, error) { return v.SendWait(e.ctx()) },
		"RecvWait": func() (*vi.Descriptor, error) { return v.RecvWait(e.ctx()) },
	} {
		if d, err := f(); d != nil || !errors.Is(err, vi.ErrQueueEmpty) {
			e.Errorf("%s on an empty queue: %v, %v", name, d, err)
		}
	}
	// Connecting needs state Idle. [VIA-2.3-4] [VIA-2.2-10]
	if s != vi.Idle {
		_, err := v.ConnectRequest(e.ctx(), e.address(0), e.address(1))
		e.wantErr("ConnectRequest", err, vi.ErrInvalidState)
		e.wantErr("ConnectPeerRequest", v.ConnectPeerRequest(e.address(0), e.address(1), time.Second),
			vi.ErrInvalidState)
		r, other, result := e.incoming()
		e.wantErr("Accept", r.Accept(e.ctx(), v), vi.ErrInvalidState)
		e.must(r.Reject()) // the request is still open
		e.wantErr("the requester", <-result, vi.ErrReject)
		e.must(other.Destroy())
		e.wantErr("SetAttributes", v.SetAttributes(e.attrs()), vi.ErrInvalidState) // [VIA-2.3-6]
		e.wantErr("Destroy", v.Destroy(), vi.ErrInvalidState)                      // [VIA-2.2-15]
	} else {
		e.must(v.SetAttributes(e.attrs()))
	}
	if got := v.State(); got != s {
		e.Fatalf("state %v after calls that must change nothing", got)
	}
	// A receive is posted in every state; it completes as flushed in state Error. [VIA-2.3-1]
	r := vi.NewRecv(mem.Segment(0, 10))
	e.must(v.PostRecv(r))
	if s == vi.Error {
		e.wantStatus("a receive in Error", e.reapRecv(v, r), vi.StatusOpReceive|vi.StatusFlushed)
	} else if d, err := v.RecvDone(); d != nil || !errors.Is(err, vi.ErrNotDone) {
		e.Errorf("a receive without a message: %v", err)
	}
	// A send completes as flushed unless the VI is Connected. [VIA-2.3-2] [VIA-2.2-11]
	if s != vi.Connected {
		d := vi.NewSend(mem.Segment(0, 10))
		e.must(v.PostSend(d))
		if _, _, empty, _ := v.Query(); empty {
			e.Error("a completed descriptor does not count as in the queue") // [VIA-6.4-6]
		}
		got, err := v.SendDone() // the send has completed at once
		if got != d || !errors.Is(err, vi.ErrDescriptor) {
			e.Errorf("a send in %v: %v", s, err)
		}
		e.wantStatus("a send", d.Status(), vi.StatusOpSend|vi.StatusFlushed)
	}
	// Disconnect works in every state and flushes the queues. [VIA-2.3-5] [VIA-2.2-7] [VIA-2.2-8]
	// [VIA-2.2-12] [VIA-2.2-13]
	e.must(v.Disconnect())
	if got := v.State(); got != vi.Idle {
		e.Errorf("state %v after Disconnect", got)
	}
	if s != vi.Error {
		if d, _ := v.RecvDone(); d != r {
			e.Error("Disconnect did not flush the receive at once")
		}
		e.wantStatus("the receive", r.Status(), vi.StatusOpReceive|vi.StatusFlushed)
	}
	e.must(v.Disconnect()) // a second call succeeds too
	e.must(v.Destroy())
	e.stale(v)
}

// incoming returns a connection request that side 0 has received from a VI of side 1. The channel
// gets the result at side 1.
func (e *env) incoming(opts ...func(*vi.Attributes)) (*vi.ConnRequest, *vi.VI, <-chan error) {
	e.Helper()
	v := e.vi(1, opts...)
	at, from := e.address(0), e.address(1)
	result := make(chan error, 1)
	ctx := e.ctx()
	go func() { result <- e.request(ctx, v, from, at) }()
	r, err := e.nics[0].ConnectWait(ctx, at)
	e.must(err)
	return r, v, result
}

// stale checks that every call of a destroyed VI returns an error and has no effect. [VIA-8.3-1]
func (e *env) stale(v *vi.VI) {
	e.Helper()
	ctx := e.ctx()
	_, connect := v.ConnectRequest(ctx, e.address(0), e.address(1))
	_, peerDone := v.ConnectPeerDone()
	_, sendDone := v.SendDone()
	_, recvDone := v.RecvDone()
	_, sendWait := v.SendWait(ctx)
	_, recvWait := v.RecvWait(ctx)
	_, sends := v.PostSends([]*vi.Descriptor{vi.NewSend()})
	_, recvs := v.PostRecvs([]*vi.Descriptor{vi.NewRecv()})
	for name, err := range map[string]error{
		"Destroy": v.Destroy(), "Disconnect": v.Disconnect(),
		"PostSend": v.PostSend(vi.NewSend()), "PostRecv": v.PostRecv(vi.NewRecv()),
		"PostSends": sends, "PostRecvs": recvs,
		"SendDone": sendDone, "RecvDone": recvDone, "SendWait": sendWait, "RecvWait": recvWait,
		"SendNotify": v.SendNotify(func(*vi.Descriptor) {}), "RecvNotify": v.RecvNotify(func(*vi.Descriptor) {}),
		"ConnectRequest": connect, "ConnectPeerRequest": v.ConnectPeerRequest(e.address(0), e.address(1), 0),
		"SetAttributes": v.SetAttributes(e.attrs()), "ConnectPeerDone": peerDone,
	} {
		if !errors.Is(err, vi.ErrClosed) || !errors.Is(err, vi.ErrInvalidParameter) {
			e.Errorf("%s on a destroyed VI: %v", name, err)
		}
	}
}

// testCloseSequence closes in the order VI programs usually follow: disconnect, drain both queues,
// destroy VI and completion queue, with some steps twice. [VIA-2.2-17] [VIA-2.3-9]
func testCloseSequence(e *env) {
	cq, err := e.nics[0].CreateCQ(8)
	e.must(err)
	v, err := e.nics[0].CreateVI(e.attrs(), nil, cq)
	e.must(err)
	other := e.vi(1)
	e.must(e.connectVIs(v, other))
	mem, there := e.region(0, 4096), e.region(1, 4096)
	var recvs []*vi.Descriptor
	for range 5 {
		recvs = append(recvs, vi.NewRecv(mem.Segment(0, 100)))
	}
	_, err = v.PostRecvs(recvs)
	e.must(err)
	e.must(other.PostSend(vi.NewSend(there.Segment(0, 50))))
	e.wantStatus("send", e.reapSend(other, nil), vi.StatusOpSend)
	first, err := cq.Wait(e.ctx()) // one descriptor has completed and was not reaped
	e.must(err)
	if first.VI != v || !first.Recv {
		e.Errorf("entry %+v", first)
	}

	e.must(v.Disconnect())
	e.must(v.Disconnect())
	e.wantErr("destroying with full queues", v.Destroy(), vi.ErrResource) // [VIA-2.2-15]
	e.wantErr("destroying a queue in use", cq.Destroy(), vi.ErrResource)  // [VIA-6.4-24]
	if s := v.State(); s != vi.Idle {
		e.Errorf("state %v", s)
	}
	for i, want := range recvs {
		d, err := v.RecvDone()
		if d != want {
			e.Fatalf("receive %d: %v", i, err)
		}
		if i == 0 { // this one completed before Disconnect: it is first in order, with its own status
			e.wantStatus("the message", d.Status(), vi.StatusOpReceive)
			continue
		}
		e.wantStatus("a flushed receive", d.Status(), vi.StatusOpReceive|vi.StatusFlushed)
		if c, err := cq.Done(); err != nil || c != first {
			e.Errorf("entry of a flushed receive: %+v, %v", c, err)
		}
	}
	if d, err := v.RecvDone(); d != nil || !errors.Is(err, vi.ErrQueueEmpty) {
		e.Errorf("after the last: %v", err)
	}
	if d, err := v.SendDone(); d != nil || !errors.Is(err, vi.ErrQueueEmpty) {
		e.Errorf("send queue: %v", err)
	}
	e.must(v.Destroy())
	e.must(cq.Destroy())
}

// testReuse connects the same pair of VIs repeatedly. The sides take turns in disconnecting.
// [VIA-2.2-12]
func testReuse(e *env) {
	p := e.unconnected()
	for i := range 4 {
		p.connect()
		p.works()
		p.must(p.v[i%2].Disconnect())
		p.waitState(p.v[1-i%2], vi.Error)
		p.claim(1-i%2, p.v[1-i%2], vi.ErrorConnLost)
		p.must(p.v[1-i%2].Disconnect())
	}
}

// testLateDelivery: the message of a completed send is delivered even if the sender disconnects at
// once. [VIA-6.4-20]
func testLateDelivery(e *env) {
	p := e.connected()
	const n = 20
	size := int(p.mtu())
	for i := range n {
		p.postRecv(1, vi.NewRecv(p.seg(1, 4096*i, 4096), p.seg(1, 0, size)))
	}
	for i := range n {
		p.fill(0, 0, size, uint64(i))
		d := p.post(0, vi.NewSend(p.seg(0, 0, size)).WithImmediate(uint32(i)))
		p.wantStatus("send", p.reapSend(p.v[0], d), vi.StatusOpSend)
	}
	p.must(p.v[0].Disconnect())
	for i := range n {
		d, err := p.v[1].RecvWait(e.ctx())
		if err != nil {
			if !e.reliable() {
				return
			}
			e.Fatalf("message %d: %v", i, err)
		}
		if d.ImmediateData != uint32(i) || int(d.Length) != size {
			e.Fatalf("message %d of %d bytes, want %d of %d", d.ImmediateData, d.Length, i, size)
		}
	}
	e.waitState(p.v[1], vi.Error)
}

// testCloseNIC: closing a NIC has the same effect on its connections as Disconnect. [VIA-6.4-1]
// [VIA-6.7-2]
func testCloseNIC(e *env) {
	nic := e.open(0, nil)
	cq, err := nic.CreateCQ(10)
	e.must(err)
	v, err := nic.CreateVI(e.attrs(), nil, nil)
	e.must(err)
	idle, err := nic.CreateVI(e.attrs(), nil, cq)
	e.must(err)
	pending, err := nic.CreateVI(e.attrs(), nil, nil)
	e.must(err)
	buf := make([]byte, 100)
	mem, err := nic.RegisterMem(buf, vi.MemAttributes{})
	e.must(err)
	other := e.vi(1)
	at := e.address(1)
	ctx := e.ctx()
	accepted := e.accept(ctx, at, other)
	e.must(e.request(ctx, v, e.Address(nic, []byte("x")), at))
	e.must(<-accepted)
	posted := vi.NewRecv(mem.Segment(0, 100))
	e.must(v.PostRecv(posted))
	e.must(pending.ConnectPeerRequest(e.Address(nic, []byte("y")), e.address(1), 0))

	waits := make(chan error, 4)
	go func() {
		d, err := v.RecvWait(context.Background())
		if d == posted && d.Status()&vi.StatusFlushed != 0 {
			err = vi.ErrClosed // the expected result
		}
		waits <- err
	}()
	go func() { _, err := cq.Wait(context.Background()); waits <- err }()
	go func() { _, err := nic.ConnectWait(context.Background(), e.Address(nic, []byte("z"))); waits <- err }()
	go func() {
		_, err := pending.ConnectPeerWait(context.Background())
		if errors.Is(err, vi.ErrInvalidState) {
			err = vi.ErrClosed
		}
		waits <- err
	}()
	time.Sleep(moment) // most of the goroutines sleep after that; the test passes in either order
	e.must(nic.Close())
	for range cap(waits) {
		select {
		case err := <-waits:
			e.wantErr("a wait", err, vi.ErrClosed)
		case <-time.After(e.patience()):
			e.Fatal("a wait outlives the NIC")
		}
	}
	e.waitState(other, vi.Error)
	e.claim(1, other, vi.ErrorConnLost)
	e.must(nic.Close())
	_, createVI := nic.CreateVI(e.attrs(), nil, nil)
	_, createCQ := nic.CreateCQ(1)
	_, createPtag := nic.CreatePtag()
	_, register := nic.RegisterMem(buf, vi.MemAttributes{})
	_, wait := nic.ConnectWait(e.ctx(), e.address(0))
	_, done := cq.Done()
	_, cqWait := cq.Wait(e.ctx())
	for name, err := range map[string]error{
		"CreateVI": createVI, "CreateCQ": createCQ, "CreatePtag": createPtag, "RegisterMem": register,
		"ConnectWait": wait, "CQ.Done": done, "CQ.Wait": cqWait, "CQ.Destroy": cq.Destroy(), "CQ.Resize": cq.Resize(20),
		"CQ.Notify": cq.Notify(func(vi.Completion) {}),
	} {
		e.wantErr(name+" after Close", err, vi.ErrClosed)
	}
	e.stale(idle)
}
