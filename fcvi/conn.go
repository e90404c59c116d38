package fcvi

import (
	"fmt"
	"slices"
	"time"

	"viaduct/fc"
	"viaduct/fcvi/iu"
	"viaduct/internal/regmem"
	"viaduct/vi"
)

// A consumer is the VI above a connection: its queues and the memory it has
// opened to the peer. Methods are called one at a time, none may block, and
// none is called after broken or after detach.
type consumer interface {
	// peek returns the control word of the send descriptor that is next, if
	// one may start. next starts it.
	peek() (vi.Control, bool)
	next(w *work)
	// gather returns n bytes of w from offset off, either a piece of
	// registered memory, good until the next call, or a copy in scratch.
	gather(w *work, off uint32, n int, scratch []byte) ([]byte, vi.Status)
	// scatterRead places data of an RDMA Read at offset off.
	scatterRead(w *work, off uint32, b []byte) vi.Status
	// finish completes w.
	finish(w *work, bad vi.Status)

	// takeRecv takes the next receive descriptor; scatter places into it;
	// finishRecv completes it.
	takeRecv() (capacity uint64, bad vi.Status, ok bool)
	scatter(off uint32, b []byte) vi.Status
	finishRecv(d vi.Delivery)

	// check, place and fetch access memory that the peer names: total bytes
	// from va, and of these those from offset off.
	check(handle uint32, va uint64, total uint32, write bool) regmem.Outcome
	place(handle uint32, va uint64, total, off uint32, b []byte) regmem.Outcome
	fetch(handle uint32, va uint64, total, off uint32, n int, scratch []byte) ([]byte, regmem.Outcome)

	// async raises an asynchronous error. broken tells that the connection
	// ended: in an orderly way, or so that started sends are transport errors.
	async(code vi.ErrorCode, op vi.Control)
	broken(orderly bool)
}

// A work is a send descriptor in execution.
type work struct {
	op   iu.Opcode
	n    uint32 // bytes
	imm  bool
	data uint32
	va   uint64
	mh   uint32
	bad  vi.Status // what a check of the descriptor found

	d   *vi.Descriptor
	seq uint64
	cur vi.Cursor
	pos uint32 // where cur stands
}

// A leg is one Exchange of a connection set-up as one side knows it.
type leg struct {
	id         uint32   // FCVI_CONNECTION_ID
	attempt    iu.MsgID // [FCVI-5.9.6-4]
	oxid, rxid uint16
	cnt        uint16 // frames this side sent in it
	open       bool
}

// A conn is an endpoint: a VI connection from its request to its end.
type conn struct {
	p         *port
	state     state
	handle    uint32
	rHandle   uint32
	remote    *fc.Remote
	class     fc.Class
	mode      iu.Mode
	local     iu.NetAddress
	want      iu.NetAddress // the address called, or that of the caller
	attrs     iu.Attributes // ours
	rattrs    iu.Attributes // the peer's
	mts       uint32        // agreed
	responder bool
	queued    bool // in port.active
	stalled   bool // waits for room on its link
	paused    bool // the consumer has not started: what arrives is kept
	early     []earlyFrame
	security  []byte // of the peer's set-up payload
	sec       []byte // of ours

	own       leg // the set-up we originated
	their     leg // the one the peer originated
	key       setupKey
	hasKey    bool
	initTx    iu.MsgID
	initRx    iu.MsgID
	sentResp2 bool // the peer may be connected
	tries     int
	deadline  fc.Time // of the consumer, fc.Never if it waits for ever
	timer     *fc.Timer
	limit     *fc.Timer
	done      func(now fc.Time, reason iu.Reason)
	accepted  func(now fc.Time, reason iu.Reason)
	taken     bool // a held request was given to a waiter
	lingering bool // held for want of a waiter
	holds     bool // messages wait for a receive descriptor instead of failing

	up      consumer
	tx      txState
	rx      rxState
	late    *lateDisc // the peer's disconnect, held back
	disc    leg       // our DISCONNECT_RQST
	discHdr iu.Header // as sent
	ended   []func()  // told when the endpoint is gone
	gone    bool
}

func (p *port) newConn(now fc.Time, mode iu.Mode) *conn {
	c := &conn{p: p, mode: mode, deadline: fc.Never, class: fc.Class3}
	h, ok := p.handles.alloc(now, c)
	if !ok {
		return nil
	}
	c.handle = h
	c.initTx = iu.MsgID(p.rng.Uint32()) // [FCVI-6.8-2]
	c.timer = p.np.Timers().New(c.expired)
	c.limit = p.np.Timers().New(c.limited)
	return c
}

