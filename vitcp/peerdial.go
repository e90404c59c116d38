package vitcp

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"syscall"
	"time"

	"viaduct/internal/wire/vitcpwire"
	"viaduct/vi"
)

// A peerKey identifies a peer-to-peer request for the search by an incoming request. The calling
// discriminator of a request is the called discriminator of the peer's request.
type peerKey struct {
	calling, called vitcpwire.Discriminator // as in the incoming request
}

// A peerCall runs the machine of a peer-to-peer request. All its state belongs to the goroutine of
// ConnectPeer. Other goroutines dial and offer requests, and use only the channels.
type peerCall struct {
	*call
	at      netip.AddrPort // address at which this side waits for the peer's requests; if unspecified, every address
	l       *listener      // nil while another process waits at that address
	m       peer
	places  []netip.AddrPort // addresses at which the peer may wait and that were not dialled yet
	results chan peerResult
	inbox   chan peerOffer
	over    chan struct{} // closed when ConnectPeer returns

	// These fields describe the outgoing connection, if any.
	attempt int
	cancel  context.CancelFunc
	nc      net.Conn

	// These fields are the result.
	done bool
	link vi.Link
	g    vi.Agreement
	err  error
}

// A peerResult is an event of an outgoing connection: set-up, failure, or arrival of the answer.
type peerResult struct {
	attempt int
	nc      net.Conn // the connection, if it was set up
	err     error    // why the connection was not set up, or nil
	answer  *answer
}

// A peerOffer is an incoming request matching the request of a call. reply receives true if the
// call has handled r; otherwise the next matching call gets the offer.
type peerOffer struct {
	r     *request
	last  bool // no other call will be asked
	reply chan bool
}

// ConnectPeer implements vi.Device. [VIT 4] [V-33]
func (d *device) ConnectPeer(ctx context.Context, ep *vi.Endpoint, local, remote vi.Address) (vi.Link, vi.Agreement, error) {
	if err := d.enter(); err != nil {
		return nil, vi.Agreement{}, err
	}
	defer d.wg.Done()
	c, err := d.newCall(ep, local, remote, true)
	if err != nil {
		return nil, vi.Agreement{}, err
	}
	if c.target, err = d.callTarget(remote); err != nil {
		return nil, vi.Agreement{}, err
	}
	at, err := d.place(local)
	if err != nil {
		return nil, vi.Agreement{}, err
	}
	ctx, cancel := d.join(ctx)
	defer cancel()
	pc := &peerCall{
		call: c, at: at,
		m:       peer{local: c.local, remote: c.remote, random: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))},
		results: make(chan peerResult), inbox: make(chan peerOffer), over: make(chan struct{}),
	}
	if err := pc.listen(); err != nil {
		return nil, vi.Agreement{}, err
	}
	pc.m.deadline, _ = ctx.Deadline()
	d.p.count.activeRequests.Add(1)
	link, g, err := pc.run(ctx)
	if err != nil {
		d.p.count.activeFailures.Add(1)
		d.p.cfg.Logger.Info("peer connect failed", "remote", c.target.String(), "called", c.remote.String(), "err", err)
	}
	return link, g, err
}

// listen registers the call for requests of the peer. An address in use by another process is no
// error if the peer's address has the same port: the other process may be the peer, or the peer may
// be on another host. Then the outgoing request finds the peer, and listen is tried again before
// each attempt.
func (pc *peerCall) listen() error {
	l, err := pc.d.listen(pc.at)
	if errors.Is(err, syscall.EADDRINUSE) && pc.at.Port() == pc.target.Port() {
		return nil
	}
	if err == nil {
		pc.l = l
		l.addPeer(pc.key(), pc)
	}
	return err
}

func (pc *peerCall) unlisten() {
	if pc.l != nil {
		pc.l.removePeer(pc.key(), pc)
		pc.l = nil
	}
}

func (pc *peerCall) key() peerKey { return peerKey{calling: pc.remote, called: pc.local} }

