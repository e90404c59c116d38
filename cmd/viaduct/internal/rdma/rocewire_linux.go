//go:build linux && (amd64 || arm64)

package rdma

import (
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
	"viaduct/cmd/viaduct/internal/rdma/rxe"
	"viaduct/internal/rocecm"
	"viaduct/internal/wire/ib"
)

// A cmWire connects identifiers of RoCE devices with peers this service does not serve, through the
// connection manager of RoCEv2. It implements rocecm.Handler. Its mu is taken before
// roceManager.mu.
type cmWire struct {
	s     *Service
	begin time.Time
	guid  uint64          // identifies this service to its peers; all devices of a host have the same
	in    chan cmDatagram // received datagrams; more are dropped, and sent again by the peer

	mu     sync.Mutex
	m      *rocecm.Manager                // guarded by mu
	ports  map[netip.Addr]*rxe.Management // guarded by mu
	timer  *time.Timer                    // guarded by mu
	closed bool                           // guarded by mu
}

// A cmDatagram is a datagram received at the address own.
type cmDatagram struct {
	own, from netip.Addr
	b         []byte
}

// maxWaitingDatagrams limits the memory for datagrams that strangers may send.
const maxWaitingDatagrams = 256

func newCMWire(s *Service) *cmWire {
	w := &cmWire{s: s, begin: time.Now(), guid: rand.Uint64(), in: make(chan cmDatagram, maxWaitingDatagrams),
		ports: map[netip.Addr]*rxe.Management{}}
	w.m = rocecm.New(w)
	return w
}

// serve handles datagrams until the service is closed.
func (w *cmWire) serve() {
	for {
		select {
		case <-w.s.done:
			return
		case d := <-w.in:
			msg, err := ib.ParseCM(d.b)
			if err != nil {
				continue
			}
			w.do(func(m *rocecm.Manager, now rocecm.Time) { m.Receive(now, d.own, d.from, &msg) })
		}
	}
}

// do calls f, sends the resulting messages, and sets the timer. It does nothing after close.
func (w *cmWire) do(f func(m *rocecm.Manager, now rocecm.Time)) {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return
	}
	now := time.Since(w.begin)
	f(w.m, now)
	out := w.m.Take()
	if at, ok := w.m.Deadline(); ok {
		if w.timer == nil {
			w.timer = time.AfterFunc(at-now, w.tick)
		} else {
			w.timer.Reset(at - now)
		}
	}
	ports := make([]*rxe.Management, len(out))
	for i := range out {
		ports[i] = w.ports[out[i].From]
	}
	w.mu.Unlock()
	for i := range out {
		if ports[i] != nil {
			ports[i].Send(out[i].To, out[i].CM.Append(nil))
		}
	}
}

func (w *cmWire) tick() { w.do((*rocecm.Manager).Tick) }

// close stops connection management. No program gets an event from the wire afterwards.
func (w *cmWire) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	if w.timer != nil {
		w.timer.Stop()
	}
}

// open makes the address own reachable for connection management. It does nothing if own is
// reachable already, or after close.
func (w *cmWire) open(own netip.Addr) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || w.ports[own] != nil {
		return nil
	}
	p, err := w.s.roce.Manage(own, func(from netip.Addr, b []byte) {
		select {
		case w.in <- cmDatagram{own, from, append([]byte(nil), b...)}:
		default:
		}
	}, w.expects)
	if err != nil {
		return err
	}
	if len(w.ports) == 0 {
		w.s.wg.Go(w.serve)
	}
	w.ports[own] = p
	return nil
}

// openFor makes the addresses reachable where an identifier of a port space listens. at is the
// listener's address, possibly unspecified. A failure is only explained to the user.
func (w *cmWire) openFor(ps uint16, at netip.Addr) {
	for _, d := range w.s.devices {
		for _, g := range d.gids.entries() {
			own := netip.AddrFrom16(g.gid).Unmap()
			if d.is != roce || !rxe.OnWire(g.gid) || !at.IsUnspecified() && at != own && !d.standsFor(own, at) || w.s.roceFor(ps, own) != d {
				continue
			}
			if err := w.open(own); err != nil {
				w.s.explain("rdma_cm: no connections from other hosts: %v", err)
			}
		}
	}
}

