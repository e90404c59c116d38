package fcvi

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"viaduct/internal/fc"
	"viaduct/internal/fc/fabricd"
	"viaduct/internal/wire/iu"
	"viaduct/samehost"
	"viaduct/vi"
)

// A link implements vi.Link for a connection.
type link struct {
	s    *station
	c    *conn // guarded by s.mu; nil if no handle was free
	v    *viConsumer
	poll poller
	gone chan struct{} // closed when the endpoint is released, or if there is none

	started  bool   // guarded by s.mu: package vi has the connection
	before   func() // guarded by s.mu: breaks the VI; set if the connection broke before Start
	breaking sync.Once
}

var _ vi.Link = (*link)(nil)

func newLink(s *station, ep *vi.Endpoint) *link {
	l := &link{s: s, v: &viConsumer{s: s, ep: ep}, gone: make(chan struct{})}
	l.v.end = func(orderly bool) {
		// The connection is broken in another goroutine, because Break takes the VI's lock and
		// stops this link.
		end := func() { l.breaking.Do(func() { s.breaks.Go(func() { ep.Break(orderly) }) }) }
		if !l.started { // before Start, Break would have no effect
			l.before = end
			return
		}
		end()
	}
	return l
}

// Path implements [vi.VI.Path]. It returns the path of the bytes to the peer, or to the fabric
// through which the peer is reached.
func (l *link) Path() samehost.Path {
	if p, ok := l.poll.(interface{ Path() samehost.Path }); ok {
		return p.Path()
	}
	return samehost.Path{Why: "no FCIP link leads to the peer"}
}

// attach connects l with its endpoint c, so that l.gone is closed when c ends. attach closes l.gone
// at once if c is nil or has ended. The caller holds the station's lock.
func (l *link) attach(c *conn) {
	l.c = c
	if c == nil || c.gone {
		close(l.gone)
		return
	}
	c.ended = append(c.ended, func() { close(l.gone) })
}

// Start implements vi.Link.
func (l *link) Start() {
	l.s.enter()
	l.started = true
	if l.before != nil && !l.s.dead {
		l.before()
	}
	l.s.leave()
	l.s.do(func(now fc.Time) { l.c.begin(now) })
}

// SendPosted implements vi.Link.
func (l *link) SendPosted() { l.s.do(func(now fc.Time) { l.c.posted(now) }) }

// RecvPosted implements vi.Link. It takes the lock only if a message waits for a receive.
func (l *link) RecvPosted() {
	if l.v.waiting.Load() {
		l.s.do(func(now fc.Time) { l.c.recvPosted(now) })
	}
}

// Poll implements vi.Link.
func (l *link) Poll() bool { return l.poll != nil && l.poll.Poll() }

// Unpoll implements vi.Link.
func (l *link) Unpoll() {
	if l.poll != nil {
		l.poll.Unpoll()
	}
}

// Stop implements vi.Link. The machines access memory only under the lock, and copy the frames they
// send. So no memory is accessed after Stop has returned.
func (l *link) Stop(reason vi.StopReason) {
	now := l.s.enter()
	if l.s.dead {
		l.c.up = nil
	} else {
		l.c.stop(now, reason == vi.StopBroken)
	}
	l.s.leave()
}

// Wait implements vi.Link.
func (l *link) Wait() { <-l.gone }

// attributes returns the attributes to announce for ep: the VI's attributes, within the provider's
// limits.
func (d *device) attributes(ep *vi.Endpoint) iu.Attributes {
	a := ep.Attributes()
	w := iu.Attributes{
		Reliability: iu.Reliability(a.Reliability), Write: a.EnableRDMAWrite, Read: a.EnableRDMARead,
		Streaming: !d.p.cfg.EachAnswered, Proves: true, Class2: d.p.cfg.Class2, Holds: a.FlowControl,
		MaxTransfer: min(a.MaxTransferSize, d.p.cfg.MaxTransferSize), MaxUnacked: uint16(d.p.cfg.MaxUnacked),
	}
	if a.MaxTransferSize == 0 {
		w.MaxTransfer = d.p.cfg.MaxTransferSize
	}
	if w.Reliability != iu.Unreliable { // [FCVI-3-9]
		// The window is announced even if Reads are disabled, because a peer's Read is then
		// answered with the reason of its refusal.
		w.MaxReads = uint16(min(max(1, cmpOr(a.ReadWindow, d.p.cfg.MaxReads)), window)) // [FCVI-7.3-3]
	} else {
		w.Read = false
	}
	return w
}

