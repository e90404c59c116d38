package vitcp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"viaduct/internal/perturb"
	"viaduct/internal/wire/vitcpwire"
	"viaduct/vi"
)

// answerTimeout is the time limit for sending an answer. The answer is the first message on a new
// connection, so only a broken peer can delay it.
const answerTimeout = 5 * time.Second

// A request is a received Connect Request. It runs the passive machine of the connection. [VIT 4.3]
type request struct {
	l             *listener
	d             *device // device whose wait got the request; nil before
	nc            net.Conn
	tcp           net.Conn // the TCP connection below TLS and WrapConn; the listener knows the request by it
	g             greeting
	bits          uint16 // extensions that the caller offers
	info          []byte // the consumer's part of the caller's security information
	local, remote netip.AddrPort

	timer   *time.Timer   // starts the reading of watch
	watched chan struct{} // closed when watch has ended
	mu      perturb.Mutex
	m       passive // guarded by mu once the request was offered
}

// serve handles an incoming connection until the request is decided. A connection stays open if
// handed over to a wait or a peer-to-peer request.
func (l *listener) serve(tcp net.Conn, remote netip.Addr) {
	r := &request{l: l, tcp: tcp, nc: tcp, m: passive{requestTimeout: l.p.cfg.RequestTimeout}}
	r.m.tcpAccepted(time.Now())
	tcp.SetDeadline(r.m.wakeAt())
	if !l.receive(r) {
		r.end()
	}
	l.verdict(tcp)
}

// end closes the connection, and frees a place in the limit Config.PerPeer.
func (r *request) end() {
	r.nc.Close()
	r.l.p.leavePeer(addrPort(r.tcp.RemoteAddr()).Addr())
}

// receive reads the request and passes it to a waiting call. It returns false after a refusal or an
// error; the caller must then close the connection.
func (l *listener) receive(r *request) (handedOver bool) {
	p := l.p
	if err := l.prepare(r); err != nil {
		l.note(r, err)
		return false
	}
	g, n, err := readGreeting(r.nc, p.cfg.Dialect.wire(), p.cfg.MaxSecurity)
	badDiscriminator := errors.Is(err, vitcpwire.ErrDiscriminator)
	if err == nil && g.h.Type != vitcpwire.ConnectRequest {
		err = framingf("%v instead of a connect request", g.h.Type)
	}
	if err != nil && !badDiscriminator {
		if n > 0 || !errors.Is(err, net.ErrClosed) {
			l.note(r, err)
		}
		return false
	}
	r.g = g
	r.tcp.SetDeadline(time.Now().Add(answerTimeout))
	r.m.request()
	if badDiscriminator {
		r.run(r.m.noMatch()) // the discriminator is too long to be a VI's [V-04]
		return false
	}
	ce := &g.ce
	r.local, r.remote = addrPort(r.nc.LocalAddr()), addrPort(r.nc.RemoteAddr())
	if r.bits, r.info, err = p.openSecurity(r.about(nil), g.security); err != nil {
		p.cfg.Logger.Info("connect request refused", "remote", r.remote.String(), "err", err)
		r.run(r.m.reject(rejectApplication))
		return false
	}
	// Before a consumer is asked, refuse a request no VI can match. [V-05] [V-14]
	_, levelOK := p.cfg.habits().level(ce.Attributes)
	if unknown := ce.Attributes &^ vitcpwire.KnownAttributes; ce.MTU == 0 || !levelOK ||
		unknown != 0 && !p.cfg.TolerantAttributes {
		r.run(r.m.reject(rejectAttributes))
		return false
	}
	if ce.Attributes&vitcpwire.PeerToPeer != 0 {
		return l.offerPeer(r)
	}
	return l.offerWait(r)
}

// prepare sets the options of the socket, does the TLS handshake if configured, and applies
// WrapConn.
func (l *listener) prepare(r *request) error {
	cfg := &l.p.cfg
	if err := cfg.tune(r.tcp); err != nil {
		return err
	}
	if cfg.TLSListen != nil {
		t := tls.Server(r.tcp, cfg.TLSListen)
		if err := t.Handshake(); err != nil {
			refusePlain(r.tcp, err)
			return err
		}
		r.nc = t
	}
	r.nc = cfg.wrap(r.nc)
	return nil
}

// refusePlain answers a caller without TLS with an alert (fatal, unexpected message). Without an
// answer the caller would assume that the peer is slow, and retry until its deadline.
func refusePlain(c net.Conn, err error) {
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		c.Write([]byte{21, 3, 3, 0, 2, 2, 10})
	}
}

// note counts and logs a connection without a proper request. err is the error of the read.
func (l *listener) note(r *request, err error) {
	c := &l.p.count
	if errors.Is(err, os.ErrDeadlineExceeded) {
		c.incomingTimeouts.Add(1)
		r.m.timer(time.Now())
	} else {
		c.incomingInvalid.Add(1)
		if _, ok := errors.AsType[*ProtocolError](err); ok {
			r.m.violated()
		} else {
			r.m.closed()
		}
	}
	l.p.cfg.Logger.Info("no connect request", "remote", addrPort(r.tcp.RemoteAddr()).String(), "err", err)
}

