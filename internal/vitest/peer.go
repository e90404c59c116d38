package vitest

import (
	"context"
	"errors"
	"time"

	"viaduct/vi"
)

// peers returns two VIs for the peer-to-peer model, with the address of each.
func (e *env) peers(opts ...func(*vi.Attributes)) (p *pair, addr [2]vi.Address) {
	e.Helper()
	p = e.unconnected(opts...)
	return p, [2]vi.Address{e.address(0), e.address(1)}
}

// ask issues the peer-to-peer request of a side.
func (p *pair) ask(side int, addr [2]vi.Address, timeout time.Duration) {
	p.Helper()
	p.must(p.v[side].ConnectPeerRequest(addr[side], addr[1-side], timeout))
}

func (p *pair) peered() {
	p.Helper()
	for side, v := range p.v {
		a, err := v.ConnectPeerWait(p.ctx())
		if err != nil {
			p.Fatalf("side %d: %v", side, err)
		}
		if a.Reliability != p.level || a.MaxTransferSize != p.mtu() {
			p.Errorf("side %d: remote attributes %+v", side, a)
		}
		if s := v.State(); s != vi.Connected {
			p.Errorf("side %d: state %v", side, s)
		}
		_, err = v.ConnectPeerDone() // the result is returned only once
		p.wantErr("ConnectPeerDone afterwards", err, vi.ErrInvalidState)
	}
	p.works()
}