func cmpOr(a, b int) int {
	if a != 0 {
		return a
	}
	return b
}

// remoteAttributes returns the attributes the peer announced.
func remoteAttributes(c *conn) vi.Attributes {
	w := &c.rattrs
	return vi.Attributes{Reliability: vi.Reliability(w.Reliability), MaxTransferSize: w.MaxTransfer,
		EnableRDMAWrite: w.Write, EnableRDMARead: w.Read, FlowControl: w.Holds,
		ReadWindow: int(w.MaxReads), Security: c.security}
}

func agreement(c *conn, host []byte) vi.Agreement {
	g := vi.Agreement{Remote: remoteAttributes(c), RemoteAddress: viAddress(c.want), MaxTransferSize: c.mts,
		ReadWindow: int(c.rattrs.MaxReads)}
	if host != nil {
		g.RemoteAddress.Host = host
	}
	return g
}

// Connect implements vi.Device.
func (d *device) Connect(ctx context.Context, ep *vi.Endpoint, local, remote vi.Address) (vi.Link, vi.Agreement, error) {
	return d.connect(ctx, ep, local, remote, iu.ClientServer)
}

// ConnectPeer implements vi.Device.
func (d *device) ConnectPeer(ctx context.Context, ep *vi.Endpoint, local, remote vi.Address) (vi.Link, vi.Agreement, error) {
	return d.connect(ctx, ep, local, remote, iu.PeerToPeer)
}

func (d *device) connect(ctx context.Context, ep *vi.Endpoint, local, remote vi.Address, mode iu.Mode) (vi.Link, vi.Agreement, error) {
	ctx, stop := d.join(ctx)
	defer stop()
	none := vi.Agreement{}
	home, over := false, func() {}
	if mode == iu.PeerToPeer {
		home, over = d.waitsAtHome(local, remote)
	}
	defer over()
	s, err := d.stationFor(ctx, remote, home)
	for err != nil && mode == iu.PeerToPeer && ctx.Err() == nil {
		// The peer may start later, so the request is repeated. [VIA 6.4.6]
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
			s, err = d.stationFor(ctx, remote, home)
		}
	}
	if err != nil {
		return nil, none, contextError(ctx, err)
	}
	from, err := netAddress(local)
	if err != nil {
		return nil, none, err
	}
	if ip := from.IP(); from.HostLen == 0 || ip.IsValid() && !slices.Contains(d.ips, ip) {
		from = d.ownAddress(local.Discriminator)
	}
	to, err := netAddress(remote)
	if err != nil {
		return nil, none, err
	}
	args := connectArgs{mode: mode, local: from, remote: to, attrs: d.attributes(ep), deadline: fc.Never, paused: true,
		security: ep.Attributes().Security, holds: ep.Attributes().FlowControl}
	if len(args.security) > iu.MaxSecurity {
		return nil, none, fmt.Errorf("%w: security information of %d bytes, at most %d",
			vi.ErrInvalidParameter, len(args.security), iu.MaxSecurity)
	}
	l := newLink(s, ep)
	args.up = l.v
	result := make(chan iu.Reason, 1)
	args.done = func(_ fc.Time, r iu.Reason) { result <- r }
	now := s.enter()
	if s.dead {
		s.leave()
		return nil, none, vi.ErrClosed
	}
	if t, ok := ctx.Deadline(); ok {
		args.deadline = max(now, now+time.Until(t))
	}
	c := s.p.connect(now, args)
	l.attach(c)
	s.leave()
	select {
	case r := <-result:
		if err := setupError(r); err != nil {
			return nil, none, contextError(ctx, err)
		}
	case <-ctx.Done():
		var r iu.Reason
		s.do(func(now fc.Time) {
			select {
			case r = <-result:
			default:
				c.abandon(now)
			}
		})
		if r != iu.Confirmed {
			return nil, none, context.Cause(ctx)
		}
	}
	return l.connected(remote.Host)
}

// connected returns the link of a successful set-up, and the agreement. host, if not nil, is the
// host part of the peer's address as the caller gave it.
func (l *link) connected(host []byte) (vi.Link, vi.Agreement, error) {
	s := l.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.c.remote != nil {
		l.poll = s.out.poller(l.c.remote.Addr)
	}
	return l, agreement(l.c, host), nil
}

// ownAddress returns the NIC's own address with the given discriminator.
func (d *device) ownAddress(disc []byte) iu.NetAddress {
	if len(d.ips) > 0 {
		return iu.IPAddress(d.ips[0], disc)
	}
	return iu.NetAddress{Discriminator: disc}
}