// An earlyFrame arrived before the consumer had started.
type earlyFrame struct {
	f   fc.Frame
	buf []byte
}

// maxEarly bounds the frames kept for a consumer that has not started.
const maxEarly = 4096

func (c *conn) stash(now fc.Time, f *fc.Frame) {
	if len(c.early) >= maxEarly {
		c.paused, c.early = false, nil
		c.fail(now, iu.PortResources, 0, false)
		return
	}
	c.early = append(c.early, earlyFrame{})
	e := &c.early[len(c.early)-1]
	e.buf = f.CloneTo(&e.f, nil)
}

// begin handles what arrived before the consumer had started.
func (c *conn) begin(now fc.Time) {
	c.paused = false
	early := c.early
	c.early = nil
	for i := range early {
		f := &early[i].f
		var h iu.Header
		_, err := c.p.cfg.codec.ParseHeader(f.Opt, &h)
		if err == nil && !c.gone {
			c.p.dispatch(now, c.remote, c, f, &h)
		}
	}
	c.p.activate(c)
	c.p.pump(now)
}

func (c *conn) reliable() bool { return c.attrs.Reliability != iu.Unreliable }
func (c *conn) rr() bool       { return c.attrs.Reliability == iu.ReliableReception }

// recovers reports whether lost frames are made good: in class 2 the sender
// repeats what is not acknowledged. [FCVI 8.4]
func (c *conn) recovers() bool { return c.class == fc.Class2 && c.reliable() }

// ordered reports whether a hole is a loss at once: the path keeps the order of
// frames, and none of them is sent again.
func (c *conn) ordered() bool { return c.p.np.InOrder() && !c.recovers() }

// gap is T_GAP: how long what is missing may be under way. [FCVI-8.4-10]
func (c *conn) gap() time.Duration {
	if c.recovers() {
		return c.p.np.RecoveryTime()
	}
	return c.p.np.EDTOV()
}

// setState is the only place that changes the state.
func (c *conn) setState(s state) {
	if c.state == s {
		return
	}
	if !arrows[c.state][s] {
		panic(fmt.Sprintf("fcvi: endpoint %08x: no arrow from %v to %v", c.handle, c.state, s))
	}
	from := c.state
	c.state = s
	if c.p.cfg.onConnState != nil {
		c.p.cfg.onConnState(c, from, s)
	}
	c.p.log("endpoint state", "conn", c.handle, "from", from.String(), "to", s.String())
}

// tRqst is how long to wait for RESP1. [FCVI-8.3-3]
func (p *port) tRqst() time.Duration { return 2 * p.np.RATOV() }

// backoff are the multiples of T_RQST between attempts. [FCVI-8.5-3]
var backoff = [maxAttempts]time.Duration{1, 1, 2, 4}

// A request describes a connection to be set up.
type connectArgs struct {
	mode     iu.Mode
	local    iu.NetAddress
	remote   iu.NetAddress
	attrs    iu.Attributes
	deadline fc.Time
	up       consumer
	holds    bool
	paused   bool
	security []byte
	done     func(now fc.Time, reason iu.Reason) // Confirmed, or why not
}

// connect begins a set-up as originator. done is called once.
func (p *port) connect(now fc.Time, a connectArgs) *conn {
	c := p.newConn(now, a.mode)
	if c == nil {
		a.done(now, iu.NoResources)
		return nil
	}
	c.local, c.want, c.attrs, c.deadline = a.local, a.remote, a.attrs, a.deadline
	c.up, c.done, c.holds, c.paused, c.sec = a.up, a.done, a.holds, a.paused, a.security
	if c.deadline != fc.Never {
		c.limit.Set(c.deadline)
	}
	c.setState(stResolve)
	if c.mode == iu.PeerToPeer {
		// A request that was held as unmatched is answered at once. [FCVI-5.3.3-2]
		for _, h := range p.handles.all() {
			if h.state == stHeld && h.mode == iu.PeerToPeer && !h.taken && c.matches(h.local, h.want) {
				c.adopt(now, h)
				c.respond(now)
				return c
			}
		}
	}
	c.lookUp(now)
	p.pump(now)
	return c
}

