package fcvi

import (
	"time"

	"viaduct/internal/fc"
	"viaduct/internal/wire/iu"
)

// A wait is a consumer's pending call for a connection request with discriminator disc.
type wait struct {
	disc  []byte
	match func(c *conn) // called once with a held request, which it accepts or rejects
}

// addWait registers w. If a lingering request has w's discriminator, w gets the request at once
// instead. [FCVI-5.3.2-6]
func (p *port) addWait(now fc.Time, w *wait) {
	for _, c := range p.handles.all() {
		if c.claim == lingering && string(c.local.Discriminator) == string(w.disc) {
			c.claim = taken
			w.match(c)
			return
		}
	}
	p.waits = append(p.waits, w)
}

// removeWait removes w. It returns false if w is not registered, because w already has a request.
func (p *port) removeWait(w *wait) bool {
	for i, o := range p.waits {
		if o == w {
			p.waits = append(p.waits[:i], p.waits[i+1:]...)
			return true
		}
	}
	return false
}

func (p *port) takeWait(disc []byte) *wait {
	for i, w := range p.waits {
		if string(w.disc) == string(disc) {
			p.waits = append(p.waits[:i], p.waits[i+1:]...)
			return w
		}
	}
	return nil
}

// isMine reports whether the host part of a names this port. An unspecified host does.
func (p *port) isMine(a iu.NetAddress) bool {
	if n, ok := a.PortName(); ok {
		return fc.WWN(n) == p.np.Name()
	}
	ip := a.IP()
	if !ip.IsValid() {
		return true // unspecified
	}
	want := fc.FARPIP(ip)
	for _, h := range p.np.IPForms() {
		if h == want {
			return true
		}
	}
	return false
}

// connectRqst handles a CONNECT_RQST: a waiter gets the request, or else the request is held or
// refused. [FCVI 5.3.2] [FCVI 5.3.3] [FCVI 5.3.4]
func (p *port) connectRqst(now fc.Time, r *fc.Remote, f *fc.Frame, h *iu.Header) {
	defer p.pump(now)
	key := setupKey{r.PortName, h.Total} // [FCVI-5.9.10-3]
	if s := p.setups[key]; s != nil {
		if h.Flags&iu.FlagRetry == 0 {
			p.stats.DupRqst++
		}
		p.repeated(now, r, f, h, s)
		return
	}
	q, _, err := p.cfg.codec.ParseConnectRqst(f.Payload)
	refuse := func(reason iu.Reason) {
		p.stats.Rejected++
		p.refuse(now, r, f, h, q.Handle, reason)
		p.remember(now, key, reason)
	}
	mode := h.Flags.Mode()
	switch {
	case err != nil || q.Handle == 0 || mode != iu.ClientServer && mode != iu.PeerToPeer:
		p.stats.Malformed++
		refuse(iu.BadFormat) // [FCVI-6.9-3]
		return
	case !p.isMine(q.Remote):
		refuse(iu.AddressMismatch)
		return
	case !q.Attributes.Reliability.Valid():
		refuse(iu.InvalidReliability)
		return
	case q.Attributes.Reliability == iu.Unreliable && q.Attributes.Read: // [FCVI-7.3-8]
		refuse(iu.InvalidRDMARead)
		return
	case len(p.setups)-len(p.ended) >= maxSetups:
		p.stats.SetupLimit++
		p.refuse(now, r, f, h, q.Handle, iu.NoResources)
		return
	}
	if mode == iu.PeerToPeer { // a waiter never gets a peer-to-peer request [VIA-6.4-23]
		p.peerRqst(now, r, f, h, &q, refuse)
		return
	}
	w := p.takeWait(q.Remote.Discriminator)
	if w == nil && p.cfg.linger == 0 {
		for _, c := range p.handles.conns {
			if c.mode == iu.PeerToPeer && c.state != stHeld && c.matches(q.Remote, q.Local) {
				refuse(iu.BadMode) // [FCVI-5.3.3-5]
				return
			}
		}
		refuse(iu.NoMatch) // without delay [FCVI-5.3.2-5] [VIA-6.4-14]
		return
	}
	c := p.hold(now, r, f, h, &q)
	if c == nil {
		p.stats.SetupLimit++
		p.refuse(now, r, f, h, q.Handle, iu.NoResources)
		return
	}
	if w == nil {
		c.claim = lingering
		c.timer.Set(min(c.deadline, now+p.cfg.linger))
		c.sendResp1(now, iu.Pending)
		return
	}
	c.claim = taken
	c.timer.Set(min(c.deadline, now+p.np.EDTOV()))
	w.match(c)
}