// run is the event loop. It returns when the machine has reported the outcome.
func (pc *peerCall) run(ctx context.Context) (vi.Link, vi.Agreement, error) {
	defer close(pc.over)
	defer pc.unlisten()
	defer pc.drop()

	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	pc.do(ctx, pc.m.request(), nil)
	for !pc.done {
		wait := time.Hour
		if w := pc.m.wakeAt(); !w.IsZero() {
			wait = time.Until(w)
		}
		timer.Reset(wait)
		select {
		case r := <-pc.results:
			pc.result(ctx, r)
		case o := <-pc.inbox:
			pc.offered(ctx, o)
		case <-timer.C:
			pc.do(ctx, pc.m.timer(time.Now()), nil)
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) && !pc.m.deadline.IsZero() {
				pc.do(ctx, pc.m.timer(pc.m.deadline), nil)
			} else {
				pc.do(ctx, pc.m.cancel(), nil)
			}
		}
	}
	return pc.link, pc.g, pc.err
}

// result handles an event of the outgoing connection. It ignores events of an abandoned connection.
func (pc *peerCall) result(ctx context.Context, r peerResult) {
	if r.attempt != pc.attempt || pc.cancel == nil {
		if r.nc != nil {
			r.nc.Close()
		}
		return
	}
	now := time.Now()
	switch {
	case r.err != nil:
		pc.drop()
		pc.do(ctx, pc.m.tcpFailed(now, r.err), nil)
	case r.nc != nil:
		pc.nc = r.nc
		pc.do(ctx, pc.m.tcpEstablished(addrPort(r.nc.LocalAddr())), nil)
	case r.answer.err != nil:
		if _, ok := errors.AsType[*ProtocolError](r.answer.err); ok {
			pc.do(ctx, pc.m.violated(r.answer.err), nil)
		} else {
			pc.do(ctx, pc.m.tcpClosed(now, r.answer.err), nil)
		}
	case r.answer.g.h.Type == vitcpwire.ConnectAccept:
		link, g, err := pc.take(pc.nc, *r.answer)
		if err == nil {
			pc.link, pc.g = link, g
			pc.cancel()
			pc.cancel, pc.nc = nil, nil // the link owns the connection from now on
		}
		pc.do(ctx, pc.m.accepted(), nil)
		pc.err = err
	case r.answer.g.h.Type == vitcpwire.ConnectReject:
		pc.do(ctx, pc.m.rejected(now, r.answer.g.h.Error.IS()), r.answer)
	default:
		pc.do(ctx, pc.m.noMatch(now), nil)
	}
}

// offered handles an incoming request matching the call. Only a request sent by the same call is
// left to another matching call, if any.
func (pc *peerCall) offered(ctx context.Context, o peerOffer) {
	r := o.r
	if pc.m.isOwn(r.remote) && !o.last {
		o.reply <- false
		return
	}
	if r.withdrawn() {
		// The peer has cancelled the request, and may send another. Accepting a cancelled request
		// would end the call with a connection the peer does not have.
		r.m.closed()
		r.end()
		o.reply <- true
		return
	}
	steps := pc.m.incoming(incomingRequest{
		local: r.local, remote: r.remote,
		mismatch: pc.d.p.cfg.habits().match(pc.attrs, r.g.ce.Attributes) != matching,
	})
	for _, s := range steps {
		switch s.do {
		case stepSendAccept:
			r.m.match()
			r.m.accept()
			r.d = pc.d
			link, g, err := r.answer(ctx, pc.call)
			if err != nil {
				r.end()
			} else {
				pc.link, pc.g = link, g
			}
			pc.err = err
		case stepSendReject:
			r.run(r.m.reject(s.code))
			r.end()
		case stepSendNoMatch:
			r.run(r.m.noMatch())
			r.end()
		default:
			pc.do(ctx, []setupStep{s}, nil)
		}
	}
	o.reply <- true
}

