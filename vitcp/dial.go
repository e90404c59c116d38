package vitcp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"viaduct/internal/sock"
	"viaduct/internal/wire/vitcpwire"
	"viaduct/vi"
)

// A call holds one side's parameters for setting up a connection.
type call struct {
	d      *device
	ep     *vi.Endpoint
	attrs  vitcpwire.Attributes
	mtu    uint32
	window uint16 // number of RDMA Reads that this side serves at once
	local  vitcpwire.Discriminator
	remote vitcpwire.Discriminator
	target netip.AddrPort // for callers: address to dial
	from   netip.Addr     // for callers: address of this end; if invalid or unspecified, the system chooses
}

// newCall returns the parameters of a connection from local to remote, in the peer-to-peer model if
// peer is set. The error names a discriminator or an attribute of the VI without a form on the
// wire.
func (d *device) newCall(ep *vi.Endpoint, local, remote vi.Address, peer bool) (*call, error) {
	c := &call{d: d, ep: ep}
	var err error
	if c.local, err = discriminator(local.Discriminator); err != nil {
		return nil, err
	}
	if c.remote, err = discriminator(remote.Discriminator); err != nil {
		return nil, err
	}
	if ap, ok := local.AddrPort(); ok {
		c.from = ap.Addr().Unmap()
	}
	if !peer && c.from == d.known.Addr() {
		// A device listening at a wildcard address reports a single address, but calls from any. A
		// peer-to-peer request must come from the reported address, because the other side expects
		// no other address. [V-36]
		c.from = d.addr.Addr()
	}
	return c, c.setAttributes(peer)
}

func (c *call) setAttributes(peer bool) error {
	cfg := &c.d.p.cfg
	a := c.ep.Attributes()
	var level reliability
	switch a.Reliability {
	case vi.ReliableDelivery:
		level = delivery
	case vi.ReliableReception:
		level = reception
	}
	var ok bool
	if c.attrs, ok = cfg.habits().attributes(level); !ok {
		return fmt.Errorf("%w: reliable reception cannot be told apart from reliable delivery here",
			vi.ErrInvalidReliability)
	}
	if a.EnableRDMAWrite {
		c.attrs |= vitcpwire.RDMAWrite
	}
	if a.EnableRDMARead {
		c.attrs |= vitcpwire.RDMARead
	}
	if level != unreliable {
		// The window is the number of the peer's Reads served at once. It is sent even if Reads are
		// not enabled. The peer's Reads are then refused one by one as protection errors, and both
		// sides get an error. [V-26]
		w := a.ReadWindow
		if w == 0 {
			w = cfg.ReadWindow
		}
		if w > 65535 {
			return fmt.Errorf("%w: read window %d, at most 65535", vi.ErrInvalidParameter, w)
		}
		c.window = uint16(w)
	}
	if a.FlowControl {
		c.attrs |= vitcpwire.FlowControl
	}
	if peer {
		c.attrs |= vitcpwire.PeerToPeer
	}
	c.mtu = a.MaxTransferSize
	return nil
}

// greeting returns the local connect message of type t. The calling fields describe the sender, in
// a request and also in an answer. The message advertises the descriptors posted so far, maxCredits
// at most. [V-09] [V-16] [V-20]
func (c *call) greeting(t vitcpwire.Type, mtu uint32, security []byte) greeting {
	return greeting{
		h: vitcpwire.Header{
			Type:   t,
			Number: vitcpwire.Number(c.d.p.cfg.FirstMessage),
			Posted: vitcpwire.Count(min(c.ep.RecvPosted(), maxCredits)),
		},
		ce: vitcpwire.CE{
			Attributes: c.attrs, MTU: mtu, Calling: c.local, ReadWindow: c.window, Called: c.remote,
		},
		security: security,
	}
}

// security returns the security information for the local connect message: the extension block, the
// Authenticator's part and the VI consumer's part. The first two may be missing. The error is the
// Authenticator's, or ErrInvalidParameter if the result is too long.
func (c *call) security(about Call) ([]byte, error) {
	cfg := &c.d.p.cfg
	info := c.ep.Attributes().Security
	if cfg.Security != nil {
		var err error
		if info, err = cfg.Security.Sign(about, info); err != nil {
			return nil, err
		}
	}
	var bits uint16
	if cfg.Disconnect {
		bits |= extensionDisconnect
	}
	info = append(appendExtensions(nil, bits), info...)
	if len(info) > vitcpwire.MaxSecurity {
		return nil, fmt.Errorf("%w: %d bytes of security information, at most %d",
			vi.ErrInvalidParameter, len(info), vitcpwire.MaxSecurity)
	}
	return info, nil
}

