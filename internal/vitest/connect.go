package vitest

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"time"

	"viaduct/vi"
)

// testClientServer connects in the client-server model. [VIA-2.2-2] [VIA-2.2-4] [VIA-2.2-5]
// [VIA-6.4-13]
func testClientServer(e *env) {
	const mine, theirs = 3000, 2500
	server := e.vi(0, func(a *vi.Attributes) { a.MaxTransferSize = mine })
	r, client, result := e.incoming(func(a *vi.Attributes) {
		a.MaxTransferSize = theirs
		a.Security = []byte("let me in")
	})
	if s := client.State(); s != vi.ConnectPending {
		e.Errorf("requester in state %v", s)
	}
	// The server knows the attributes before deciding whether to accept.
	got := r.RemoteAttributes()
	if got.Reliability != e.level || got.MaxTransferSize != theirs || got.FlowControl ||
		!got.EnableRDMAWrite || got.EnableRDMARead != e.canRead() {
		e.Errorf("the caller's attributes: %+v", got)
	}
	if want := e.Address(e.nics[1], nil).Host; !bytes.HasPrefix(want, r.Remote().Host) &&
		!bytes.HasPrefix(r.Remote().Host, want) {
		e.Errorf("the caller's host %x, want %x", r.Remote().Host, want)
	}
	if len(r.Remote().Discriminator) == 0 || len(r.Local().Discriminator) == 0 ||
		bytes.Equal(r.Remote().Discriminator, r.Local().Discriminator) {
		e.Errorf("addresses %v to %v", r.Remote(), r.Local())
	}
	if s := r.Security(); !bytes.HasPrefix(s, []byte("let me in")) {
		e.Errorf("security information %q", s)
	}
	e.must(r.Accept(e.ctx(), server))
	e.must(<-result)
	for name, v := range map[string]*vi.VI{"server": server, "client": client} {
		s, a, _, _ := v.Query()
		if s != vi.Connected || a.MaxTransferSize != theirs { // the smaller of both sizes [VIA-6.4-16]
			e.Errorf("%s in state %v, transfer size %d", name, s, a.MaxTransferSize)
		}
		if _, ok := v.RemoteAddress(); !ok {
			e.Errorf("%s does not know its peer", name)
		}
	}
	// A message of the agreed size is delivered, and a message of one byte more is refused.
	for i, v := range []*vi.VI{server, client} {
		other := []*vi.VI{server, client}[1-i]
		from, to := e.region(i, mine), e.region(1-i, mine)
		for range 2 {
			e.must(other.PostRecv(vi.NewRecv(to.Segment(0, mine))))
		}
		e.must(v.PostSend(vi.NewSend(from.Segment(0, theirs))))
		e.wantStatus("a send of the agreed size", e.reapSend(v, nil), vi.StatusOpSend)
		e.wantStatus("its receive", e.reapRecv(other, nil), vi.StatusOpReceive)
		if i == 1 {
			e.must(v.PostSend(vi.NewSend(from.Segment(0, theirs+1))))
			e.wantStatus("one byte more", e.reapSend(v, nil), vi.StatusOpSend|vi.StatusLengthError)
		}
	}
	// A request can be answered only once.
	e.wantErr("a second Accept", r.Accept(e.ctx(), e.vi(0)), vi.ErrInvalidParameter)
	e.wantErr("a Reject after it", r.Reject(), vi.ErrInvalidParameter)
}

