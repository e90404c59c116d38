package vitcp

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"syscall"
	"time"

	"viaduct/internal/attend"
	"viaduct/internal/perturb"
	"viaduct/internal/sock"
	"viaduct/internal/wire/vitcpwire"
	"viaduct/vi"
)

// A listener is one listening TCP address of the process. It passes each Connect Request to the
// wait for the request's discriminator. [VIT-2.2.2.2.1-2]
type listener struct {
	p    *Provider
	l    net.Listener
	addr netip.AddrPort // address that callers use: the bound address, or for a branch the shared one
	sign net.Listener   // announces a branch, otherwise nil; see sharing.go
	refs int            // guarded by Provider.mu: number of devices that use the listener
	stop chan struct{}  // closed with the listener
	wg   sync.WaitGroup

	mu       perturb.Mutex
	closed   bool                                    // guarded by mu, as all below
	halfOpen map[net.Conn]struct{}                   // undecided connections
	waits    map[vitcpwire.Discriminator][]*wait     // waits by discriminator, in order of arrival
	peers    map[peerKey][]*peerCall                 // pending peer-to-peer requests
	held     map[vitcpwire.Discriminator][]chan bool // requests in their grace period: the channel gets a value when a wait appears
}

// A wait is a call of Device.Wait.
type wait struct {
	local netip.Addr    // the wait accepts only connections to this address; if invalid or unspecified, to any address
	got   chan *request // has one slot; filled by the goroutine that removes the wait from the list
}

// listenString returns a listener at addr (host:port). An existing listener is shared if addr names
// an IP address and a port.
func (p *Provider) listenString(addr string) (*listener, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, listenError(err)
	}
	if host == "" || port == "0" {
		return p.open(addr)
	}
	ip, err := netip.ParseAddr(host)
	n, perr := strconv.ParseUint(port, 10, 16)
	if err != nil || perr != nil {
		return p.open(addr) // package net resolves names
	}
	return p.acquire(netip.AddrPortFrom(ip.Unmap(), uint16(n)))
}

func (p *Provider) open(addr string) (*listener, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.openLocked(addr)
}

// acquire returns the listener for ap, and creates a listener if there is none. If another process
// uses the port, and Config.SharePort applies, the new listener is a branch.
func (p *Provider) acquire(ap netip.AddrPort) (*listener, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.listeners {
		if l.serves(ap) {
			l.refs++
			return l, nil
		}
	}
	addr := ap.String()
	if ap.Addr() == netip.IPv6Unspecified() {
		addr = ":" + strconv.Itoa(int(ap.Port())) // both families
	}
	l, err := p.openLocked(addr)
	if errors.Is(err, syscall.EADDRINUSE) && p.shares(ap) {
		return p.branchLocked(ap)
	}
	return l, err
}

func (p *Provider) openLocked(addr string) (*listener, error) {
	nl, err := p.socket(addr)
	if err != nil {
		return nil, err
	}
	return p.startLocked(nl, bound(nl), nil), nil
}

// socket opens a listening socket at addr, with Config.ListenFunc if set.
func (p *Provider) socket(addr string) (net.Listener, error) {
	listen := p.cfg.ListenFunc
	if listen == nil {
		listen = net.Listen
	}
	nl, err := listen("tcp", addr)
	if err != nil {
		return nil, listenError(err)
	}
	if nl, err = p.own(nl); err != nil {
		return nil, listenError(err)
	}
	return nl, nil
}