// openSecurity checks the peer's security information. It returns the extension bits and the part
// for the consumer, nil if empty. If the Authenticator refuses, the error wraps ErrSecurity.
func (p *Provider) openSecurity(about Call, wire []byte) (bits uint16, info []byte, err error) {
	bits, info = cutExtensions(wire)
	if p.cfg.Security != nil {
		if info, err = p.cfg.Security.Verify(about, info); err != nil {
			p.count.secur.Add(1)
			if !errors.Is(err, ErrSecurity) {
				err = fmt.Errorf("%w: %w", ErrSecurity, err)
			}
			return 0, nil, err
		}
	}
	if len(info) == 0 {
		info = nil
	}
	return bits, info, nil
}

// dial sets up TCP to the address to, then TLS if configured, and applies WrapConn. On an error
// nothing stays open.
func (c *call) dial(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	cfg := &c.d.p.cfg
	var dialer net.Dialer // keepalive is on with 15 s, unless tune changes it [V-35]
	if c.from.IsValid() && !c.from.IsUnspecified() && c.from.Is4() == to.Addr().Unmap().Is4() {
		// A caller uses its NIC's address if the target has the same address family. Otherwise the
		// system chooses. [V-36] The system also chooses a new port each time. [VIT-2.2.2.2.1-3]
		dialer.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(c.from, 0))
		dialer.Control = latePort
	}
	dial := dialer.DialContext
	if cfg.owns(cfg.TLSDial) {
		dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			return sock.Dial(ctx, &dialer, network, address)
		}
	}
	nc, err := dial(ctx, "tcp", to.String())
	if err != nil {
		return nil, err
	}
	if err := cfg.tune(nc); err != nil {
		nc.Close()
		return nil, err
	}
	if err := sock.ShareMemory(ctx, nc, cfg.SameHost, cfg.SameHostDir); err != nil {
		nc.Close()
		return nil, err
	}
	if cfg.TLSDial != nil {
		tc := cfg.TLSDial
		if tc.ServerName == "" && !tc.InsecureSkipVerify {
			tc = tc.Clone()
			tc.ServerName = to.Addr().String()
		}
		t := tls.Client(nc, tc)
		if err := t.HandshakeContext(ctx); err != nil {
			nc.Close()
			return nil, err
		}
		nc = t
	}
	return cfg.wrap(nc), nil
}

// about describes the call for Authenticators. request becomes Call.Request.
func (c *call) about(nc net.Conn, request []byte) Call {
	return Call{
		Caller: addrPort(nc.LocalAddr()).Addr(), Callee: addrPort(nc.RemoteAddr()).Addr(),
		Calling: plain(c.local), Called: plain(c.remote), Request: request,
	}
}

// An answer is the result of a Connect Request: the peer's connect message g, or err.
type answer struct {
	g          greeting
	sawBytes   bool
	request    []byte          // this side's security information
	advertised vitcpwire.Count // this side's receive descriptors, as its message counted them
	err        error
}

// ask sends the Connect Request and reads the answer. A past deadline of nc, or Close, makes ask
// return early. Failures are in the field err of the answer.
func (c *call) ask(nc net.Conn) (a answer) {
	about := c.about(nc, nil)
	if a.request, a.err = c.security(about); a.err != nil {
		return a
	}
	g := c.greeting(vitcpwire.ConnectRequest, c.mtu, a.request)
	a.advertised = g.h.Posted
	if a.err = writeGreeting(nc, c.d.p.cfg.Dialect.wire(), g); a.err != nil {
		return a
	}
	n := 0
	a.g, n, a.err = readGreeting(nc, c.d.p.cfg.Dialect.wire(), c.d.p.cfg.MaxSecurity)
	a.sawBytes = n > 0
	if errors.Is(a.err, vitcpwire.ErrDiscriminator) {
		a.err = &ProtocolError{Reason: "answer to a connect request", Err: a.err}
	}
	if a.err == nil && a.g.h.Type == vitcpwire.ConnectRequest {
		a.err = framingf("%v as an answer", a.g.h.Type)
	}
	return a
}

