package sdp

import (
	"context"
	"log/slog"

	"viaduct/internal/sdpcore"
	"viaduct/internal/wire/sdpwire"
	"viaduct/iwarp"
)

// exec performs the actions of an event, all of them by iWARP. [SDP-8.1.1-1] [SDP-8.1.1-32] mu must
// be held.
func (c *Conn) exec(acts []sdpcore.Action) {
	c.acts = acts
	resized, failed := false, error(nil)
	for i := 0; i < len(acts); i++ {
		a := &acts[i]
		switch a.Op {
		case sdpcore.OpSend:
			if err := c.advertise(a); err != nil {
				failed = err
			} else {
				if logsMessages(c.opt.Logger) {
					c.opt.Logger.Debug("sent", "remote", c.path.Remote, "msg", &a.Msg)
				}
				c.send.message(acts[i:], c.calls.writes)
			}
			i += a.Parts
		case sdpcore.OpRDMAWrite:
			c.send.write(bytesOf(c.calls.writes, a), iwarp.RemoteAddr{STag: a.STag, TO: a.TO})
		case sdpcore.OpRDMARead:
			c.rdmaRead(a)
		case sdpcore.OpHold:
			c.recv.hold(a.N)
		case sdpcore.OpCompact:
			c.recv.compact(a.N)
		case sdpcore.OpCopy:
			c.recv.take(bytesOf(c.calls.reads, a), a.N)
		case sdpcore.OpDrop:
			c.recv.take(nil, a.N)
		case sdpcore.OpRevoke:
			c.advs.revoke(a.Adv)
		case sdpcore.OpWriteDone:
			c.writeDone(a)
		case sdpcore.OpDetach:
			o := find(c.calls.writes, a.ID)
			c.calls.detach(o, a.Off, c.send.lent)
			o.n = a.N // a transfer reads the count here
		case sdpcore.OpReadDone:
			c.readDone(a)
		case sdpcore.OpUrgentPending:
			c.urg.announced()
		case sdpcore.OpUrgent:
			c.urg.came(a.Pos, c.recv.cur, a.Local)
		case sdpcore.OpMode:
			c.opt.Logger.Debug("mode", "remote", c.path.Remote, "sending", a.Local, "mode", a.Msg.Mode)
		case sdpcore.OpResize:
			// All buffers have their largest possible size, so a new size is valid at once. [D-46]
			// [SDP-10.6-13] [SDP-10.6.2-2]
			resized = true
		case sdpcore.OpSuspended:
			c.state = streamMoved
			c.suspendTo <- nil
		case sdpcore.OpReconnect:
			c.resumeAt = a.Msg.Port
			c.reconnect()
		case sdpcore.OpFinish:
			c.release(false, nil) // [D-49] [SDP-6.2-2] [SDP-8.2.1-23]
		case sdpcore.OpAbort:
			// After an AbortConn the stream ends in order, because a reset might overtake the
			// AbortConn. [SDP-8.2.2-1] [SDP-8.2.2-3] [SDP-8.2.2-7]
			c.release(!a.Local, a.Err)
		case sdpcore.OpPeerClosed:
			// The peer's Close waits until our TCP has acknowledged the peer's DisConn. Without a
			// DisConn of ours, TCP would delay the acknowledgement by 40 ms.
			if !c.closed {
				if raw, err := c.qp.SyscallConn(); err == nil {
					_ = raw.Control(acknowledge)
				}
			}
		case sdpcore.OpPeerSize, sdpcore.OpPart:
		}
	}
	if resized {
		c.exec(c.m.Resized(c.now(), c.room()))
	}
	if failed != nil {
		c.exec(c.m.Abort(c.now(), failed, c.room()))
	}
	c.send.flush()
}

// logsMessages reports whether each message is logged.
func logsMessages(l *slog.Logger) bool { return l.Enabled(context.Background(), slog.LevelDebug) }

// advertise registers the bytes a SrcAvail or SinkAvail offers to the peer. For another message,
// advertise does nothing. Reads and Writes by the peer are enabled on every connection. [SDP-14.1-1]
func (c *Conn) advertise(a *sdpcore.Action) error {
	if a.Adv == 0 {
		return nil
	}
	var b []byte
	access := iwarp.RemoteRead
	if a.Msg.MID == sdpwire.SinkAvail {
		c.recv.withdraw(c.qp)
		b, access = find(c.calls.reads, a.RID).buf[:a.Msg.Size], iwarp.RemoteWrite
	} else {
		b = find(c.calls.writes, a.ID).bytes(a.Off, int(a.Msg.Size))
	}
	win, err := c.advs.offer(c.qp, a.Adv, b, access)
	if err != nil {
		return err
	}
	a.Msg.STag, a.Msg.VA = win.STag(), win.TO()
	c.m.Bind(a.Adv, win.STag())
	return nil
}

func (c *Conn) rdmaRead(a *sdpcore.Action) {
	var b, local []byte
	if a.Local {
		b = make([]byte, a.N)
		local = b
	} else {
		c.recv.withdraw(c.qp)
		b = bytesOf(c.calls.reads, a)
	}
	c.recv.local = append(c.recv.local, local)
	c.send.read(b, iwarp.RemoteAddr{STag: a.STag, TO: a.TO})
}

// writeDone ends write a.ID, no longer needed by the machine, or keeps the write until its Sends
// are complete.
func (c *Conn) writeDone(a *sdpcore.Action) {
	o := take(&c.calls.writes, a.ID)
	if !o.own {
		o.n, o.err = a.N, a.Err
	}
	o.after = c.send.lent
	if o.after <= c.send.done || c.m.Dead() && c.state == streamReleased {
		c.calls.end(o)
	} else if c.calls.ending = append(c.calls.ending, o); o.cancel {
		c.keepSends()
	}
}

// readDone ends read a.ID with the result in a.
func (c *Conn) readDone(a *sdpcore.Action) {
	o := take(&c.calls.reads, a.ID)
	o.n, o.err = a.N, a.Err
	c.recv.withdraw(c.qp)
	c.calls.end(o)
}

// sendsDone records that the Sends up to number upTo are complete, ends the writes waiting for
// these Sends, and posts requests waiting for room. Once the backlog is empty, sendsDone continues a
// pending reconnect.
func (c *Conn) sendsDone(upTo uint64) {
	c.send.complete(upTo)
	if c.send.ended {
		c.flush()
	}
	c.calls.sent(c.send.done)
	if len(c.send.backlog) > 0 && c.send.catchUp() && c.resumeAt != 0 && c.m.Suspended() {
		c.reconnect()
	}
}