// testMatching: a request matches a wait only if the called discriminator is equal in length and
// bytes. [VIA-6.4-13] [VIA-6.4-14] [VIA-7-1] [VIA-7-2] [VIA-7-3]
func testMatching(e *env) {
	limit := e.nics[0].Query().MaxDiscriminatorLen
	waiting, stop := context.WithCancel(e.ctx())
	defer stop()
	found := make(chan string, 4)
	full := bytes.Repeat([]byte{0xff}, limit)
	for _, d := range [][]byte{[]byte("ab"), nil, full} {
		go func() {
			for {
				r, err := e.nics[1].ConnectWait(waiting, e.Address(e.nics[1], d))
				if err != nil {
					return
				}
				found <- string(r.Local().Discriminator)
				r.Reject()
			}
		}()
	}
	v := e.vi(0)
	from := e.address(0)
	var before []string // requests that earlier rounds have found
	for _, c := range []struct {
		d     []byte
		match bool
	}{
		{[]byte("ab"), true},
		{nil, true},
		{full, true},
		{[]byte("a"), false},
		{[]byte("ab\x00"), false},
		{[]byte("abc"), false},
		{[]byte("Ab"), false},
		{[]byte{0}, false},
		{full[1:], false},
	} {
		if c.match {
			err := e.request(e.ctx(), v, from, e.Address(e.nics[1], c.d))
			e.wantErr("a request that matches", err, vi.ErrReject)
			for again := true; again; {
				select {
				case got := <-found:
					// If a refusal is lost, the request is repeated and found again.
					again = e.Lossy && slices.Contains(before, got)
					if !again && got != string(c.d) {
						e.Errorf("%q was found by %q", c.d, got)
					}
				case <-time.After(e.patience()):
					e.Fatalf("%q was not found", c.d)
				}
			}
			before = append(before, string(c.d))
		} else {
			begin := time.Now()
			_, err := v.ConnectRequest(e.ctx(), from, e.Address(e.nics[1], c.d))
			e.wantErr("a request that does not match", err, vi.ErrNoMatch)
			if took := time.Since(begin); took > e.patience()/4 {
				e.Errorf("no match took %v", took)
			}
		}
		if s := v.State(); s != vi.Idle {
			e.Fatalf("state %v after a failed request", s)
		}
	}
	long := e.Address(e.nics[1], make([]byte, limit+1))
	_, err := v.ConnectRequest(e.ctx(), from, long)
	e.wantErr("a called discriminator too long", err, vi.ErrInvalidParameter)
	_, err = v.ConnectRequest(e.ctx(), long, e.address(1))
	e.wantErr("a calling discriminator too long", err, vi.ErrInvalidParameter)
	_, err = e.nics[1].ConnectWait(e.ctx(), long)
	e.wantErr("waiting for one", err, vi.ErrInvalidParameter)
	e.wantErr("a peer request with one", v.ConnectPeerRequest(from, long, 0), vi.ErrInvalidParameter)
}

// testConnectFailures: after every failed request the VI is Idle with the receives still posted,
// and the next connection uses the receives. [VIA-2.2-6] [VIA-2.3-8] [VIA-8.3-9] [VIA-6.4-17]
// [VIA-6.4-18] [VIA-8.3-6]
func testConnectFailures(e *env) {
	p := e.unconnected()
	v := p.v[0]
	const n = 200
	depth := min(n, e.nics[0].Query().MaxDescriptorsPerQueue)
	var recvs []*vi.Descriptor
	for range depth {
		recvs = append(recvs, vi.NewRecv(p.seg(0, 0, 100)))
	}
	_, err := v.PostRecvs(recvs)
	e.must(err)
	still := func(what string) {
		e.Helper()
		if s := v.State(); s != vi.Idle {
			e.Errorf("%s: state %v", what, s)
		}
		if _, err := v.RecvDone(); !errors.Is(err, vi.ErrNotDone) {
			e.Errorf("%s: receives: %v", what, err)
		}
	}

	_, err = v.ConnectRequest(e.ctx(), e.address(0), e.address(1))
	e.wantErr("no match", err, vi.ErrNoMatch)
	still("no match")

	if e.Unreachable != nil {
		_, err = v.ConnectRequest(e.ctx(), e.address(0), e.Unreachable())
		e.wantErr("unreachable", err, vi.ErrNotReachable)
		still("unreachable")
	}

	// This request is found and never answered. [VIA-6.4-19]
	at := e.address(1)
	open := make(chan *vi.ConnRequest, 1)
	waiting := e.ctx()
	go func() {
		r, err := e.nics[1].ConnectWait(waiting, at)
		if err != nil {
			e.Error(err)
		}
		open <- r
	}()
	var took, limit time.Duration
	var found *vi.ConnRequest
	for asked, next := false, 60*time.Millisecond; !asked; {
		begin := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), next)
		_, got := v.ConnectRequest(ctx, e.address(0), at)
		cancel()
		// The other side does not wait yet, or has found an earlier request. The pause is needed
		// because a provider keeps state for the repetitions of each request, and rapid requests
		// would exhaust that state.
		pause := 200 * time.Microsecond
		if !errors.Is(got, vi.ErrNoMatch) {
			err, took, limit = got, time.Since(begin), next
			pause = next
			next *= 2 // if the request was lost, or the machine is too slow for the limit
		}
		select {
		case found = <-open:
			asked = true
		case <-time.After(pause):
		}
	}
	e.wantErr("timeout", err, vi.ErrTimeout)
	if !errors.Is(err, context.DeadlineExceeded) {
		e.Errorf("timeout %v does not match the context's", err)
	}
	e.accurate("ConnectRequest", took, limit)
	still("timeout")
	if r := found; r != nil {
		// Accept comes too late here: the caller has already cancelled the request.
		e.eventually("Accept of a request that was given up fails", func() bool {
			late := e.vi(1)
			err := r.Accept(e.ctx(), late)
			return errors.Is(err, vi.ErrTimeout) && late.State() == vi.Idle
		})
	}

	// This request is cancelled.
	ctx, cancel := context.WithCancel(context.Background())
	at = e.address(1)
	go func() {
		r, err := e.nics[1].ConnectWait(waiting, at)
		if err != nil {
			e.Error(err)
		}
		cancel()
		open <- r
	}()
	err = e.request(ctx, v, e.address(0), at)
	e.wantErr("cancel", err, context.Canceled)
	still("cancel")
	<-open

	// This request is refused.
	at = e.address(1)
	go func() {
		r, err := e.nics[1].ConnectWait(waiting, at)
		if err != nil {
			e.Error(err)
		} else if err := r.Reject(); err != nil {
			e.Error(err)
		}
	}()
	e.wantErr("reject", e.request(e.ctx(), v, e.address(0), at), vi.ErrReject)
	still("reject")

	// After all these failures the VIs connect, and every receive completes in order.
	p.connect()
	for i := range depth {
		p.post(1, vi.NewSend(p.seg(1, 0, 4)).WithImmediate(uint32(i)))
	}
	for i, d := range recvs {
		p.wantStatus("receive", p.reapRecv(v, d), vi.StatusOpReceive)
		if d.ImmediateData != uint32(i) {
			e.Fatalf("receive %d got message %d", i, d.ImmediateData)
		}
	}
}