// bound returns the address of a listening socket.
func bound(nl net.Listener) netip.AddrPort {
	ap := nl.Addr().(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

// startLocked accepts connections at nl for the address ap. sign announces a branch, and is nil
// otherwise. The caller holds p.mu.
func (p *Provider) startLocked(nl net.Listener, ap netip.AddrPort, sign net.Listener) *listener {
	l := &listener{
		p: p, l: nl, addr: ap, sign: sign, refs: 1, stop: make(chan struct{}),
		halfOpen: make(map[net.Conn]struct{}),
		waits:    make(map[vitcpwire.Discriminator][]*wait),
		peers:    make(map[peerKey][]*peerCall),
		held:     make(map[vitcpwire.Discriminator][]chan bool),
	}
	p.listeners[l] = struct{}{}
	l.wg.Go(l.acceptLoop)
	p.cfg.Logger.Info("listening", "local", nl.Addr().String())
	return l
}

// own takes a listening socket, and the sockets of the accepted connections, away from the Go
// runtime's poller, if only links use them. Otherwise it returns nl. On an error nl is closed.
func (p *Provider) own(nl net.Listener) (net.Listener, error) {
	if !p.cfg.owns(p.cfg.TLSListen) {
		return nl, nil
	}
	l, err := sock.OwnListener(nl, p.cfg.tuning())
	if err != nil && p.cfg.Congestion != "" { // an unavailable algorithm is ignored, see tune
		l, err = sock.OwnListener(nl, sock.Tuning{KeepAlive: p.cfg.KeepAlive, SameHost: p.cfg.SameHost,
			SameHostDir: p.cfg.SameHostDir})
	}
	if err != nil {
		nl.Close()
		return nil, err
	}
	return l, nil
}

// serves reports whether connections to ap arrive at l.
func (l *listener) serves(ap netip.AddrPort) bool {
	return ap.Port() == l.addr.Port() && (ap.Addr() == l.addr.Addr() || l.addr.Addr() == netip.IPv6Unspecified() ||
		l.addr.Addr() == netip.IPv4Unspecified() && ap.Addr().Is4())
}

// release drops one reference to l. Dropping the last reference closes l and the half-open
// connections, and waits for their goroutines.
func (p *Provider) release(l *listener) {
	p.mu.Lock()
	l.refs--
	last := l.refs == 0
	if last {
		delete(p.listeners, l)
	}
	p.mu.Unlock()
	if !last {
		return
	}
	close(l.stop)
	if l.sign != nil {
		l.sign.Close()
	}
	l.l.Close()
	l.mu.Lock()
	l.closed = true
	for c := range l.halfOpen {
		c.Close()
	}
	l.mu.Unlock()
	l.wg.Wait()
}

// acceptLoop accepts connections until the listener is closed.
func (l *listener) acceptLoop() {
	pause := time.Duration(0)
	for {
		c, err := l.l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// The process has no free descriptor, or the connection was reset at once. Both
			// conditions are temporary.
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			l.p.cfg.Logger.Warn("accept failed", "local", l.addr.String(), "err", err)
			select {
			case <-time.After(pause):
			case <-l.stop:
				return
			}
			continue
		}
		pause = 0
		l.admit(c)
	}
}

// admit accepts the connection c within the limits, and closes c otherwise.
func (l *listener) admit(c net.Conn) {
	p := l.p
	p.count.incoming.Add(1)
	remote := addrPort(c.RemoteAddr()).Addr()
	if a := p.cfg.Allow; a != nil && !a(remote) {
		p.count.incomingLimited.Add(1)
		c.Close()
		return
	}
	l.mu.Lock()
	full := l.closed || len(l.halfOpen) >= p.cfg.HalfOpen
	if !full {
		l.halfOpen[c] = struct{}{}
	}
	l.mu.Unlock()
	if full || !p.enterPeer(remote) {
		if !full {
			l.verdict(c)
		}
		p.count.incomingLimited.Add(1)
		p.cfg.Logger.Info("connection over the limit", "remote", remote.String())
		c.Close()
		return
	}
	l.wg.Add(1)
	attend.Go(sock.IsTCP(c), func() {
		defer l.wg.Done()
		l.serve(c, remote)
	})
}

// verdict removes c from the half-open connections, because the request of c was decided.
func (l *listener) verdict(c net.Conn) {
	l.mu.Lock()
	delete(l.halfOpen, c)
	l.mu.Unlock()
}

// enterPeer counts a connection from remote, or returns false if remote has reached Config.PerPeer.
func (p *Provider) enterPeer(remote netip.Addr) bool {
	if p.cfg.PerPeer <= 0 {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.perPeer[remote] >= p.cfg.PerPeer {
		return false
	}
	p.perPeer[remote]++
	return true
}

func (p *Provider) leavePeer(remote netip.Addr) {
	if p.cfg.PerPeer <= 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.perPeer[remote]--; p.perPeer[remote] <= 0 {
		delete(p.perPeer, remote)
	}
}

// addrPort returns the address of a socket without a zone, and an IPv4-mapped address as IPv4. The
// result is zero if a is nil or no IP address with a port.
func addrPort(a net.Addr) netip.AddrPort {
	if t, ok := a.(*net.TCPAddr); ok {
		ap := t.AddrPort()
		return netip.AddrPortFrom(plainAddr(ap.Addr()), ap.Port())
	}
	if a == nil {
		return netip.AddrPort{}
	}
	ap, _ := netip.ParseAddrPort(a.String())
	return netip.AddrPortFrom(plainAddr(ap.Addr()), ap.Port())
}

// offer passes r to the first wait for its discriminator, and returns false if there is none. In
// the second case, if grace is set, r is registered for a later wait, which sends a value on the
// channel later. later is nil if nothing was registered.
func (l *listener) offer(r *request, grace bool) (taken bool, later <-chan bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	d := r.g.ce.Called
	for i, w := range l.waits[d] {
		if !fits(w.local, r.local.Addr()) {
			continue
		}
		l.dropWaitLocked(d, i)
		delete(l.halfOpen, r.tcp) // the receiver of r owns the connection, so release must not close it
		w.got <- r
		return true, nil
	}
	if grace && !l.closed {
		ch := make(chan bool, 1)
		l.held[d] = append(l.held[d], ch)
		return false, ch
	}
	return false, nil
}

func (l *listener) dropWaitLocked(d vitcpwire.Discriminator, i int) {
	ws := l.waits[d]
	if len(ws) == 1 {
		delete(l.waits, d)
		return
	}
	l.waits[d] = append(ws[:i:i], ws[i+1:]...)
}

// wait registers w for discriminator d and wakes all requests for d in their grace period. Only the
// first request to be offered gets w.
func (l *listener) wait(d vitcpwire.Discriminator, w *wait) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waits[d] = append(l.waits[d], w)
	for _, ch := range l.held[d] {
		ch <- true // the channel has one slot and gets one value, so this does not block
	}
	delete(l.held, d)
}

// unwait removes w from the list. If w has got a request in the meantime, unwait returns it, and
// otherwise nil.
func (l *listener) unwait(d vitcpwire.Discriminator, w *wait) *request {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, x := range l.waits[d] {
		if x == w {
			l.dropWaitLocked(d, i)
			return nil
		}
	}
	return <-w.got
}

// Wait implements vi.Device.
func (d *device) Wait(ctx context.Context, local vi.Address) (vi.Request, error) {
	if err := d.enter(); err != nil {
		return nil, err
	}
	defer d.wg.Done()
	dis, err := discriminator(local.Discriminator)
	if err != nil {
		return nil, err
	}
	ap, err := d.place(local)
	if err != nil {
		return nil, err
	}
	l, err := d.listen(ap)
	if err != nil {
		return nil, err
	}
	w := &wait{local: ap.Addr(), got: make(chan *request, 1)}
	l.wait(dis, w)
	var r *request
	select {
	case r = <-w.got:
	case <-ctx.Done():
		r = l.unwait(dis, w) // a request that has arrived is returned although ctx has ended
	case <-d.ctx.Done():
		r = l.unwait(dis, w)
	}
	switch {
	case r != nil:
	case ctx.Err() != nil:
		return nil, contextError(ctx)
	default:
		return nil, vi.ErrClosed
	}
	if !d.remember(r) {
		r.drop()
		return nil, vi.ErrClosed
	}
	return r, nil
}