// testPeer connects in the peer-to-peer model, and checks failures. [VIA-8.3-8] [VIA-6.4-21]
// [VIA-6.4-22] [VIA-2.2-3]
func testPeer(e *env) {
	for side, name := range []string{"AFirst", "BFirst"} {
		e.sub(name, func(e *env) {
			p, addr := e.peers()
			p.ask(side, addr, e.patience())
			if s := p.v[side].State(); s != vi.ConnectPending {
				e.Errorf("state %v", s)
			}
			_, err := p.v[side].ConnectPeerDone()
			e.wantErr("ConnectPeerDone too early", err, vi.ErrNotDone)
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
			defer cancel()
			_, err = p.v[side].ConnectPeerWait(ctx) // the end of the context ends the wait, but not the request
			e.wantErr("ConnectPeerWait with a context of its own", err, vi.ErrTimeout)
			p.ask(1-side, addr, e.patience())
			p.peered()
		})
	}
	e.sub("Simultaneous", func(e *env) {
		for range 5 {
			p, addr := e.peers()
			start := make(chan struct{})
			for side := range 2 {
				go func() {
					<-start
					if err := p.v[side].ConnectPeerRequest(addr[side], addr[1-side], e.patience()); err != nil {
						e.Error(err)
					}
				}()
			}
			close(start)
			for side := range 2 {
				e.eventually("the request is made", func() bool { return p.v[side].State() != vi.Idle })
				// the connection is made although no goroutine is in a call
				e.eventually("the connection", func() bool { return p.v[side].State() == vi.Connected })
			}
			p.peered()
		}
	})
	e.sub("Done", func(e *env) {
		p, addr := e.peers()
		p.ask(0, addr, e.patience())
		p.ask(1, addr, e.patience())
		for _, v := range p.v {
			e.eventually("ConnectPeerDone", func() bool {
				_, err := v.ConnectPeerDone()
				if err != nil && !errors.Is(err, vi.ErrNotDone) {
					e.Fatal(err)
				}
				return err == nil
			})
		}
		p.works()
	})
	e.sub("Timeout", func(e *env) {
		p, addr := e.peers()
		const limit = 40 * time.Millisecond
		r := p.postRecv(0, vi.NewRecv(p.seg(0, 0, 10)))
		begin := time.Now()
		p.ask(0, addr, limit)
		_, err := p.v[0].ConnectPeerWait(context.Background())
		e.wantErr("no peer", err, vi.ErrTimeout)
		e.accurate("ConnectPeerWait", time.Since(begin), limit)
		if s := p.v[0].State(); s != vi.Idle {
			e.Errorf("state %v", s)
		}
		if _, err := p.v[0].RecvDone(); !errors.Is(err, vi.ErrNotDone) {
			e.Errorf("the receive: %v", err)
		}
		p.ask(0, addr, e.patience()) // this time the other side requests the connection too
		p.ask(1, addr, e.patience())
		p.waitState(p.v[0], vi.Connected)
		p.waitState(p.v[1], vi.Connected)
		p.post(1, vi.NewSend(p.seg(1, 0, 10)))
		p.wantStatus("receive", p.reapRecv(p.v[0], r), vi.StatusOpReceive)
		p.wantStatus("send", p.reapSend(p.v[1], nil), vi.StatusOpSend)
		p.peered()
	})
	e.sub("Cancel", func(e *env) {
		p, addr := e.peers()
		r := p.postRecv(0, vi.NewRecv(p.seg(0, 0, 10)))
		p.ask(0, addr, 0)
		result := make(chan error, 1)
		go func() {
			_, err := p.v[0].ConnectPeerWait(context.Background())
			result <- err
		}()
		time.Sleep(moment)
		e.must(p.v[0].Disconnect())
		e.wantErr("a cancelled request", <-result, vi.ErrInvalidState)
		if s := p.v[0].State(); s != vi.Idle {
			e.Errorf("state %v", s)
		}
		p.wantStatus("the receive", p.reapRecv(p.v[0], r), vi.StatusOpReceive|vi.StatusFlushed)
		p.ask(0, addr, e.patience())
		p.ask(1, addr, e.patience())
		p.peered()
	})
	e.sub("WrongDiscriminator", func(e *env) {
		p, addr := e.peers()
		other := e.address(1)
		const limit = 40 * time.Millisecond
		e.must(p.v[0].ConnectPeerRequest(addr[0], addr[1], limit))
		e.must(p.v[1].ConnectPeerRequest(other, addr[0], limit)) // requests the right VI, but from a wrong address
		for side, v := range p.v {
			_, err := v.ConnectPeerWait(context.Background())
			e.wantErr("requests that don't mirror", err, vi.ErrTimeout)
			if s := v.State(); s != vi.Idle {
				e.Errorf("side %d: state %v", side, s)
			}
		}
	})
	e.sub("NotAWait", func(e *env) { // [VIA-6.4-23]
		p, addr := e.peers()
		ctx, cancel := context.WithTimeout(context.Background(), 40*time.Millisecond)
		defer cancel()
		p.ask(0, addr, 20*time.Millisecond)
		r, err := e.nics[1].ConnectWait(ctx, addr[1])
		if r != nil {
			e.Error("a peer request matched a wait")
			r.Reject()
		}
		e.wantErr("ConnectWait", err, vi.ErrTimeout)
		_, err = p.v[0].ConnectPeerWait(context.Background())
		e.wantErr("the peer request", err, vi.ErrTimeout)
		// A client's request does not match a peer request either.
		p.ask(1, addr, e.patience())
		_, err = p.v[0].ConnectRequest(e.ctx(), addr[0], addr[1])
		e.wantErr("a request of the client-server model", err, vi.ErrNoMatch)
		p.ask(0, addr, e.patience()) // the peer request is still pending
		p.peered()
	})
	e.sub("Mismatch", func(e *env) {
		p, addr := e.peers()
		set := e.nics[1].Query().ReliabilityLevels &^ e.level
		if set == 0 {
			e.Skip("the NIC has one reliability level")
		}
		a := e.attrs()
		a.Reliability, a.EnableRDMARead = set&-set, false
		e.must(p.v[1].SetAttributes(a))
		p.ask(0, addr, 200*time.Millisecond)
		p.ask(1, addr, 200*time.Millisecond)
		for side, v := range p.v {
			if _, err := v.ConnectPeerWait(context.Background()); err == nil {
				e.Errorf("side %d connected VIs of different levels", side)
			}
			if s := v.State(); s != vi.Idle {
				e.Errorf("side %d: state %v", side, s)
			}
		}
	})
	e.sub("Many", func(e *env) {
		const n = 8
		var ps [n]*pair
		for i := range ps {
			p, addr := e.peers()
			p.ask(i%2, addr, e.patience())
			p.ask(1-i%2, addr, e.patience())
			ps[i] = p
		}
		for _, p := range ps {
			p.peered()
		}
	})
	e.sub("TransferSize", func(e *env) {
		p, addr := e.peers()
		a := e.attrs()
		a.MaxTransferSize = 1000
		e.must(p.v[1].SetAttributes(a))
		p.ask(0, addr, e.patience())
		p.ask(1, addr, e.patience())
		for side, v := range p.v {
			_, err := v.ConnectPeerWait(e.ctx())
			e.must(err)
			if _, a, _, _ := v.Query(); a.MaxTransferSize != 1000 {
				e.Errorf("side %d: transfer size %d", side, a.MaxTransferSize)
			}
		}
	})
}