// accurate checks that an operation with a time limit did not end before the limit, and that the
// limit ended the operation. The suite's patience is for a busy machine. [VIA-6.4-19]
func (e *env) accurate(what string, took, limit time.Duration) {
	e.Helper()
	if took < limit-time.Millisecond || took > limit+e.patience() {
		e.Errorf("%s with a limit of %v took %v", what, limit, took)
	}
}

// testWaits: a connect wait ends at its time limit, and several waits may be pending. [VIA-6.4-15]
// [VIA-6.4-19]
func testWaits(e *env) {
	const limit = 30 * time.Millisecond
	begin := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	_, err := e.nics[1].ConnectWait(ctx, e.address(1))
	e.wantErr("no caller", err, vi.ErrTimeout)
	e.accurate("ConnectWait", time.Since(begin), limit)

	ctx, cancel = context.WithCancel(context.Background())
	cancel()
	_, err = e.nics[1].ConnectWait(ctx, e.address(1))
	e.wantErr("a cancelled wait", err, context.Canceled)

	// Each of several waits for equal discriminators gets a request.
	at := e.address(1)
	const n = 3
	served := make(chan error, n)
	waiting := e.ctx()
	for range n {
		go func() {
			r, err := e.nics[1].ConnectWait(waiting, at)
			if err == nil {
				err = r.Accept(waiting, e.vi(1))
			}
			served <- err
		}()
	}
	for range n {
		v := e.vi(0)
		e.must(e.request(e.ctx(), v, e.address(0), at))
		e.must(<-served)
	}
	_, err = e.vi(0).ConnectRequest(e.ctx(), e.address(0), at)
	e.wantErr("a request more than waits", err, vi.ErrNoMatch)
}