// peerRqst handles a request of peer mode. It matches the request with a local one, or holds the
// peer's request until the consumer makes a matching request. [FCVI-A-1] [FCVI-A-2] [FCVI-A-3]
// [FCVI-A-4] [FCVI-A-5] [FCVI-A-6] [FCVI-A-8]
func (p *port) peerRqst(now fc.Time, r *fc.Remote, f *fc.Frame, h *iu.Header, q *iu.ConnectPayload, refuse func(iu.Reason)) {
	var c *conn
	for _, o := range p.handles.conns {
		if o.matches(q.Remote, q.Local) && o.state != stHeld && o.state != stDiscSent &&
			o.state != stError && (o.remote == nil || o.remote == r) {
			c = o
			break
		}
	}
	yield := func() {
		p.refuse(now, r, f, h, q.Handle, iu.PeerYield) // [FCVI-5.3.4-2]
	}
	switch {
	case c == nil && p.superseded(now, r, h.Total, q):
		refuse(iu.Stale)
	case c == nil: // [FCVI-5.3.3-1]
		if c = p.hold(now, r, f, h, q); c == nil {
			p.stats.SetupLimit++
			p.refuse(now, r, f, h, q.Handle, iu.NoResources)
			return
		}
		c.timer.Set(c.deadline)
		c.sendResp1(now, iu.Pending)
	case c.state == stResolve, c.state == stConceded, c.state == stRqst && !c.own.open && !c.sentResp2:
		c.take(now, r, f, h, q)
	case c.state == stRqst && !c.sentResp2 && !c.beats(r.PortName, q.Local.Discriminator, q.Handle):
		c.take(now, r, f, h, q) // this side concedes [FCVI-5.3.4-3]
	case c.state == stResp1 || c.responder:
		// The peer has restarted: its first request was answered, and q is a new request.
		if c.state == stResp1 {
			c.remember(now, iu.Stale)
			c.take(now, r, f, h, q)
			return
		}
		refuse(iu.BadState)
	default: // [FCVI-A-7]
		yield()
	}
}

// superseded releases a held peer-to-peer request older than q, of the same port and addresses.
// Such a request is still held if its cancellation was lost. superseded returns true if q is the
// older request.
func (p *port) superseded(now fc.Time, r *fc.Remote, id uint32, q *iu.ConnectPayload) bool {
	for _, o := range p.handles.all() {
		if o.state != stHeld || o.mode != iu.PeerToPeer || o.claim == taken || o.remote != r ||
			!o.local.Equal(q.Remote) || !o.want.Equal(q.Local) {
			continue
		}
		if int16(uint16(id)-uint16(o.their.id)) < 0 { // q is older: ids are compared modulo 2^16
			return true
		}
		o.setState(stIdle)
		o.release(now, p.np.RATOV())
		o.remember(now, iu.Stale)
	}
	return false
}

// take makes c the responder of the peer's request q, and answers q.
func (c *conn) take(now fc.Time, r *fc.Remote, f *fc.Frame, h *iu.Header, q *iu.ConnectPayload) {
	c.remote, c.class = r, f.Class()
	c.caller(now, r, f, h, q)
	c.respond(now)
}

// caller records the fields of a CONNECT_RQST in c and registers the set-up.
func (c *conn) caller(now fc.Time, r *fc.Remote, f *fc.Frame, h *iu.Header, q *iu.ConnectPayload) {
	p := c.p
	c.rHandle, c.rattrs, c.initRx, c.security = q.Handle, q.Attributes, q.InitialMsgID, q.Security
	c.key, c.hasKey = setupKey{r.PortName, h.Total}, true
	p.setups[c.key] = &setup{conn: c}
	c.their = leg{id: h.Total}
	c.onExchange(f, h)
}

// onExchange makes the Exchange of f, a request with header h, the Exchange of c's answers.
func (c *conn) onExchange(f *fc.Frame, h *iu.Header) {
	if c.their.open && c.their.oxid == f.OXID && c.their.attempt == h.MsgID {
		return // a copy of the same frame
	}
	c.their.attempt, c.their.oxid, c.their.cnt, c.their.open = h.MsgID, f.OXID, 0, true
	c.their.rxid = c.p.rxid(f)
}

