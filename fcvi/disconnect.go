package fcvi

import (
	"viaduct/internal/fc"
	"viaduct/internal/wire/iu"
	"viaduct/vi"
)

// disconnect ends the connection for the local consumer. The consumer is detached, so that none of
// its methods is called any more. [FCVI-5.3.5-1]
func (c *conn) disconnect(now fc.Time) {
	c.up = nil
	switch c.state {
	case stConnected:
		c.setState(stDiscSent)
		c.stopStreams(now)
		// Where frames overtake each other, the disconnect names the last sent message, and the
		// peer accepts the messages up to it first. [VIA-6.4-20]
		c.sendDisconnect(now, iu.ULPDisconnect, c.tx.nextID, c.reliable() && !c.ordered())
	case stResolve, stRqst, stResp2, stConceded, stResp1, stHeld:
		c.abandon(now)
	case stIdle, stDiscSent, stError:
	}
	c.p.pump(now)
}

// stop detaches the consumer, whose connection ended. The peer gets a disconnect: an orderly one,
// or an error.
func (c *conn) stop(now fc.Time, broken bool) {
	if c.state == stConnected && broken {
		c.paused, c.early = false, nil
		c.up = nil
		c.abortPending(now)
		c.stopStreams(now)
		c.setState(stError)
		c.sendDisconnect(now, iu.PortInternal, 0, false)
		c.p.pump(now)
		return
	}
	c.paused, c.early = false, nil
	c.disconnect(now)
}

// fail breaks the connection for an error found here and reports it to the peer. [FCVI-8.4-16]
func (c *conn) fail(now fc.Time, reason iu.Reason, msg iu.MsgID, named bool) {
	if c.state != stConnected {
		return
	}
	c.p.log("connection failed", "conn", c.handle, "reason", reason.String())
	c.breakNow(now, false)
	c.setState(stError)
	c.sendDisconnect(now, reason, msg, named)
}

// breakNow detaches the consumer. orderly is as for consumer.broken.
// [FCVI-3-10] [FCVI-3-11] [FCVI-5.3.5-6] [FCVI-5.3.5-7]
func (c *conn) breakNow(now fc.Time, orderly bool) {
	c.p.stats.Broken++
	c.abortPending(now)
	up := c.up
	c.up = nil
	c.rx.abandon()
	c.stopStreams(now)
	if up != nil {
		up.broken(orderly)
	}
}

// violation handles a frame that breaks the rules of its IU: at the reliable levels the connection
// ends. [FCVI-6.1-4]
func (c *conn) violation(now fc.Time, msg iu.MsgID) {
	c.p.stats.Malformed++
	if c.reliable() {
		c.fail(now, iu.Protocol, msg, true)
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

// discExpired runs when DISCONNECT_RESP did not arrive, or when a peer did not disconnect after an
// error report. [FCVI-8.6-1] [FCVI-5.2.2-9]
func (c *conn) discExpired(now fc.Time) {
	if c.disc.open {
		c.p.oxids.abort(now, c.remote, c.class, c.disc.oxid, c.disc.rxid)
		c.disc.open = false
	}
	switch {
	case c.discHdr.Op == 0: // the ERR response had no effect
		c.sendDisconnect(now, c.rx.failed, c.rx.failedID, true)
	case c.tries < discTries:
		c.sendDiscAttempt(now)
	default:
		c.finish(now)
	}
}

// finish ends the endpoint for good. [FCVI-D-1]
func (c *conn) finish(now fc.Time) {
	c.setState(stIdle)
	c.release(now, c.p.np.RATOV())
	c.remember(now, iu.Stale)
}

// disconnectRqst handles a DISCONNECT_RQST for this endpoint, which is answered in every state.
// [FCVI-5.3.5-2] [FCVI-5.3.5-5] [FCVI-5.2.5-6]
func (c *conn) disconnectRqst(now fc.Time, f *fc.Frame, h *iu.Header) {
	st := h.Status()
	if h.RmtHandle != 0 && c.rHandle != 0 && h.RmtHandle != c.rHandle {
		c.p.answerDisconnect(now, c.remote, f, h) // of another endpoint of that port
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
			orderly = c.failedAt(now, h.MsgID, st.Reason.Known())
		}
		c.breakNow(now, orderly)
		c.setState(stError)
		c.finish(now)
	case stRqst, stResp2, stConceded, stResp1:
		// The peer withdraws from the set-up, or was connected and has disconnected.
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
	case stDiscSent, stError: // crossed, or the reaction to our ERR response [FCVI-5.3.5-4]
		c.finish(now)
	case stIdle, stResolve:
	}
}

// A lateDisc is an orderly DISCONNECT_RQST that overtook messages.
type lateDisc struct {
	early  earlyFrame
	before iu.MsgID // messages up to here were sent
	timer  *fc.Timer
}

// disconnectEarly holds an orderly disconnect back, on a fabric that reorders,
// while messages sent before it have not arrived, for E_D_TOV at most. Without
// ERR, FCVI_MSG_ID names the first message that will not come.
func (c *conn) disconnectEarly(now fc.Time, f *fc.Frame, h *iu.Header) bool {
	if h.Flags&(iu.FlagErr|iu.FlagMsgID) != iu.FlagMsgID || c.ordered() || c.up == nil || !h.MsgID.After(c.rx.mexp) {
		return false
	}
	if d := c.late; d != nil {
		return d.timer.Active() // sent again meanwhile, or time is up
	}
	d := &lateDisc{before: h.MsgID}
	d.early.buf = f.CloneTo(&d.early.f, nil)
	d.timer = c.p.np.Timers().After(now+c.gap(), func(now fc.Time) { c.disconnectNow(now) })
	c.late = d
	return true
}

// disconnectNow handles the disconnect that was held back.
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

// restart makes a peer request, whose match withdrew, look for another.
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

// descriptorStatus maps a reason to the status of the originator's
// descriptor. [FCVI-5.9.7-7]
func descriptorStatus(r iu.Reason) vi.Status {
	switch r {
	case iu.RDMAWriteProt, iu.RDMAWriteOff, iu.RDMAReadProt, iu.RDMAReadOff:
		return vi.StatusRDMAProtection
	case iu.NoRecvDesc, iu.LengthError, iu.RecvProt, iu.RecvFormat, iu.TooLong:
		return vi.StatusRemoteDescriptor
	}
	return vi.StatusTransportError
}
