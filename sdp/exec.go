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
func (d *driver) exec(acts []sdpcore.Action) {
	d.acts = acts
	resized, failed := false, error(nil)
	for i := 0; i < len(acts); i++ {
		a := &acts[i]
		switch a.Op {
		case sdpcore.OpSend:
			if err := d.advertise(a); err != nil {
				failed = err
			} else {
				if logsMessages(d.opt.Logger) {
					d.opt.Logger.Debug("sent", "remote", d.path.Remote, "msg", &a.Msg)
				}
				d.send.message(acts[i:], d.calls.writes)
			}
			i += a.Parts
		case sdpcore.OpRDMAWrite:
			d.send.write(bytesOf(d.calls.writes, a), iwarp.RemoteAddr{STag: a.STag, TO: a.TO})
		case sdpcore.OpRDMARead:
			d.rdmaRead(a)
		case sdpcore.OpHold:
			d.recv.hold(a.N)
		case sdpcore.OpCompact:
			d.recv.compact(a.N)
		case sdpcore.OpCopy:
			d.recv.take(bytesOf(d.calls.reads, a), a.N)
		case sdpcore.OpDrop:
			d.recv.take(nil, a.N)
		case sdpcore.OpRevoke:
			d.advs.revoke(a.Adv)
		case sdpcore.OpWriteDone:
			d.writeDone(a)
		case sdpcore.OpDetach:
			o := find(d.calls.writes, a.ID)
			d.calls.detach(o, a.Off, d.send.lent)
			o.n = a.N // a transfer reads the count here
		case sdpcore.OpReadDone:
			d.readDone(a)
		case sdpcore.OpUrgentPending:
			d.urg.announced()
		case sdpcore.OpUrgent:
			d.urg.came(a.Pos, d.recv.cur, a.Local)
		case sdpcore.OpMode:
			d.opt.Logger.Debug("mode", "remote", d.path.Remote, "sending", a.Local, "mode", a.Msg.Mode)
		case sdpcore.OpResize:
			// All buffers have their largest possible size, so a new size is valid at once. [D-46]
			// [SDP-10.6-13] [SDP-10.6.2-2]
			resized = true
		case sdpcore.OpSuspended:
			d.state = streamMoved
			d.suspendTo <- nil
		case sdpcore.OpReconnect:
			d.resumeAt = a.Msg.Port
			d.reconnect()
		case sdpcore.OpFinish:
			d.release(false, nil) // [D-49] [SDP-6.2-2] [SDP-8.2.1-23]
		case sdpcore.OpAbort:
			// After an AbortConn the stream ends in order, because a reset might overtake the
			// AbortConn. [SDP-8.2.2-1] [SDP-8.2.2-3] [SDP-8.2.2-7]
			d.release(!a.Local, a.Err)
		case sdpcore.OpPeerClosed:
			// The peer's Close waits until our TCP has acknowledged the peer's DisConn. Without a
			// DisConn of ours, TCP would delay the acknowledgement by 40 ms.
			if !d.closed {
				if raw, err := d.qp.SyscallConn(); err == nil {
					_ = raw.Control(acknowledge)
				}
			}
		case sdpcore.OpPeerSize, sdpcore.OpPart:
		}
	}
	if resized {
		d.exec(d.m.Resized(d.now(), d.room()))
	}
	if failed != nil {
		d.exec(d.m.Abort(d.now(), failed, d.room()))
	}
	d.send.flush()
}

// logsMessages reports whether each message is logged.
func logsMessages(l *slog.Logger) bool { return l.Enabled(context.Background(), slog.LevelDebug) }

// advertise registers the bytes a SrcAvail or SinkAvail offers to the peer. For another message,
// advertise does nothing. Reads and Writes by the peer are enabled on every connection. [SDP-14.1-1]
func (d *driver) advertise(a *sdpcore.Action) error {
	if a.Adv == 0 {
		return nil
	}
	var b []byte
	access := iwarp.RemoteRead
	if a.Msg.MID == sdpwire.SinkAvail {
		d.recv.withdraw()
		b, access = find(d.calls.reads, a.RID).buf[:a.Msg.Size], iwarp.RemoteWrite
	} else {
		b = find(d.calls.writes, a.ID).bytes(a.Off, int(a.Msg.Size))
	}
	win, err := d.advs.offer(d.qp, a.Adv, b, access)
	if err != nil {
		return err
	}
	a.Msg.STag, a.Msg.VA = win.STag(), win.TO()
	d.m.Bind(a.Adv, win.STag())
	return nil
}

func (d *driver) rdmaRead(a *sdpcore.Action) {
	var b, local []byte
	if a.Local {
		b = make([]byte, a.N)
		local = b
	} else {
		d.recv.withdraw()
		b = bytesOf(d.calls.reads, a)
	}
	d.recv.local = append(d.recv.local, local)
	d.send.read(b, iwarp.RemoteAddr{STag: a.STag, TO: a.TO})
}

// writeDone ends write a.ID, no longer needed by the machine, or keeps the write until its Sends
// are complete.
func (d *driver) writeDone(a *sdpcore.Action) {
	o := take(&d.calls.writes, a.ID)
	if !o.own {
		o.n, o.err = a.N, a.Err
	}
	o.after = d.send.lent
	if o.after <= d.send.done || d.m.Dead() && d.state == streamReleased {
		d.calls.end(o)
	} else if d.calls.ending = append(d.calls.ending, o); o.cancel {
		d.keepSends()
	}
}

// readDone ends read a.ID with the result in a.
func (d *driver) readDone(a *sdpcore.Action) {
	o := take(&d.calls.reads, a.ID)
	o.n, o.err = a.N, a.Err
	d.recv.withdraw()
	d.calls.end(o)
}

// sendsDone records that the Sends up to number upTo are complete, ends the writes waiting for
// these Sends, and posts requests waiting for room. Once the backlog is empty, sendsDone continues a
// pending reconnect.
func (d *driver) sendsDone(upTo uint64) {
	d.send.complete(upTo)
	if d.send.ended {
		d.flush()
	}
	d.calls.sent(d.send.done)
	if len(d.send.backlog) > 0 && d.send.catchUp() && d.resumeAt != 0 && d.m.Suspended() {
		d.reconnect()
	}
}
