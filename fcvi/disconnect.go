package fcvi

import (
	"viaduct/internal/fc"
	"viaduct/internal/wire/iu"
	"viaduct/vi"
)

// disconnect ends the connection for the local consumer, and detaches the consumer, so that none of
// its methods is called afterwards. [FCVI-5.3.5-1]
func (c *conn) disconnect(now fc.Time) {
	c.up = nil
	switch c.state {
	case stConnected:
		c.setState(stDiscSent)
		c.stopStreams(now)
		// If frames can overtake each other, the disconnect names the message sent last. The peer
		// then accepts all messages up to the named message before disconnecting. [VIA-6.4-20]
		c.sendDisconnect(now, iu.ULPDisconnect, c.tx.nextID, c.reliable() && !c.ordered())
	case stResolve, stRqst, stResp2, stConceded, stResp1, stHeld:
		c.abandon(now)
	case stIdle, stDiscSent, stError:
	}
	c.p.pump(now)
}

// stop detaches the consumer when package vi has ended the connection. It sends the peer a
// disconnect, which reports an error if broken is set.
func (c *conn) stop(now fc.Time, broken bool) {
	if c.state == stConnected && broken {
		c.early.end()
		c.up = nil
		c.tx.abort(now)
		c.stopStreams(now)
		c.setState(stError)
		c.sendDisconnect(now, iu.PortInternal, 0, false)
		c.p.pump(now)
		return
	}
	c.early.end()
	c.disconnect(now)
}

// breakNow reports the end of the connection to the consumer and detaches it. orderly has the same
// meaning as for consumer.broken. [FCVI-3-10] [FCVI-3-11] [FCVI-5.3.5-6] [FCVI-5.3.5-7]
func (c *conn) breakNow(now fc.Time, orderly bool) {
	c.p.stats.Broken++
	c.tx.abort(now)
	up := c.up
	c.up = nil
	c.rx.abandon()
	c.stopStreams(now)
	if up != nil {
		up.broken(orderly)
	}
}

// sendDisconnect sends a DISCONNECT_RQST on a new Exchange. [FCVI-6.12-1]
func (c *conn) sendDisconnect(now fc.Time, reason iu.Reason, msg iu.MsgID, named bool) {
	h := iu.Header{Op: iu.DisconnectRqst, Handle: c.rHandle, RmtHandle: c.handle, Total: c.connID(),
		Param: iu.Status{Reason: reason}.Param()}
	if reason != iu.ULPDisconnect {
		h.Flags |= iu.FlagErr
	}
	if named { // [FCVI-5.9.6-5]
		h.Flags |= iu.FlagMsgID
		h.MsgID = msg
	}
	c.discHdr = h
	c.tries = 0
	c.sendDiscAttempt(now)
}

func (c *conn) connID() uint32 {
	if c.responder {
		return c.their.id
	}
	return c.own.id
}

func (c *conn) sendDiscAttempt(now fc.Time) {
	p := c.p
	c.tries++
	c.timer.Set(now + p.np.RATOV()) // T_DISC
	if c.tries > 1 {
		c.discHdr.Flags |= iu.FlagRetry
		p.stats.Retries++
	}
	ox, ok := p.oxids.alloc(c)
	if !ok {
		return // the timer tries again
	}
	c.disc = leg{oxid: ox, rxid: fc.Unassigned, open: true}
	p.sendIU(now, c.remote, c.class, &c.discHdr, iu.Use{Last: true}, ox, fc.Unassigned, 0, nil)
}

// discExpired runs when DISCONNECT_RESP has not arrived in time, or when the peer has not
// disconnected after our ERR response. [FCVI-8.6-1] [FCVI-5.2.2-9]
func (c *conn) discExpired(now fc.Time) {
	if c.disc.open {
		c.p.oxids.abort(now, c.remote, c.class, c.disc.oxid, c.disc.rxid)
		c.disc.open = false
	}
	switch {
	case c.discHdr.Op == 0: // the peer did not react to the ERR response
		c.sendDisconnect(now, c.rx.failed, c.rx.failedID, true)
	case c.tries < discTries:
		c.sendDiscAttempt(now)
	default:
		c.finish(now)
	}
}

// finish releases the endpoint. [FCVI-D-1]
func (c *conn) finish(now fc.Time) {
	c.setState(stIdle)
	c.release(now, c.p.np.RATOV())
	c.remember(now, iu.Stale)
}

