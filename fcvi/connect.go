package fcvi

import (
	"time"

	"viaduct/internal/fault"
	"viaduct/internal/fc"
	"viaduct/internal/wire/iu"
)

// connectArgs describes a connection to be set up.
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
	done     func(now fc.Time, reason iu.Reason) // gets Confirmed, or the reason of the failure
}

// connect begins a set-up as originator. It calls a.done once, with the result. It returns nil if
// no handle is free.
func (p *port) connect(now fc.Time, a connectArgs) *conn {
	c := p.newConn(now, a.mode)
	if c == nil {
		a.done(now, iu.NoResources)
		return nil
	}
	c.local, c.want, c.attrs, c.deadline = a.local, a.remote, a.attrs, a.deadline
	c.up, c.done, c.holds, c.early.paused, c.sec = a.up, a.done, a.holds, a.paused, a.security
	if c.deadline != fc.Never {
		c.limit.Set(c.deadline)
	}
	c.setState(stResolve)
	if c.mode == iu.PeerToPeer {
		// A peer's request already held here is answered at once. [FCVI-5.3.3-2]
		for _, h := range p.handles.all() {
			if h.state == stHeld && h.mode == iu.PeerToPeer && c.matches(h.local, h.want) {
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

// lookUp resolves the peer's address and sends the first CONNECT_RQST. If the peer can't be found,
// a peer-to-peer request tries again after E_D_TOV, because the peer may start later. Other
// requests fail.
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
		if !c.fits(iu.ConnectRqstLen) {
			c.giveUp(now, iu.NoResources)
			return
		}
		p.connSeq++
		c.own.id = p.rng.Uint32()<<16 | p.connSeq&0xFFFF // [FCVI-5.9.10-2]
		c.sendRqst(now)
		p.pump(now)
	})
}

// notReachable is the outcome of a set-up whose address could not be resolved or logged in to. It
// is a local outcome and is never sent. [FCVI-5.9.7-10]
const notReachable iu.Reason = 0xFF

// adopt moves the peer's request and Exchange from the held endpoint h to c, and releases h.
func (c *conn) adopt(now fc.Time, h *conn) {
	c.remote, c.class, c.rHandle, c.rattrs, c.initRx, c.security = h.remote, h.class, h.rHandle,
		h.rattrs, h.initRx, h.security
	c.their, c.key, c.hasKey = h.their, h.key, true
	c.p.setups[c.key].conn = c
	h.hasKey = false
	h.setState(stIdle)
	h.release(now, c.p.np.RATOV()) // [FCVI-4-6]
}

// sendRqst sends the CONNECT_RQST of the next attempt on a new Exchange. [FCVI-8.5-2]
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
	if c.own.attempt > 1 && !fault.On("fcvi-retry") {
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

// sendSetup sends a set-up IU on the Exchange of l. [FCVI-5.3.2-2]
func (c *conn) sendSetup(now fc.Time, l *leg, h *iu.Header, u iu.Use, payload []byte) {
	u.Last = true
	c.p.sendIU(now, c.remote, c.class, h, u, l.oxid, l.rxid, l.cnt, payload)
	l.cnt++
}

// tRqst returns T_RQST, the time to wait for RESP1. [FCVI-8.3-3]
func (p *port) tRqst() time.Duration { return 2 * p.np.RATOV() }

// backoff lists the pauses between attempts in units of T_RQST. [FCVI-8.5-3]
var backoff = [maxAttempts]time.Duration{1, 1, 2, 4}

// expired runs when the timer of the current state expires.
func (c *conn) expired(now fc.Time) {
	switch c.state {
	case stRqst: // T_RQST
		c.retry(now)
	case stResp2: // T_RESP3 [FCVI-C-5]
		c.setState(stRqst)
		c.retry(now)
	case stResp1: // T_RESP2: the originator has disappeared [FCVI-C-4]
		if c.mode == iu.PeerToPeer {
			c.restart(now) // another request may arrive
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

// retry sends another CONNECT_RQST, or ends the set-up if no attempts are left. [FCVI-8.5-1]
// [FCVI-C-2]
func (c *conn) retry(now fc.Time) {
	c.tries++
	if c.tries >= maxAttempts {
		c.giveUp(now, iu.ULPTimeout)
		return
	}
	c.sendRqst(now)
}

// limited gives up a set-up whose time limit has passed. It has no effect in other states.
func (c *conn) limited(now fc.Time) {
	switch c.state {
	case stResolve, stRqst, stResp2, stConceded, stResp1:
		c.giveUp(now, iu.ULPTimeout)
	case stIdle, stHeld, stConnected, stDiscSent, stError:
	}
	c.p.pump(now)
}

// abandon ends a set-up that the consumer no longer wants. A connection is not affected. [FCVI-C-1]
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

// giveUp ends a set-up without success. It aborts the Exchange, sends a disconnect to a peer that
// may be connected, and makes the endpoint Idle. [FCVI-C-1]
func (c *conn) giveUp(now fc.Time, reason iu.Reason) {
	p := c.p
	if c.own.open {
		p.oxids.abort(now, c.remote, c.class, c.own.oxid, c.own.rxid)
		c.own.open = false
	}
	if c.sentResp2 {
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