// Wait implements vi.Device.
func (d *device) Wait(ctx context.Context, local vi.Address) (vi.Request, error) {
	ctx, stop := d.join(ctx)
	defer stop()
	s := d.home
	if s == nil {
		return nil, fmt.Errorf("%w: %w", vi.ErrNotSupported, errNoPort)
	}
	found := make(chan *conn, 1)
	w := &wait{disc: local.Discriminator, match: func(c *conn) { found <- c }}
	s.do(func(now fc.Time) { s.p.addWait(now, w) })
	select {
	case c := <-found:
		return d.request(s, c), nil
	case <-ctx.Done():
	}
	var c *conn
	s.do(func(now fc.Time) {
		if !s.p.removeWait(w) {
			c = <-found
		}
	})
	if c != nil { // a request that has already arrived is returned although ctx has ended
		return d.request(s, c), nil
	}
	return nil, context.Cause(ctx)
}

// A request is an incoming connection request.
type request struct {
	d        *device
	s        *station
	c        *conn
	remote   vi.Address
	local    vi.Address
	attrs    vi.Attributes
	security []byte
}

var _ vi.Request = (*request)(nil)

func (d *device) request(s *station, c *conn) *request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &request{d: d, s: s, c: c, remote: viAddress(c.want), local: viAddress(c.local),
		attrs: remoteAttributes(c), security: c.security}
}

func (r *request) Remote() vi.Address              { return r.remote }
func (r *request) Local() vi.Address               { return r.local }
func (r *request) RemoteAttributes() vi.Attributes { return r.attrs }
func (r *request) Security() []byte                { return r.security }

// Reject implements vi.Request. [FCVI-5.3.2-7]
func (r *request) Reject() error {
	r.s.do(func(now fc.Time) { r.c.reject(now, iu.ULPReject) })
	return nil
}

// Accept implements vi.Request.
func (r *request) Accept(ctx context.Context, ep *vi.Endpoint) (vi.Link, vi.Agreement, error) {
	ctx, stop := r.d.join(ctx)
	defer stop()
	none := vi.Agreement{}
	l := newLink(r.s, ep)
	result := make(chan iu.Reason, 1)
	ok := false
	r.s.do(func(now fc.Time) {
		r.c.early.paused = true
		r.c.sec = ep.Attributes().Security
		l.attach(r.c)
		ok = r.c.accept(now, r.d.attributes(ep), l.v, ep.Attributes().FlowControl,
			func(_ fc.Time, x iu.Reason) { result <- x })
	})
	if !ok {
		return nil, none, vi.ErrTimeout // the caller has cancelled its request
	}
	select {
	case x := <-result:
		if err := setupError(x); err != nil {
			return nil, none, err
		}
	case <-ctx.Done():
		var x iu.Reason
		r.s.do(func(now fc.Time) {
			select {
			case x = <-result:
			default:
				r.c.abandon(now)
			}
		})
		if x != iu.Confirmed {
			return nil, none, context.Cause(ctx)
		}
	}
	return l.connected(nil)
}

// join returns a context that ends with ctx, and also when the device is closed.
func (d *device) join(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(d.ctx, func() { cancel(vi.ErrClosed) })
	return ctx, func() { stop(); cancel(nil) }
}

func contextError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// A netOutlet attaches a station to a network inside the process.
type netOutlet struct {
	n      network
	out    fc.Sender
	detach func()
}

func (o *netOutlet) begin(s *station) error {
	detach, err := o.n.attach(s.now, func(out fc.Sender) fabricd.LocalDevice {
		o.out = out
		s.mu.Lock()
		s.out = o
		s.mu.Unlock()
		return s
	})
	o.detach = detach
	return err
}

func (o *netOutlet) Send(f *fc.Frame) { o.out.Send(f) }
func (o *netOutlet) room(fc.Addr) int {
	if r, ok := o.out.(interface{ Room() bool }); ok && !r.Room() {
		return 0
	}
	return 1
}
func (o *netOutlet) flush()                {}
func (o *netOutlet) poller(fc.Addr) poller { return nil }
func (o *netOutlet) close()                { o.detach() }

// Traffic returns the messages and bytes the connection has carried. An answer to an RDMA Read
// counts when the last frame is sent.
func (l *link) Traffic() vi.Traffic {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	t := vi.Traffic{}
	if l.c != nil {
		t = l.c.traffic
	}
	t.Credits = -1 // there is no credit: a message that finds no receive waits, or breaks the connection
	return t
}