// lookUp resolves the address and sends the first CONNECT_RQST. A peer that
// cannot be found may come later, or may find us.
func (c *conn) lookUp(now fc.Time) {
	p := c.p
	p.resolve(now, c.want, func(now fc.Time, r *fc.Remote, err error) {
		if c.state != stResolve {
			return
		}
		if err != nil {
			p.log("not reachable", "remote", c.want.String(), "err", err)
			if c.mode == iu.PeerToPeer {
				c.timer.Set(now + p.np.EDTOV())
				return
			}
			c.giveUp(now, notReachable)
			return
		}
		c.remote, c.class = r, p.classFor(r)
		c.capTransfer()
		p.connSeq++
		c.own.id = p.rng.Uint32()<<16 | p.connSeq&0xFFFF // [FCVI-5.9.10-2]
		c.sendRqst(now)
		p.pump(now)
	})
}

// notReachable is what a set-up ends with when the address could not be
// resolved or logged in to. It is a local outcome and never on the wire.
// [FCVI-5.9.7-10]
const notReachable iu.Reason = 0xFF

// capTransfer keeps what is offered within one Sequence of the frames that the
// two ports take, with either header size. [FCVI-5.7-4]
func (c *conn) capTransfer() {
	c.attrs.MaxTransfer = uint32(min(int64(c.attrs.MaxTransfer), fc.MaxSeqCount*int64(c.payloadFor(iu.WriteRqst))))
}

// matches is the match rule of peer requests. [FCVI-5.3.3-4]
func (c *conn) matches(theirWant, theirLocal iu.NetAddress) bool {
	return c.mode == iu.PeerToPeer && c.want.Equal(theirLocal) && sameLocal(c.local, theirWant)
}

// sameLocal compares an address of ours with the one called; an unspecified
// host on our side stands for any of ours.
func sameLocal(ours, called iu.NetAddress) bool {
	if ours.HostLen == 0 {
		return string(ours.Discriminator) == string(called.Discriminator)
	}
	return ours.Equal(called)
}

// adopt takes the Exchange over that a held request came on.
func (c *conn) adopt(now fc.Time, h *conn) {
	c.remote, c.class, c.rHandle, c.rattrs, c.initRx, c.security = h.remote, h.class, h.rHandle, h.rattrs, h.initRx, h.security
	c.their, c.key, c.hasKey = h.their, h.key, true
	c.p.setups[c.key].conn = c
	h.hasKey = false
	h.setState(stIdle)
	h.release(now, 0)
}

// sendRqst sends the CONNECT_RQST of the next attempt on a new Exchange.
// [FCVI-8.5-2]
// [FCVI-5.3.2-1] [FCVI-5.3.2-3]
func (c *conn) sendRqst(now fc.Time) {
	p := c.p
	if c.own.open {
		p.oxids.abort(now, c.remote, c.class, c.own.oxid, c.own.rxid)
		c.own.open = false
	}
	ox, ok := p.oxids.alloc(c)
	if !ok {
		c.giveUp(now, iu.NoResources)
		return
	}
	c.own.oxid, c.own.rxid, c.own.cnt, c.own.open = ox, fc.Unassigned, 0, true
	c.own.attempt++
	h := iu.Header{Op: iu.ConnectRqst, Flags: c.mode.Flags(), MsgID: c.own.attempt, Total: c.own.id}
	if c.own.attempt > 1 {
		h.Flags |= iu.FlagRetry
		p.stats.Retries++
	}
	q := iu.ConnectPayload{Handle: c.handle, InitialMsgID: c.initTx, Timeout: iu.NoTimeout,
		Local: c.local, Remote: c.want, Attributes: c.attrs, Security: c.sec}
	if c.deadline != fc.Never {
		q.Timeout = uint32(min(max(c.deadline-now, 0)/time.Millisecond, iu.NoTimeout-1))
	}
	c.timer.Set(now + p.tRqst()*backoff[min(c.tries, maxAttempts-1)])
	c.setState(stRqst)
	c.sendSetup(now, &c.own, &h, iu.Use{Last: true}, p.cfg.codec.AppendConnectRqst(nil, &q))
}

// sendSetup sends a set-up IU on the Exchange of l.
// [FCVI-5.3.2-2]
func (c *conn) sendSetup(now fc.Time, l *leg, h *iu.Header, u iu.Use, payload []byte) {
	u.Last = true
	c.p.sendIU(now, c.remote, c.class, h, u, l.oxid, l.rxid, l.cnt, payload)
	l.cnt++
}