// offerWait passes r to a wait. Without a wait for the request's discriminator, r stays registered
// during the grace period, and is then answered with No Match. offerWait returns false if no wait
// got the request, or if the caller disconnected.
func (l *listener) offerWait(r *request) bool {
	// The caller may wait long for an answer, so the request watches for a disconnection before the
	// handover.
	r.nc.SetDeadline(time.Time{})
	r.watch()
	var grace <-chan time.Time
	patient := l.p.cfg.Grace > 0
	for {
		taken, later := false, (<-chan bool)(nil)
		r.mu.Lock()
		gone := r.m.state != passiveMatching // watch has seen the caller disconnect
		if !gone {
			if taken, later = l.offer(r, patient); taken {
				r.m.match()
			}
		}
		r.mu.Unlock()
		if taken {
			return true
		}
		if patient && !gone {
			if grace == nil {
				t := time.NewTimer(l.p.cfg.Grace)
				defer t.Stop()
				grace = t.C
			}
			select {
			case <-later:
				continue
			case <-grace:
			case <-r.watched:
			}
			l.unhold(r.g.ce.Called, later)
		}
		r.unwatch()
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.m.state == passiveMatching {
			r.run(r.m.noMatch())
		}
		return false
	}
}

// unhold removes a request held for its grace period from the list of d. ch identifies the request.
// unhold does nothing if a wait has already removed the request.
func (l *listener) unhold(d vitcpwire.Discriminator, ch <-chan bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, c := range l.held[d] {
		if (<-chan bool)(c) == ch { // the same channel
			l.held[d] = append(l.held[d][:i:i], l.held[d][i+1:]...)
			break
		}
	}
	if len(l.held[d]) == 0 {
		delete(l.held, d)
	}
}

// run sends the refusal in steps: Connect No Match or Connect Reject. It ignores all other steps.
// The caller closes the connection.
func (r *request) run(steps []setupStep) {
	for _, s := range steps {
		switch s.do {
		case stepSendNoMatch:
			r.l.p.count.noMatches.Add(1)
			r.reply(vitcpwire.ConnectNoMatch, 0)
		case stepSendReject:
			r.l.p.count.rejects.Add(1)
			r.reply(vitcpwire.ConnectReject, s.code)
		}
	}
}

// reply sends a refusal of type t with reason code. Compared with the request, the two
// discriminators are exchanged. Errors are ignored, because the connection ends anyway.
func (r *request) reply(t vitcpwire.Type, code uint8) {
	g := greeting{
		h: vitcpwire.Header{Type: t, Error: vitcpwire.MakeRemoteError(vitcpwire.NoError, code)},
		ce: vitcpwire.CE{
			Attributes: r.g.ce.Attributes & vitcpwire.PeerToPeer, MTU: r.g.ce.MTU,
			Calling: r.g.ce.Called, Called: r.g.ce.Calling,
		},
	}
	r.nc.SetWriteDeadline(time.Now().Add(answerTimeout))
	writeGreeting(r.nc, r.l.p.cfg.Dialect.wire(), g)
	r.lingerClose()
}

// lingerClose ends the sending direction of the stream before the connection is closed. While bytes
// of the peer are unread, closing at once would cause a reset, and the reset could destroy the
// answer.
func (r *request) lingerClose() {
	if cw, ok := r.nc.(interface{ CloseWrite() error }); ok {
		cw.CloseWrite()
	}
}

// about describes the call for Authenticators. request becomes Call.Request.
func (r *request) about(request []byte) Call {
	return Call{
		Caller: addrPort(r.nc.RemoteAddr()).Addr(), Callee: addrPort(r.nc.LocalAddr()).Addr(),
		Calling: plain(r.g.ce.Calling), Called: plain(r.g.ce.Called), Request: request,
	}
}

// watchAfter is how long a consumer may take to decide before the caller is watched for a
// disconnection. Most consumers decide sooner, and Accept checks the connection itself.
const watchAfter = 10 * time.Millisecond