// do performs the machine's steps for the outgoing connection. a is the answer behind the steps, or
// nil.
func (pc *peerCall) do(ctx context.Context, steps []setupStep, a *answer) {
	for _, s := range steps {
		switch s.do {
		case stepDial:
			if pc.l == nil {
				pc.listen() // an error is ignored, because the address may still be in use
			}
			to := pc.nextPlace()
			var actx context.Context
			actx, pc.cancel = context.WithCancel(ctx)
			pc.attempt++
			n := pc.attempt
			pc.d.wg.Go(func() {
				nc, err := pc.dial(actx, to)
				pc.report(peerResult{attempt: n, nc: nc, err: err})
			})
		case stepSendRequest:
			n, nc := pc.attempt, pc.nc
			pc.d.wg.Go(func() {
				a := pc.ask(nc)
				pc.report(peerResult{attempt: n, answer: &a})
			})
		case stepClose:
			pc.drop()
		case stepDone:
			pc.done = true
			if s.out != outcomeConnected {
				pc.err = peerError(ctx, s, a)
			}
		}
	}
}

// nextPlace returns the address for the next attempt. In turn, it returns each address where the
// peer may wait.
func (pc *peerCall) nextPlace() netip.AddrPort {
	if len(pc.places) == 0 {
		pc.places = append(pc.places, pc.target)
		if pc.at.Port() == pc.target.Port() {
			pc.places = append(pc.places, pc.d.p.beside(pc.target)...)
		}
	}
	to := pc.places[0]
	pc.places = pc.places[1:]
	pc.m.more = len(pc.places) > 0
	return to
}

// peerError is outcomeError for a peer-to-peer request. A host refusing TCP may only be late, so
// the error at the end is a timeout.
func peerError(ctx context.Context, s setupStep, a *answer) error {
	var code vitcpwire.RemoteError
	if a != nil {
		code = a.g.h.Error
	}
	if s.out == outcomeNotReachable && errors.Is(s.err, syscall.ECONNREFUSED) {
		return fmt.Errorf("%w: %w", vi.ErrTimeout, s.err)
	}
	return outcomeError(ctx, s, code)
}

// report sends r to the event loop. If the loop has ended, report closes the connection in r.
func (pc *peerCall) report(r peerResult) {
	select {
	case pc.results <- r:
	case <-pc.over:
		if r.nc != nil {
			r.nc.Close()
		}
	}
}

// drop abandons the outgoing connection at any stage.
func (pc *peerCall) drop() {
	if pc.cancel != nil {
		pc.cancel()
		pc.cancel = nil
	}
	if pc.nc != nil {
		pc.nc.Close()
		pc.nc = nil
	}
}

func (l *listener) addPeer(k peerKey, pc *peerCall) {
	l.mu.Lock()
	l.peers[k] = append(l.peers[k], pc)
	l.mu.Unlock()
}

func (l *listener) removePeer(k peerKey, pc *peerCall) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, x := range l.peers[k] {
		if x == pc {
			l.peers[k] = append(l.peers[k][:i:i], l.peers[k][i+1:]...)
			break
		}
	}
	if len(l.peers[k]) == 0 {
		delete(l.peers, k)
	}
}

// offerPeer offers r to the matching pending calls, and returns true if a call handled r. Otherwise
// it answers No Match, and the caller closes the connection.
func (l *listener) offerPeer(r *request) bool {
	l.mu.Lock()
	var cs []*peerCall
	for _, pc := range l.peers[peerKey{calling: r.g.ce.Calling, called: r.g.ce.Called}] {
		if pc.target.Addr() == r.remote.Addr() && fits(pc.at.Addr(), r.local.Addr()) {
			cs = append(cs, pc)
		}
	}
	if len(cs) > 0 {
		delete(l.halfOpen, r.tcp) // if a call handles the request, it owns the connection
	}
	l.mu.Unlock()
	for i, pc := range cs {
		o := peerOffer{r: r, last: i == len(cs)-1, reply: make(chan bool, 1)}
		select {
		case pc.inbox <- o:
			if <-o.reply {
				return true
			}
		case <-pc.over:
		}
	}
	r.run(r.m.noMatch())
	return false
}

// fits reports whether a connection to the local address at may serve a call for address want. If
// want is unset or unspecified, every connection may.
func fits(want, at netip.Addr) bool {
	return !want.IsValid() || want.IsUnspecified() || want == at
}