// expired runs when the timer of the current state does.
func (c *conn) expired(now fc.Time) {
	switch c.state {
	case stRqst: // T_RQST
		c.retry(now)
	case stResp2: // T_RESP3 [FCVI-C-5]
		c.setState(stRqst)
		c.retry(now)
	case stResp1: // T_RESP2: the originator is gone [FCVI-C-4]
		if c.mode == iu.PeerToPeer {
			c.restart(now) // another may come
		} else {
			c.giveUp(now, iu.ULPTimeout)
		}
	case stHeld:
		c.heldTooLong(now)
	case stDiscSent, stError:
		c.discExpired(now)
	case stResolve:
		c.lookUp(now)
	case stIdle, stConceded, stConnected:
	}
	c.p.pump(now)
}

// retry sends another CONNECT_RQST unless the attempts are used up.
// [FCVI-8.5-1] [FCVI-C-2]
func (c *conn) retry(now fc.Time) {
	c.tries++
	if c.tries >= maxAttempts {
		c.giveUp(now, iu.ULPTimeout)
		return
	}
	c.sendRqst(now)
}

// limited runs when the consumer's time is over.
func (c *conn) limited(now fc.Time) {
	switch c.state {
	case stResolve, stRqst, stResp2, stConceded, stResp1:
		c.giveUp(now, iu.ULPTimeout)
	case stIdle, stHeld, stConnected, stDiscSent, stError:
	}
	c.p.pump(now)
}

// abandon ends a set-up whose consumer lost interest. [FCVI-C-1]
func (c *conn) abandon(now fc.Time) {
	switch c.state {
	case stResolve, stRqst, stResp2, stConceded, stResp1:
		c.done, c.accepted = nil, nil
		c.giveUp(now, iu.Cancelled)
	case stHeld:
		c.reject(now, iu.ULPReject)
	case stIdle, stConnected, stDiscSent, stError:
	}
	c.p.pump(now)
}

// giveUp ends a set-up without success: the Exchange is aborted, a peer that
// may be connected is cleared, the endpoint is Idle. [FCVI-C-1]
func (c *conn) giveUp(now fc.Time, reason iu.Reason) {
	p := c.p
	if c.own.open {
		if c.remote != nil {
			p.oxids.abort(now, c.remote, c.class, c.own.oxid, c.own.rxid)
		} else {
			p.oxids.release(c.own.oxid)
		}
		c.own.open = false
	}
	if c.sentResp2 && c.remote != nil {
		p.cancel(now, c.remote, c.rHandle, c.handle, c.own.id)
	}
	p.stats.SetupsLost++
	c.up = nil
	c.setState(stIdle)
	c.release(now, p.np.RATOV())
	c.remember(now, iu.ULPTimeout)
	c.tellDone(now, reason)
}

func (c *conn) tellDone(now fc.Time, reason iu.Reason) {
	done := c.done
	c.done = nil
	if done != nil {
		done(now, reason)
	}
}

// remember keeps the outcome of a peer's request for R_A_TOV, so that a late
// or repeated request does not begin anew. [FCVI-C-6]
func (c *conn) remember(now fc.Time, reason iu.Reason) {
	if c.hasKey {
		c.hasKey = false
		c.p.remember(now, c.key, reason)
	}
}

func (p *port) remember(now fc.Time, k setupKey, reason iu.Reason) {
	s := &setup{reason: reason, until: now + p.np.RATOV()}
	p.setups[k] = s
	p.np.Timers().After(s.until, func(fc.Time) {
		if p.setups[k] == s {
			delete(p.setups, k)
		}
	})
}

// release takes the endpoint out of the tables; its handle is not used again
// for a while. [FCVI-4-6]
func (c *conn) release(now fc.Time, quarantine time.Duration) {
	if c.gone {
		return
	}
	c.gone = true
	c.timer.Stop()
	c.limit.Stop()
	c.stopStreams(now)
	if c.late != nil {
		c.late.timer.Stop()
	}
	p := c.p
	p.oxids.disown(now, c)
	p.handles.release(c.handle, now+quarantine)
	p.active = slices.DeleteFunc(p.active, func(o *conn) bool { return o == c })
	for _, fn := range c.ended {
		fn()
	}
	c.ended = nil
}