// watch starts to read from the connection if the consumer has not decided after watchAfter. A
// correct caller sends nothing before the answer, so any byte or the end of the stream ends the
// request.
func (r *request) watch() {
	r.watched = make(chan struct{})
	r.timer = time.AfterFunc(watchAfter, func() {
		defer close(r.watched)
		var b [1]byte
		n, err := r.nc.Read(b[:])
		if n == 0 && errors.Is(err, os.ErrDeadlineExceeded) {
			return // unwatch has stopped the read
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.m.state == passiveMatching || r.m.state == passivePending {
			r.m.closed()
			r.nc.Close()
		}
	})
}

// unwatch stops the reading of watch, and returns when no read is in progress.
func (r *request) unwatch() {
	if r.timer.Stop() {
		close(r.watched)
		return
	}
	r.nc.SetReadDeadline(time.Unix(1, 0))
	<-r.watched
	r.nc.SetReadDeadline(time.Time{})
}

// Remote implements vi.Request.
func (r *request) Remote() vi.Address {
	return vi.Address{Host: vi.IPAddress(netip.AddrPortFrom(r.remote.Addr(), 0), "").Host,
		Discriminator: plain(r.g.ce.Calling)}
}

// Local implements vi.Request.
func (r *request) Local() vi.Address {
	ap := r.local
	if ap.Port() == vitcpwire.Port {
		ap = netip.AddrPortFrom(ap.Addr(), 0)
	}
	return vi.Address{Host: vi.IPAddress(ap, "").Host, Discriminator: plain(r.g.ce.Called)}
}

// RemoteAttributes implements vi.Request.
func (r *request) RemoteAttributes() vi.Attributes { return r.l.p.remoteAttributes(&r.g.ce, r.info) }

// Security implements vi.Request.
func (r *request) Security() []byte { return r.info }

// Accept implements vi.Request. [VIT-4.3-6]
func (r *request) Accept(ctx context.Context, ep *vi.Endpoint) (vi.Link, vi.Agreement, error) {
	if err := r.d.enter(); err != nil {
		return nil, vi.Agreement{}, err
	}
	defer r.d.wg.Done()
	c := &call{d: r.d, ep: ep, local: r.g.ce.Called, remote: r.g.ce.Calling}
	defer r.d.forget(r)
	if err := c.setAttributes(false); err != nil {
		r.refuse(rejectAttributes)
		return nil, vi.Agreement{}, err
	}
	if m := r.l.p.cfg.habits().match(c.attrs, r.g.ce.Attributes); m != matching {
		r.refuse(rejectAttributes)
		err := &MismatchError{Attribute: m.String(), Ours: c.attrs.String(), Theirs: r.g.ce.Attributes.String()}
		return nil, vi.Agreement{}, fmt.Errorf("%w: %w", vi.ErrInvalidReliability, err)
	}
	r.unwatch()
	r.mu.Lock()
	defer r.mu.Unlock()
	// The goroutine of watch may have been stopped just before it read the end of the stream.
	if r.withdrawn() {
		r.m.closed()
	}
	if r.m.state != passivePending {
		r.end()
		return nil, vi.Agreement{}, fmt.Errorf("%w: the caller has gone", vi.ErrTimeout)
	}
	r.m.accept()
	l, g, err := r.answer(ctx, c)
	if err != nil {
		r.m.closed()
		r.end()
	}
	return l, g, err
}

// withdrawn reports whether the caller has disconnected, or has sent bytes before the answer. With
// TLS the bytes are ignored, because TLS sends records of its own.
func (r *request) withdrawn() bool {
	ended, sent := hungUp(r.tcp)
	return ended || sent && r.l.p.cfg.TLSListen == nil
}

// answer sends the Connect Accept and makes the link. The machine is in state Connected already. On
// an error the caller must close the connection.
func (r *request) answer(ctx context.Context, c *call) (vi.Link, vi.Agreement, error) {
	mtu, _ := agreeMTU(c.mtu, r.g.ce.MTU)
	request := r.g.security
	if request == nil {
		request = []byte{}
	}
	security, err := c.security(r.about(request))
	if err != nil {
		return nil, vi.Agreement{}, err
	}
	deadline := time.Now().Add(answerTimeout)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	r.nc.SetWriteDeadline(deadline)
	g := c.greeting(vitcpwire.ConnectAccept, mtu, security)
	if err := writeGreeting(r.nc, r.l.p.cfg.Dialect.wire(), g); err != nil {
		return nil, vi.Agreement{}, fmt.Errorf("%w: %w", vi.ErrTimeout, err)
	}
	r.nc.SetDeadline(time.Time{})
	l, agreed := c.link(r.nc, r.g, g.h.Posted, mtu, r.bits, r.info)
	remote := addrPort(r.tcp.RemoteAddr()).Addr()
	p := r.l.p // a copy, so that onEnd does not keep r in memory
	l.onEnd = func() { p.leavePeer(remote) }
	return l, agreed, nil
}

// Reject implements vi.Request. [VIT-4.3-5]
func (r *request) Reject() error {
	r.refuse(rejectApplication)
	r.d.forget(r)
	return nil
}

func (r *request) refuse(code uint8) {
	r.unwatch()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.m.state == passivePending {
		r.run(r.m.reject(code))
	}
	r.end()
}

// remember registers a request awaiting the consumer's decision, so that closing the device ends
// the request. It fails if the device is closed.
func (d *device) remember(r *request) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return false
	}
	r.d = d
	d.pending[r] = struct{}{}
	return true
}

func (d *device) forget(r *request) {
	d.mu.Lock()
	delete(d.pending, r)
	d.mu.Unlock()
}

// drop refuses an undecided request because the device is closed.
func (r *request) drop() { r.refuse(rejectResources) }