// take checks the Connect Accept in a, received on nc, and makes a link. On an error the caller
// must close nc. The error wraps an error of package vi.
func (c *call) take(nc net.Conn, a answer) (vi.Link, vi.Agreement, error) {
	p := c.d.p
	ce := &a.g.ce
	if m := p.cfg.habits().match(c.attrs, ce.Attributes); m != matching {
		err := &MismatchError{Attribute: m.String(), Ours: c.attrs.String(), Theirs: ce.Attributes.String()}
		return nil, vi.Agreement{}, fmt.Errorf("%w: %w", vi.ErrInvalidReliability, err)
	}
	if !checkMTU(c.mtu, ce.MTU) {
		return nil, vi.Agreement{}, fmt.Errorf("%w: proposed %d, the peer agreed to %d",
			vi.ErrInvalidMTU, c.mtu, ce.MTU)
	}
	request := a.request
	if request == nil {
		request = []byte{}
	}
	bits, info, err := p.openSecurity(c.about(nc, request), a.g.security)
	if err != nil {
		return nil, vi.Agreement{}, fmt.Errorf("%w: %w", vi.ErrReject, err)
	}
	l, g := c.link(nc, a.g, a.advertised, ce.MTU, bits, info)
	return l, g, nil
}

// link creates the connection's data path from the parameters of both sides.
func (c *call) link(nc net.Conn, theirs greeting, advertised vitcpwire.Count, mtu uint32, bits uint16, info []byte) (*link, vi.Agreement) {
	ce := &theirs.ce
	g := vi.Agreement{
		Remote:          c.d.p.remoteAttributes(ce, info),
		RemoteAddress:   vi.Address{Host: c.d.hostOf(nc), Discriminator: plain(ce.Calling)},
		MaxTransferSize: mtu,
		ReadWindow:      int(ce.ReadWindow),
	}
	l := newLink(c, nc, linkTerms{
		mtu:        mtu,
		asks:       uint32(ce.ReadWindow),
		serves:     uint32(c.window),
		peerPosted: theirs.h.Posted,
		advertised: advertised,
		peerFirst:  theirs.h.Number,
		disconnect: c.d.p.cfg.Disconnect && bits&extensionDisconnect != 0,
	})
	c.d.p.count.connections.Add(1)
	return l, g
}

// hostOf returns the host part of the peer's address: the IP address without the port, because the
// port of a caller identifies nothing.
func (d *device) hostOf(nc net.Conn) []byte {
	return vi.IPAddress(netip.AddrPortFrom(addrPort(nc.RemoteAddr()).Addr(), 0), "").Host
}

// remoteAttributes returns the announced attributes of the peer's VI.
func (p *Provider) remoteAttributes(ce *vitcpwire.CE, info []byte) vi.Attributes {
	a := vi.Attributes{
		MaxTransferSize: ce.MTU,
		EnableRDMAWrite: ce.Attributes&vitcpwire.RDMAWrite != 0,
		EnableRDMARead:  ce.Attributes&vitcpwire.RDMARead != 0,
		FlowControl:     ce.Attributes&vitcpwire.FlowControl != 0,
		ReadWindow:      int(ce.ReadWindow),
		Security:        info,
	}
	switch level, _ := p.cfg.habits().level(ce.Attributes); level {
	case unreliable:
		a.Reliability = vi.UnreliableDelivery
	case delivery:
		a.Reliability = vi.ReliableDelivery
	case reception:
		a.Reliability = vi.ReliableReception
	}
	return a
}

// callTarget returns the IP address and port to call for a remote address. The port is Config.Port
// if remote names none.
func (d *device) callTarget(remote vi.Address) (netip.AddrPort, error) {
	ap, ok := remote.AddrPort()
	if !ok {
		return ap, fmt.Errorf("%w: host part %x is no IP address", vi.ErrInvalidParameter, remote.Host)
	}
	port := ap.Port()
	if port == 0 {
		port = d.p.cfg.Port
	}
	return netip.AddrPortFrom(ap.Addr().Unmap(), port), nil
}

// Connect implements vi.Device by running an active machine. [VIT 4.2]
func (d *device) Connect(ctx context.Context, ep *vi.Endpoint, local, remote vi.Address) (vi.Link, vi.Agreement, error) {
	if err := d.enter(); err != nil {
		return nil, vi.Agreement{}, err
	}
	defer d.wg.Done()
	c, err := d.newCall(ep, local, remote, false)
	if err != nil {
		return nil, vi.Agreement{}, err
	}
	if c.target, err = d.callTarget(remote); err != nil {
		return nil, vi.Agreement{}, err
	}
	// The NIC cancels ctx before it closes the device, so the device need not end attempts.
	d.p.count.activeRequests.Add(1)
	l, g, err := c.connect(ctx, c.target)
	if errors.Is(err, vi.ErrNoMatch) {
		l, g, err = c.connectBeside(ctx, err)
	}
	if err != nil {
		d.p.count.activeFailures.Add(1)
		if errors.Is(err, vi.ErrNoMatch) {
			d.pace(ctx, c.target)
		}
		d.p.cfg.Logger.Info("connect failed", "remote", c.target.String(), "called", c.remote.String(), "err", err)
		return nil, vi.Agreement{}, err
	}
	d.noteMatch(c.target, false)
	return l, g, nil
}