// resp1 takes a CONNECT_RESP1 on the Exchange that we originated. [FCVI 5.3.4]
func (c *conn) resp1(now fc.Time, f *fc.Frame, h *iu.Header) {
	p := c.p
	reason := h.Status().Reason
	if h.Total != c.own.id || c.own.attempt == 0 {
		p.stats.StaleResponses++
		return
	}
	positive := reason == iu.Accepted || reason == iu.AlreadyConnected
	if reason != iu.PeerYield && h.MsgID != c.own.attempt { // [FCVI-A-7]
		p.stats.StaleResponses++
		return
	}
	if h.MsgID == c.own.attempt {
		c.own.rxid = f.RXID
	}
	switch c.state {
	case stRqst:
		switch {
		case positive:
			c.acceptedBy(now, f, h)
		case reason == iu.Pending && h.Flags&iu.FlagPend != 0: // [FCVI-8.3-4]
			limit := now + p.ulpTimeout()
			if c.mode == iu.PeerToPeer {
				limit += p.tRqst()
				c.timer.Set(limit)
				return
			}
			c.timer.Stop()
			if c.deadline > limit {
				c.limit.Set(limit)
			}
		case reason == iu.PeerYield:
			c.yielded(now)
		default:
			c.refused(now, reason.Known())
		}
	case stResp2:
		if positive { // RESP2 was lost, or this is a duplicate [FCVI-C-7]
			c.sendResp2(now, iu.Confirmed, false)
		}
	case stConceded:
		if reason == iu.PeerYield {
			c.closeOwn()
		} else if positive {
			// The peer never sent its own request. [FCVI-5.3.4-8]
			c.setState(stRqst)
			c.acceptedBy(now, f, h)
		}
	case stResp1, stConnected:
		switch {
		case positive && (c.responder || c.state == stResp1): // [FCVI-5.3.4-9]
			c.sendResp2(now, iu.Cancelled, true)
			c.closeOwn()
		case positive:
			c.sendResp2(now, iu.Confirmed, false)
		case reason == iu.PeerYield: // [FCVI-5.3.4-7]
			c.closeOwn()
		}
	case stIdle, stResolve, stHeld, stDiscSent, stError:
		p.stats.StaleResponses++
	}
}

// closeOwn marks the Exchange we originated as ended by the peer.
func (c *conn) closeOwn() {
	if c.own.open {
		c.own.open = false
		c.p.oxids.release(c.own.oxid)
	}
}

// acceptedBy takes RESP1(ACCEPTED): check the attributes, enable reception,
// then confirm. [FCVI-5.3.2-9]
// [FCVI-5.3.4-4]
func (c *conn) acceptedBy(now fc.Time, f *fc.Frame, h *iu.Header) {
	p := c.p
	a, _, err := p.cfg.codec.ParseConnectResp1(f.Payload)
	if err != nil || a.Handle == 0 {
		p.stats.Malformed++
		return // T_RQST retries
	}
	if c.sentResp2 && c.rHandle != a.Handle {
		p.stats.StaleResponses++
		return
	}
	mts, reason := matchAttributes(&c.attrs, &a.Attributes)
	if reason != iu.Accepted { // [FCVI-5.3.2-8]
		c.rHandle = a.Handle
		c.sendResp2(now, reason, true)
		c.closeOwn()
		c.sentResp2 = false
		c.setState(stResp2)
		c.giveUp(now, reason)
		return
	}
	c.rHandle, c.rattrs, c.mts, c.security = a.Handle, a.Attributes, mts, a.Security
	if !c.sentResp2 {
		c.initRx = a.InitialMsgID
		c.startStreams()
	}
	c.sentResp2 = true
	c.setState(stResp2)
	c.timer.Set(now + p.np.RATOV()) // T_RESP3
	c.sendResp2(now, iu.Confirmed, false)
}

// [FCVI-6.10-1]
func (c *conn) sendResp2(now fc.Time, reason iu.Reason, end bool) {
	h := iu.Header{Op: iu.ConnectResp2, Handle: c.rHandle, Flags: c.mode.Flags(), MsgID: c.own.attempt,
		Total: c.own.id, Param: iu.Status{Reason: reason}.Param()}
	if reason == iu.Confirmed {
		h.Flags |= iu.FlagPos
	}
	c.sendSetup(now, &c.own, &h, iu.Use{End: end}, nil)
}

// yielded takes RESP1(PEER_YIELD). [FCVI-5.3.4-5] [FCVI-5.3.4-6]
func (c *conn) yielded(now fc.Time) {
	c.closeOwn()
	if c.beats(c.remote.PortName, c.want.Discriminator, 0) {
		c.timer.Set(now + c.p.np.EDTOV())
		return // the peer wrongly thinks it won: ask again
	}
	c.timer.Stop()
	c.setState(stConceded)
}

// beats applies the tie-break between our request and a peer's.
func (c *conn) beats(name fc.WWN, disc []byte, handle uint32) bool {
	return c.p.cfg.codec.Beats(uint64(c.p.np.Name()), uint64(name), c.local.Discriminator, disc, c.handle, handle)
}