// hold creates an endpoint for a request awaiting a decision, and returns nil if no handle is free.
// [FCVI-6.8-3]
func (p *port) hold(now fc.Time, r *fc.Remote, f *fc.Frame, h *iu.Header, q *iu.ConnectPayload) *conn {
	c := p.newConn(now, h.Flags.Mode())
	if c == nil {
		return nil
	}
	c.remote, c.class = r, f.Class()
	c.local, c.want = q.Remote, q.Local
	c.caller(now, r, f, h, q)
	hold := p.ulpTimeout()
	if q.Timeout != iu.NoTimeout {
		hold = min(hold, time.Duration(q.Timeout)*time.Millisecond)
	}
	c.deadline = now + hold
	c.setState(stHeld)
	return c
}

// heldTooLong runs when the timer of a held request expires. It answers PENDING if a consumer has
// the request and the deadline has not passed. Otherwise it refuses the request.
func (c *conn) heldTooLong(now fc.Time) {
	switch {
	case now < c.deadline && c.claim == taken: // a consumer has the request and has not decided yet
		c.timer.Set(c.deadline)
		c.sendResp1(now, iu.Pending)
	case c.claim == taken:
		c.reject(now, iu.ULPTimeout)
	default:
		c.reject(now, iu.NoMatch) // [FCVI-5.3.3-3]
	}
}

// reject answers a held request with a refusal for the given reason. It has no effect in other
// states. [FCVI-5.3.2-7]
func (c *conn) reject(now fc.Time, reason iu.Reason) {
	if c.state != stHeld {
		return
	}
	c.p.stats.Rejected++
	c.sendResp1(now, reason)
	c.setState(stIdle)
	c.release(now, c.p.np.RATOV())
	c.remember(now, reason)
	c.tellAccept(now, reason)
}

func (c *conn) tellAccept(now fc.Time, reason iu.Reason) {
	if fn := c.accepted; fn != nil {
		c.accepted = nil
		fn(now, reason)
	}
}

// accept accepts a held request for the consumer up. It calls done once, with the result of the
// set-up. It returns false, without calling done, if the request is no longer held.
func (c *conn) accept(now fc.Time, attrs iu.Attributes, up consumer, holds bool, done func(now fc.Time, reason iu.Reason)) bool {
	if c.state != stHeld {
		return false
	}
	c.attrs, c.up, c.done, c.holds = attrs, up, done, holds
	c.accepted = nil
	c.respond(now)
	c.p.pump(now)
	return true
}

// respond answers the peer's request: with RESP1(ACCEPTED), or with a refusal if the attributes do
// not match.
func (c *conn) respond(now fc.Time) {
	p := c.p
	c.capTransfer()
	mts, reason := matchAttributes(&c.attrs, &c.rattrs)
	if !c.fits(iu.ConnectResp1Len) {
		reason = iu.NoResources
	}
	if reason != iu.Accepted {
		c.sendResp1(now, reason)
		p.stats.Rejected++
		c.timer.Stop()
		if c.own.open {
			p.oxids.abort(now, c.remote, c.class, c.own.oxid, c.own.rxid)
			c.own.open = false
		}
		c.up = nil
		c.setState(stIdle)
		c.release(now, p.np.RATOV())
		c.remember(now, reason)
		c.tellDone(now, reason)
		return
	}
	c.mts = mts
	c.setState(stResp1)
	total := time.Duration(0)
	for _, b := range backoff {
		total += b * p.tRqst()
	}
	c.timer.Set(now + p.np.RATOV() + total) // T_RESP2
	c.sendResp1(now, iu.Accepted)
}

// sendResp1 sends RESP1 on the peer's Exchange.
func (c *conn) sendResp1(now fc.Time, reason iu.Reason) {
	p := c.p
	h := iu.Header{Op: iu.ConnectResp1, Handle: c.rHandle, Flags: c.mode.Flags(), MsgID: c.their.attempt,
		Total: c.their.id, Param: iu.Status{Reason: reason}.Param()}
	if c.their.attempt > 1 {
		h.Flags |= iu.FlagRetry
	}
	var u iu.Use
	var payload []byte
	switch reason {
	case iu.Accepted, iu.AlreadyConnected:
		h.Flags |= iu.FlagPos
		local := c.local
		payload = p.cfg.codec.AppendConnectResp1(nil,
			&iu.AcceptPayload{Handle: c.handle, InitialMsgID: c.initTx, Local: local,
				Attributes: c.attrs, Security: c.sec})
	case iu.Pending:
		h.Flags |= iu.FlagPend
		u.Pending = true
	default:
		u.End = true
	}
	c.sendSetup(now, &c.their, &h, u, payload)
}