// connectBeside repeats a call, after a No Match, at the other processes sharing the target's port.
// It returns the first result other than No Match. If there is none, it returns err, the error from
// the target itself.
func (c *call) connectBeside(ctx context.Context, err error) (vi.Link, vi.Agreement, error) {
	for _, to := range c.d.p.beside(c.target) {
		l, g, err2 := c.connect(ctx, to)
		if !errors.Is(err2, vi.ErrNoMatch) {
			return l, g, err2
		}
	}
	return nil, vi.Agreement{}, err
}

// connect connects to the address to, and runs the machine until an outcome is reported.
func (c *call) connect(ctx context.Context, to netip.AddrPort) (vi.Link, vi.Agreement, error) {
	var m active
	m.deadline, _ = ctx.Deadline()
	var (
		nc    net.Conn
		a     answer
		stop  = func() bool { return true }
		steps = m.connect()
	)
	for {
		var next []setupStep
		for _, s := range steps {
			switch s.do {
			case stepDial:
				var err error
				nc, err = c.dial(ctx, to)
				switch {
				case ctx.Err() != nil:
					if err == nil {
						nc.Close()
					}
					nc = nil
					next = c.gaveUp(ctx, &m)
				case err != nil:
					next = m.tcpFailed(err)
				default:
					next = m.tcpEstablished()
				}
			case stepSendRequest:
				// At the end of ctx the deadline unblocks the read.
				stop = context.AfterFunc(ctx, func() { nc.SetDeadline(time.Unix(1, 0)) })
				a = c.ask(nc)
				if !stop() {
					next = c.gaveUp(ctx, &m)
				} else {
					next = m.answered(time.Now(), a)
				}
			case stepClose:
				if nc != nil {
					nc.Close()
					nc = nil
				}
			case stepDone:
				if s.out == outcomeConnected {
					l, g, err := c.take(nc, a)
					if err != nil {
						m.disconnect()
						nc.Close()
						return nil, g, err
					}
					return l, g, nil
				}
				return nil, vi.Agreement{}, outcomeError(ctx, s, a.g.h.Error)
			}
		}
		for next == nil { // backing off
			t := time.NewTimer(time.Until(m.wakeAt()))
			select {
			case <-t.C:
				next = m.timer(time.Now())
			case <-ctx.Done():
				next = c.gaveUp(ctx, &m)
			}
			t.Stop()
		}
		steps = next
	}
}

// gaveUp handles the end of the caller's context. An expired deadline becomes a timer event of the
// machine, and a cancellation becomes a disconnect event.
func (c *call) gaveUp(ctx context.Context, m *active) []setupStep {
	if !m.deadline.IsZero() && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return m.timer(m.deadline)
	}
	return m.disconnect()
}

// answered converts the outcome of the request into an event of the machine.
func (m *active) answered(now time.Time, a answer) []setupStep {
	if a.err != nil {
		if _, ok := errors.AsType[*ProtocolError](a.err); ok {
			return m.violated(a.err)
		}
		return m.tcpClosed(now, a.sawBytes, a.err)
	}
	switch a.g.h.Type {
	case vitcpwire.ConnectAccept:
		return m.accepted()
	case vitcpwire.ConnectReject:
		return m.rejected(a.g.h.Error.IS())
	}
	return m.noMatch()
}

// outcomeError returns the error of package vi for a failed attempt with last step s. code is the
// Remote Error Code of a Connect Reject.
func outcomeError(ctx context.Context, s setupStep, code vitcpwire.RemoteError) error {
	switch s.out {
	case outcomeTimeout:
		if s.err != nil {
			return fmt.Errorf("%w: %w", vi.ErrTimeout, s.err)
		}
		return vi.ErrTimeout
	case outcomeRejected, outcomeResources, outcomeVersion:
		return &RejectError{uint16(code)}
	case outcomeAttributes:
		return fmt.Errorf("%w: %w", vi.ErrReject, &MismatchError{Remote: true})
	case outcomeNoMatch:
		return vi.ErrNoMatch
	case outcomeNotReachable:
		return dialError(s.err)
	case outcomeLost:
		return fmt.Errorf("%w: connection closed instead of an answer: %w", vi.ErrNotReachable, s.err)
	case outcomeViolation:
		return fmt.Errorf("%w: %w", vi.ErrNotReachable, s.err)
	}
	if ctx.Err() != nil {
		return contextError(ctx)
	}
	return vi.ErrInvalidState
}
