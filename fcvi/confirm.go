package fcvi

import (
	"viaduct/internal/fault"
	"viaduct/internal/fc"
	"viaduct/internal/wire/iu"
)

// resp1 handles a CONNECT_RESP1 on the Exchange we originated. [FCVI 5.3.4]
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
		case reason == iu.PeerYield && c.mode == iu.PeerToPeer:
			c.yielded(now)
		default:
			c.refused(now, reason.Known())
		}
	case stResp2:
		if positive { // the peer repeats RESP1 because RESP2 was lost, or this is a duplicate [FCVI-C-7]
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

// acceptedBy handles RESP1(ACCEPTED): it checks the attributes, enables reception, then confirms.
// [FCVI-5.3.2-9] [FCVI-5.3.4-4]
func (c *conn) acceptedBy(now fc.Time, f *fc.Frame, h *iu.Header) {
	p := c.p
	a, _, err := p.cfg.codec.ParseConnectResp1(f.Payload)
	if err != nil || a.Handle == 0 {
		p.stats.Malformed++
		return // the request is sent again after T_RQST
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
	if fault.On("fcvi-unconfirmed") {
		c.connected(now)
	}
}

// [FCVI-6.10-1]
func (c *conn) sendResp2(now fc.Time, reason iu.Reason, end bool) {
	h := iu.Header{Op: iu.ConnectResp2, Handle: c.rHandle, Flags: c.mode.Flags(), MsgID: c.own.attempt,
		Total: c.own.id, Param: iu.Status{Reason: reason}.Param()}
	if reason == iu.Confirmed {
		h.Flags |= iu.FlagPos
	}
	if c.own.attempt > 1 { // every IU of a repeated attempt has this flag [FCVI-5.9.4-8]
		h.Flags |= iu.FlagRetry
	}
	c.sendSetup(now, &c.own, &h, iu.Use{End: end}, nil)
}

// yielded handles RESP1(PEER_YIELD): c waits for the peer's request, unless our request wins the
// tie-break. [FCVI-5.3.4-5] [FCVI-5.3.4-6]
func (c *conn) yielded(now fc.Time) {
	c.closeOwn()
	if c.beats(c.remote.PortName, c.want.Discriminator, 0) {
		c.timer.Set(now + c.p.np.EDTOV())
		return // the peer wrongly believes that its request has won, so the timer sends ours again
	}
	c.timer.Stop()
	c.setState(stConceded)
}

// refused handles a negative RESP1: c gives up, or tries again after E_D_TOV if the reason may
// pass. [FCVI-8.5-4] [FCVI-5.3.4-10] [FCVI-5.3.4-11]
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
			c.tries = -1 // the attempts are unlimited, until the consumer's deadline
		}
		c.timer.Set(now + c.p.np.EDTOV())
	default:
		c.sentResp2 = false
		c.giveUp(now, reason)
	}
}

// resp3 handles CONNECT_RESP3: the set-up is complete. [FCVI-5.3.2-9]
func (c *conn) resp3(now fc.Time, f *fc.Frame, h *iu.Header) {
	if h.Total != c.own.id || h.MsgID != c.own.attempt || c.responder {
		c.p.stats.StaleResponses++
		return
	}
	switch c.state {
	case stResp2:
		c.closeOwn()
		c.connected(now)
	case stConnected: // the endpoint was implicitly confirmed before [FCVI-5.3.2-4]
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
	if c.responder && c.own.open { // [FCVI-A-4]
		c.p.oxids.abort(now, c.remote, c.class, c.own.oxid, c.own.rxid)
		c.own.open = false
	}
	c.tellDone(now, iu.Confirmed) // from now on the consumer may post
}

// closeOwn releases the Exchange of our request, which the peer has ended. It has no effect if the
// Exchange is not open.
func (c *conn) closeOwn() {
	if c.own.open {
		c.own.open = false
		c.p.oxids.release(c.own.oxid)
	}
}