// disconnectRqst handles a DISCONNECT_RQST for this endpoint. It answers in every state.
// [FCVI-5.3.5-2] [FCVI-5.3.5-5] [FCVI-5.2.5-6]
func (c *conn) disconnectRqst(now fc.Time, f *fc.Frame, h *iu.Header) {
	st := h.Status()
	if h.RmtHandle != 0 && c.rHandle != 0 && h.RmtHandle != c.rHandle {
		c.p.answerDisconnect(now, c.remote, f, h) // the request is for another endpoint of that port
		return
	}
	if c.state == stConnected && c.disconnectEarly(now, f, h) {
		return
	}
	c.p.answerDisconnect(now, c.remote, f, h)
	switch c.state {
	case stConnected:
		orderly := h.Flags&iu.FlagErr == 0
		if !orderly && h.Flags&iu.FlagMsgID != 0 {
			orderly = c.tx.resp.failedAt(h.MsgID, st.Reason.Known())
		}
		c.breakNow(now, orderly)
		c.setState(stError)
		c.finish(now)
	case stRqst, stResp2, stConceded, stResp1:
		// The peer has withdrawn from the set-up, or was connected and has disconnected.
		if c.state == stResp1 && c.mode == iu.PeerToPeer {
			c.restart(now)
			return
		}
		c.sentResp2 = false
		c.giveUp(now, iu.Cancelled)
	case stHeld:
		c.setState(stIdle)
		c.release(now, c.p.np.RATOV())
		c.remember(now, iu.Cancelled)
		c.tellAccept(now, iu.Cancelled)
	case stDiscSent, stError: // the disconnects of both sides crossed, or the peer reacts to our ERR response [FCVI-5.3.5-4]
		c.finish(now)
	case stIdle, stResolve:
	}
}

// A lateDisc is an orderly DISCONNECT_RQST received ahead of messages sent earlier.
type lateDisc struct {
	early earlyFrame
	timer *fc.Timer
}

// disconnectEarly delays an orderly disconnect, for T_GAP at most, while messages sent before the
// disconnect have not arrived. Only a fabric that reorders frames makes a disconnect overtake
// messages. Without ERR, FCVI_MSG_ID names the first message that will not arrive. disconnectEarly
// returns false if the disconnect can be handled at once.
func (c *conn) disconnectEarly(now fc.Time, f *fc.Frame, h *iu.Header) bool {
	if h.Flags&(iu.FlagErr|iu.FlagMsgID) != iu.FlagMsgID || c.ordered() || c.up == nil || !h.MsgID.After(c.rx.mexp) {
		return false
	}
	if d := c.late; d != nil {
		return d.timer.Active() // still delayed if this is a copy, not if the delay is over
	}
	c.rx.closing, c.rx.closeAt = true, h.MsgID
	d := &lateDisc{}
	d.early.buf = f.CloneTo(&d.early.f, nil)
	d.timer = c.p.np.Timers().After(now+c.gap(), func(now fc.Time) { c.disconnectNow(now) })
	c.late = d
	return true
}

// disconnectNow handles the delayed disconnect. It has no effect if none is delayed or the endpoint
// is released.
func (c *conn) disconnectNow(now fc.Time) {
	d := c.late
	if d == nil || c.gone {
		return
	}
	d.timer.Stop()
	var h iu.Header
	if _, err := c.p.cfg.codec.ParseHeader(d.early.f.Opt, &h); err == nil {
		c.disconnectRqst(now, &d.early.f, &h)
		c.p.pump(now)
	}
}

// restart returns a peer-to-peer request whose match has withdrawn to C_RESOLVE. After E_D_TOV the
// request looks for another match.
func (c *conn) restart(now fc.Time) {
	c.remember(now, iu.Cancelled)
	if c.own.open {
		c.p.oxids.abort(now, c.remote, c.class, c.own.oxid, c.own.rxid)
		c.own.open = false
	}
	c.their, c.own.attempt, c.tries = leg{}, 0, 0
	c.setState(stResolve)
	c.timer.Set(now + c.p.np.EDTOV())
}

// disconnectResp handles a DISCONNECT_RESP.
func (c *conn) disconnectResp(now fc.Time, f *fc.Frame, h *iu.Header) {
	if !c.disc.open || f.OXID != c.disc.oxid {
		c.p.stats.StaleResponses++
		return
	}
	c.disc.open = false
	c.p.oxids.release(c.disc.oxid)
	switch c.state {
	case stDiscSent, stError:
		c.finish(now)
	case stIdle, stResolve, stRqst, stConceded, stHeld, stResp1, stResp2, stConnected:
		c.p.stats.StaleResponses++
	}
}

// descriptorStatus returns the status of the originator's descriptor for a reason from the peer.
// [FCVI-5.9.7-7]
func descriptorStatus(r iu.Reason) vi.Status {
	switch r {
	case iu.RDMAWriteProt, iu.RDMAWriteOff, iu.RDMAReadProt, iu.RDMAReadOff:
		return vi.StatusRDMAProtection
	case iu.NoRecvDesc, iu.LengthError, iu.RecvProt, iu.RecvFormat, iu.TooLong:
		return vi.StatusRemoteDescriptor
	}
	return vi.StatusTransportError
}