// testMismatch: Accept with an unsuitable VI fails, and the request stays open. [VIA-6.4-16]
// [VIA-8.3-7]
func testMismatch(e *env) {
	r, client, result := e.incoming()
	nic := e.nics[0].Query()
	for _, other := range []vi.Reliability{vi.UnreliableDelivery, vi.ReliableDelivery, vi.ReliableReception} {
		if other == e.level || nic.ReliabilityLevels&other == 0 {
			continue
		}
		v := e.vi(0, func(a *vi.Attributes) { a.Reliability, a.EnableRDMARead = other, false })
		e.wantErr("another level", r.Accept(e.ctx(), v), vi.ErrInvalidReliability)
		if s := v.State(); s != vi.Idle {
			e.Errorf("state %v after a mismatch", s)
		}
	}
	if e.FlowControl {
		e.wantErr("flow control on one side", r.Accept(e.ctx(), e.vi(0, flow)), vi.ErrInvalidReliability)
	}
	e.wantErr("no VI", r.Accept(e.ctx(), nil), vi.ErrInvalidParameter)
	e.wantErr("a VI of another NIC", r.Accept(e.ctx(), e.vi(1)), vi.ErrInvalidParameter)
	gone := e.vi(0)
	e.must(gone.Destroy())
	e.wantErr("a destroyed VI", r.Accept(e.ctx(), gone), vi.ErrClosed)

	v := e.vi(0)
	e.must(r.Accept(e.ctx(), v))
	e.must(<-result)
	if v.State() != vi.Connected || client.State() != vi.Connected {
		e.Errorf("states %v, %v", v.State(), client.State())
	}
}

// testConnectAbort disconnects or closes during a connection attempt. [VIA-2.2-7] [VIA-6.7-2]
func testConnectAbort(e *env) {
	r, client, result := e.incoming()
	e.must(client.Disconnect())
	e.wantErr("a request whose VI was disconnected", <-result, vi.ErrInvalidState)
	if s := client.State(); s != vi.Idle {
		e.Errorf("state %v", s)
	}
	e.eventually("Accept fails or its connection is lost", func() bool {
		v := e.vi(0)
		if err := r.Accept(e.ctx(), v); err != nil {
			return errors.Is(err, vi.ErrTimeout)
		}
		e.waitState(v, vi.Error)
		return true
	})
	e.must(client.Destroy())
}

// testManyConnections sets up many connections concurrently. All receive queues report to a single
// completion queue. [VIA-8.3-17] [VIA-1.1-4]
func testManyConnections(e *env) {
	const n = 24
	cq, err := e.nics[1].CreateCQ(1) // work queues reserve their room, so a small capacity is enough [VIA-1.6-2]
	e.must(err)
	mem := [2]*vi.Region{e.region(0, 64*n), e.region(1, 64*n)}
	var vis [2][n]*vi.VI
	errs := make(chan error, n)
	var addrs [2][n]vi.Address
	for i := range n {
		vis[0][i] = e.vi(0)
		v, err := e.nics[1].CreateVI(e.attrs(), nil, cq)
		e.must(err)
		vis[1][i] = v
		v.SetUserData(i)
		for range 3 {
			e.must(v.PostRecv(vi.NewRecv(mem[1].Segment(64*i, 64))))
		}
		addrs[0][i], addrs[1][i] = e.address(0), e.address(1)
	}
	ctx := e.ctx()
	for i := range n {
		go func() {
			r, err := e.nics[1].ConnectWait(ctx, addrs[1][i])
			if err == nil {
				err = r.Accept(ctx, vis[1][i])
			}
			errs <- err
		}()
		go func() { errs <- e.request(ctx, vis[0][i], addrs[0][i], addrs[1][i]) }()
	}
	for range 2 * n {
		e.must(<-errs)
	}
	for k := range 3 {
		for i := range n {
			e.must(vis[0][i].PostSend(vi.NewSend(mem[0].Segment(64*i, 32)).WithImmediate(uint32(100*i + k))))
		}
	}
	var next [n]int
	for range 3 * n {
		c, err := cq.Wait(e.ctx())
		e.must(err)
		i := c.VI.UserData().(int)
		d, err := c.VI.RecvDone() // the descriptor has completed, so RecvDone finds it at once [VIA-4.7-2]
		if err != nil || !c.Recv {
			e.Fatalf("entry without a descriptor: %v", err)
		}
		if d.ImmediateData != uint32(100*i+next[i]) { // [VIA-1.6-4]
			e.Errorf("VI %d: message %d, want number %d", i, d.ImmediateData, next[i])
		}
		next[i]++
	}
	if _, err := cq.Done(); !errors.Is(err, vi.ErrNotDone) {
		e.Errorf("an entry too many: %v", err)
	}
	for i := range n {
		for range 3 {
			e.wantStatus("send", e.reapSend(vis[0][i], nil), vi.StatusOpSend)
		}
	}
}