// refuse sends a refusal for a request without an endpoint at this side.
func (p *port) refuse(now fc.Time, r *fc.Remote, f *fc.Frame, h *iu.Header, handle uint32, reason iu.Reason) {
	a := iu.Header{Op: iu.ConnectResp1, Handle: handle, Flags: h.Flags & (iu.FlagModeMask | iu.FlagRetry),
		MsgID: h.MsgID, Total: h.Total, Param: iu.Status{Reason: reason}.Param()}
	p.sendIU(now, r, f.Class(), &a, iu.Use{Last: true, End: true}, f.OXID, p.rxid(f), 0, nil)
}

// repeated answers another CONNECT_RQST of the set-up s, as the state of the set-up requires.
// [FCVI-C-3] [FCVI-C-5] [FCVI-C-6]
func (p *port) repeated(now fc.Time, r *fc.Remote, f *fc.Frame, h *iu.Header, s *setup) {
	c := s.conn
	if c == nil {
		q, _, _ := p.cfg.codec.ParseConnectRqst(f.Payload)
		p.refuse(now, r, f, h, q.Handle, s.reason)
		return
	}
	if c.their.attempt.After(h.MsgID) || c.remote != r {
		p.stats.StaleResponses++
		return // a late copy of an earlier attempt
	}
	c.onExchange(f, h)
	switch c.state {
	case stHeld:
		c.sendResp1(now, iu.Pending)
	case stResp1:
		c.sendResp1(now, iu.Accepted)
	case stConnected:
		c.sendResp1(now, iu.AlreadyConnected)
	case stDiscSent, stError:
		c.sendResp1(now, iu.Stale)
	case stIdle, stResolve, stRqst, stConceded, stResp2:
	}
}

// resp2 handles CONNECT_RESP2, by which the originator confirms or withdraws. [FCVI-5.3.2-10]
func (c *conn) resp2(now fc.Time, f *fc.Frame, h *iu.Header) {
	if h.Total != c.their.id || h.MsgID != c.their.attempt || !c.hasKey { // [FCVI-C-7]
		c.p.stats.StaleResponses++
		return
	}
	reason := h.Status().Reason
	switch c.state {
	case stResp1:
		if reason == iu.Cancelled && c.mode == iu.PeerToPeer {
			c.restart(now)
			return
		}
		if reason != iu.Confirmed || h.Flags&iu.FlagPos == 0 {
			c.giveUp(now, reason.Known())
			return
		}
		c.responder = true
		c.startStreams()
		c.sendResp3(now)
		c.connected(now)
	case stConnected:
		if reason == iu.Confirmed {
			c.sendResp3(now)
		}
	case stIdle, stResolve, stRqst, stConceded, stHeld, stResp2, stDiscSent, stError:
		c.p.stats.StaleResponses++
	}
}

// [FCVI-6.11-1]
func (c *conn) sendResp3(now fc.Time) {
	h := iu.Header{Op: iu.ConnectResp3, Handle: c.rHandle, Flags: c.mode.Flags() | iu.FlagPos, MsgID: c.their.attempt,
		Total: c.their.id, Param: iu.Status{Reason: iu.Confirmed}.Param()}
	if c.their.attempt > 1 { // [FCVI-5.9.4-8]
		h.Flags |= iu.FlagRetry
	}
	c.sendSetup(now, &c.their, &h, iu.Use{End: true}, nil)
	c.their.open = false
}

// aborted handles an ABTS for an Exchange the peer originated, and returns true if the Exchange
// belongs to this endpoint.
func (c *conn) aborted(now fc.Time, oxid uint16) bool {
	if c.their.open && c.their.oxid == oxid {
		c.their.open = false
		if c.state == stHeld && c.mode == iu.PeerToPeer {
			// The peer no longer waits for an answer, unless the request is repeated.
			c.setState(stIdle)
			c.release(now, c.p.np.RATOV())
			if c.hasKey {
				c.hasKey = false
				delete(c.p.setups, c.key)
			}
		}
		return true
	}
	return c.abortedMessage(oxid)
}