// refused takes a negative RESP1. [FCVI-8.5-4] [FCVI-5.3.4-10] [FCVI-5.3.4-11]
func (c *conn) refused(now fc.Time, reason iu.Reason) {
	c.closeOwn()
	peer := c.mode == iu.PeerToPeer
	switch {
	case peer && (reason == iu.NoMatch || reason == iu.NoResources || reason == iu.BadMode),
		reason == iu.Stale:
		if reason == iu.Stale {
			c.tries++
			if c.tries >= maxAttempts {
				c.giveUp(now, reason)
				return
			}
			c.p.connSeq++
			c.own.id = c.p.rng.Uint32()<<16 | c.p.connSeq&0xFFFF
			c.own.attempt = 0
			c.sentResp2 = false
		} else {
			c.tries = -1 // until the consumer's time is over
		}
		c.timer.Set(now + c.p.np.EDTOV())
	default:
		c.sentResp2 = false
		c.giveUp(now, reason)
	}
}

// resp3 takes CONNECT_RESP3: the set-up is complete. [FCVI-5.3.2-9]
func (c *conn) resp3(now fc.Time, f *fc.Frame, h *iu.Header) {
	if h.Total != c.own.id || h.MsgID != c.own.attempt || c.responder {
		c.p.stats.StaleResponses++
		return
	}
	switch c.state {
	case stResp2:
		c.closeOwn()
		c.connected(now)
	case stConnected: // implicitly confirmed before [FCVI-5.3.2-4]
		c.closeOwn()
	case stIdle, stResolve, stRqst, stConceded, stHeld, stResp1, stDiscSent, stError:
		c.p.stats.StaleResponses++
	}
}

// connected enters CONNECTED: transmission is enabled. [FCVI-F-1]
func (c *conn) connected(now fc.Time) {
	c.timer.Stop()
	c.limit.Stop()
	c.setState(stConnected)
	c.p.stats.Connected++
	if c.responder && c.own.open { // annex A case 4
		c.p.oxids.abort(now, c.remote, c.class, c.own.oxid, c.own.rxid)
		c.own.open = false
	}
	c.tellDone(now, iu.Confirmed)
	c.p.activate(c)
}

// loggedOut ends c because the login with its peer ended.
func (c *conn) loggedOut(now fc.Time) {
	switch c.state {
	case stRqst, stResp2, stConceded, stResp1:
		c.own.open = false // all Exchanges with the port ended [FCFS-2.10-7]
		c.sentResp2 = false
		if c.mode == iu.PeerToPeer { // it may come again
			c.setState(stResolve)
			c.their, c.own.attempt, c.tries, c.remote = leg{}, 0, 0, nil
			c.remember(now, iu.Stale)
			c.timer.Set(now + c.p.np.EDTOV())
			return
		}
		c.giveUp(now, notReachable)
	case stHeld:
		c.setState(stIdle)
		c.release(now, c.p.np.RATOV())
		c.remember(now, iu.ULPTimeout)
		c.tellAccept(now, iu.ULPTimeout)
	case stConnected:
		c.paused, c.early = false, nil
		c.breakNow(now, false)
		c.setState(stError)
		c.setState(stIdle)
		c.release(now, c.p.np.RATOV())
		c.remember(now, iu.Stale)
	case stDiscSent, stError:
		c.setState(stIdle)
		c.release(now, c.p.np.RATOV())
		c.remember(now, iu.Stale)
	case stIdle, stResolve:
	}
}

// matchAttributes applies the matching rule to both ends' attributes and
// returns the transfer size both hold to. [FCVI-7.3-4] to [FCVI-7.3-8]
func matchAttributes(a, b *iu.Attributes) (mts uint32, reason iu.Reason) {
	switch {
	case a.Reliability != b.Reliability || !a.Reliability.Valid():
		return 0, iu.InvalidReliability
	case a.MaxTransfer == 0 || b.MaxTransfer == 0: // [FCVI-7.3-5]
		return 0, iu.InvalidMTS
	case a.QoS != b.QoS && a.QoS != (iu.QoS{}) && b.QoS != (iu.QoS{}): // [FCVI-7.3-6]
		return 0, iu.InvalidQoS
	case a.Reliability == iu.Unreliable && (a.Read || b.Read):
		return 0, iu.InvalidRDMARead
	}
	return min(a.MaxTransfer, b.MaxTransfer), iu.Accepted
}