// standsFor reports whether own is the address of packets from the loopback address at.
func (d *device) standsFor(own, at netip.Addr) bool {
	g, _, ok := d.gidOf(at)
	return ok && at.IsLoopback() && netip.AddrFrom16(g).Unmap() == own
}

// expects reports whether a datagram belongs to this service. Other services of this host get the
// other datagrams.
func (w *cmWire) expects(from netip.Addr, b []byte) bool {
	msg, err := ib.ParseCM(b)
	if err != nil {
		return true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.m.Expects(from, &msg)
}

// Values in a REQ, as the kernel's rdma_cm sets them.
const (
	cmResponseTime = 20
	cmMaxRetries   = 15
	hopLimit       = 64
)

// connect sends a connection request to a peer that this service does not serve. The caller holds
// no locks.
func (w *cmWire) connect(id *cmID, p abi.ConnParam) {
	id.mu.Lock()
	ps, src, dst, dev, typ := id.ps, id.src, id.dst, id.dev, id.typ
	r, timeout := id.roce, id.timeout
	sgid, _, _ := dev.gidOf(src.Addr())
	id.mu.Unlock()
	if timeout == 0 {
		timeout = defaultTimeout
	}
	own, to := netip.AddrFrom16(sgid).Unmap(), dst.Addr().Unmap()
	asking := ib.IPHeader{Source: netip.AddrPortFrom(own, src.Port()), Destination: to}
	if g, _, ok := dev.gidOf(to); ok && to.IsLoopback() { // another service of this host
		asking.Source, to = src, netip.AddrFrom16(g).Unmap()
	}
	if err := w.open(own); err != nil {
		w.s.tellOnce(err.Error(), "rdma_cm to %v: %v", dst, err)
		id.setState(cmOver)
		id.tell(abi.EvUnreachable, unix.EHOSTUNREACH, abi.ConnParam{})
		return
	}
	private := asking.Append(nil)
	req := ib.CM{Kind: ib.CMReq, Private: append(private, p.Private...), Req: ib.CMRequest{
		ServiceID: ib.IPServiceID(ps, dst.Port()), GUID: w.guid, QPN: p.QP, PSN: ib.PSN(r.psn),
		Responder: p.IRD, Initiator: p.ORD,
		Retries: p.Retry, RNRRetries: p.RNRRetry, SRQ: p.SRQ, PKey: ib.DefaultPKey, MTU: dev.mtu,
		ResponseTime: cmResponseTime, LocalTime: cmResponseTime, MaxRetries: cmMaxRetries, AckTimeout: timeout,
		Source: own, Destination: to, HopLimit: hopLimit}}
	switch typ {
	case rxe.UC:
		req.Req.Transport = 1
	case rxe.UD:
		req.Kind = ib.CMSIDRReq
		req.SIDR = ib.CMService{ServiceID: req.Req.ServiceID, PKey: ib.DefaultPKey}
	}
	w.do(func(m *rocecm.Manager, now rocecm.Time) {
		c := m.Connect(now, own, to, req, id)
		w.s.roceCM.mu.Lock()
		r.wire, r.peerGID = c, to.As16()
		over := r.over
		w.s.roceCM.mu.Unlock()
		if over { // the program gave up in the meantime
			m.Disconnect(now, c)
		}
	})
	w.s.explain("rdma_cm %v -> %v: asking by RoCEv2", src, dst)
}

// asked returns the port space and address of the service that a request is for. A peer at another
// host can't ask for a service at a loopback address.
func asked(from netip.Addr, msg *ib.CM, local func(rxe.GID) bool) (h ib.IPHeader, ps uint16, dst netip.AddrPort, ok bool) {
	h, ok = ib.ParseIPHeader(msg.Private)
	service := msg.Req.ServiceID
	if msg.Kind == ib.CMSIDRReq {
		service = msg.SIDR.ServiceID
	}
	ok = ok && service>>32 == 0 && (!h.Destination.IsLoopback() || from.IsLoopback() || local(from.As16()))
	return h, uint16(service >> 16), netip.AddrPortFrom(h.Destination, uint16(service)), ok
}

// Serves implements rocecm.Handler.
func (w *cmWire) Serves(from netip.Addr, msg *ib.CM) bool {
	_, ps, dst, ok := asked(from, msg, w.s.roce.Local)
	m := &w.s.roceCM
	m.mu.Lock()
	defer m.mu.Unlock()
	return ok && m.listener(ps, dst) != nil
}

// Requested implements rocecm.Handler. It creates an identifier for the request, and reports the
// request to the listening program. [ROCE-CM-4] [ROCE-CM-5]
func (w *cmWire) Requested(c *rocecm.Conn, from netip.Addr, msg *ib.CM) bool {
	h, ps, dst, ok := asked(from, msg, w.s.roce.Local)
	if !ok {
		return false
	}
	s, q := w.s, &msg.Req
	n := &cmID{s: s, ps: ps, typ: rxe.RC, sock: -1, state: cmRequested, src: dst, dst: h.Source}
	// Programs query the attributes of their queue pair before they accept.
	n.roce = &roceID{wire: c, peerGID: from.As16(), psn: rand.Uint32N(1 << 24), ird: q.Initiator, ord: q.Responder,
		remoteQPN: q.QPN, remotePSN: uint32(q.PSN), retry: q.Retries, rnr: q.RNRRetries}
	switch {
	case msg.Kind == ib.CMSIDRReq:
		n.typ = rxe.UD
	case q.Transport == 1:
		n.typ = rxe.UC
	}
	m := &s.roceCM
	m.mu.Lock()
	l := m.listener(ps, dst)
	n.dev = s.roceFor(ps, dst.Addr())
	if l == nil || n.dev == nil {
		m.mu.Unlock()
		return false
	}
	l.mu.Lock()
	n.file = l.file
	f, uid := l.file, l.uid
	l.backlog--
	l.mu.Unlock()
	s.cm.add(n)
	m.mu.Unlock()
	c.Owner = n
	e := abi.CMEvent{UID: uid, ID: n.num, Type: abi.EvConnectRequest}
	private := append([]byte(nil), msg.Private[ib.IPHeaderLen:]...)
	if n.typ == rxe.UD {
		e.UD = &abi.UDParam{Private: private}
	} else {
		e.Param = abi.ConnParam{QP: q.QPN, Private: private, SRQ: q.SRQ, IRD: q.Initiator,
			ORD: q.Responder, Retry: q.Retries, RNRRetry: q.RNRRetries}
	}
	if !f.post(&cmEvent{CMEvent: e, of: l, subject: n}) {
		s.wg.Go(n.destroy) // in a goroutine, because it takes mu
		return false
	}
	return true
}

// reply is accept on the passive side. It returns false if the peer has given up.
func (w *cmWire) reply(id *cmID, p abi.ConnParam) (ok bool) {
	r := id.roce
	rep := ib.CM{Kind: ib.CMRep, Private: p.Private,
		Rep: ib.CMReply{QPN: p.QP, PSN: ib.PSN(r.psn), Responder: p.IRD, Initiator: p.ORD,
			RNRRetries: p.RNRRetry, SRQ: p.SRQ, GUID: w.guid}}
	if id.typ == rxe.UD {
		rep.Kind = ib.CMSIDRRep
		rep.SIDR = ib.CMService{ServiceID: ib.IPServiceID(id.ps, id.src.Port()), QPN: p.QP, QKey: abi.DatagramKey}
	}
	w.do(func(m *rocecm.Manager, now rocecm.Time) { ok = m.Accept(now, r.wire, rep) })
	return ok
}

// confirm is accept on the active side. It returns false if the peer has given up.
func (w *cmWire) confirm(c *rocecm.Conn) (ok bool) {
	w.do(func(m *rocecm.Manager, _ rocecm.Time) { ok = m.Confirm(c) })
	return ok
}

func (w *cmWire) reject(c *rocecm.Conn, private []byte) {
	w.do(func(m *rocecm.Manager, _ rocecm.Time) { m.Reject(c, ib.RejectConsumer, private) })
}

func (w *cmWire) disconnect(c *rocecm.Conn) {
	w.do(func(m *rocecm.Manager, now rocecm.Time) { m.Disconnect(now, c) })
}

// Replied implements rocecm.Handler.
func (w *cmWire) Replied(c *rocecm.Conn, msg *ib.CM) {
	id := c.Owner.(*cmID)
	private := append([]byte(nil), msg.Private...)
	m := &w.s.roceCM
	m.mu.Lock()
	r, p := id.roce, &msg.Rep
	if msg.Kind == ib.CMRep {
		r.remoteQPN, r.remotePSN, r.ird, r.ord, r.rnr = p.QPN, uint32(p.PSN), p.Initiator, p.Responder, p.RNRRetries
		m.mu.Unlock()
		id.tell(abi.EvConnectReply, 0, abi.ConnParam{QP: p.QPN, Private: private, SRQ: p.SRQ,
			IRD: p.Initiator, ORD: p.Responder, RNRRetry: p.RNRRetries})
		return
	}
	r.wire = nil // a request for datagrams ends with its answer
	id.mu.Lock()
	id.state = cmConnected
	ah := id.ahLocked(r.peerGID)
	id.mu.Unlock()
	m.mu.Unlock()
	id.post(abi.CMEvent{Type: abi.EvEstablished,
		UD: &abi.UDParam{QP: msg.SIDR.QPN, QKey: msg.SIDR.QKey, AH: ah, Private: private}})
}

// Established implements rocecm.Handler.
func (w *cmWire) Established(c *rocecm.Conn) {
	id := c.Owner.(*cmID)
	id.setState(cmConnected)
	w.s.explain("rdma_cm %v: connected with %v by RoCEv2", id.src, id.dst)
	id.tell(abi.EvEstablished, 0, abi.ConnParam{})
}

// repeatLocked repeats a request that was rejected because no service of this host has a listener.
// It returns false if the request has to end. roceManager.mu is locked.
func (w *cmWire) repeatLocked(id *cmID, msg *ib.CM) bool {
	r := id.roce
	noService := msg.Kind == ib.CMRej && msg.Reason == ib.RejectInvalidServiceID || msg.Kind == ib.CMSIDRRep && msg.SIDR.Status == 1
	if r.again == nil || !noService || time.Now().After(r.until) {
		return false
	}
	p := *r.again
	r.wire = nil
	w.s.wg.Go(func() {
		time.Sleep(10 * time.Millisecond)
		if !id.isDestroyed() && !id.requestRoCE(p) {
			w.connect(id, p)
		}
	})
	return true
}

// Ended implements rocecm.Handler.
func (w *cmWire) Ended(c *rocecm.Conn, why rocecm.End, msg *ib.CM) {
	id, _ := c.Owner.(*cmID)
	if id == nil {
		return
	}
	m := &w.s.roceCM
	m.mu.Lock()
	told := id.roce.over
	if !told && why == rocecm.Rejected && w.repeatLocked(id, msg) {
		m.mu.Unlock()
		return
	}
	id.roce.over = true
	id.setState(cmOver)
	m.mu.Unlock()
	switch {
	case told:
	case why == rocecm.Disconnected:
		id.tell(abi.EvDisconnected, 0, abi.ConnParam{})
	case why == rocecm.Rejected && msg.Kind == ib.CMRej:
		w.s.explain("rdma_cm %v -> %v: rejected by the peer, reason %d", id.src, id.dst, msg.Reason)
		id.tellReason(abi.EvRejected, int32(msg.Reason), abi.ConnParam{Private: append([]byte(nil), msg.Private...)})
	case why == rocecm.Rejected:
		id.tellReason(abi.EvUnreachable, int32(msg.SIDR.Status), abi.ConnParam{})
	default:
		w.s.explain("rdma_cm %v -> %v: no answer by RoCEv2", id.src, id.dst)
		id.tell(abi.EvUnreachable, unix.ETIMEDOUT, abi.ConnParam{})
	}
}
