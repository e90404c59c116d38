package sdp

import (
	"context"
	"log/slog"

	"viaduct/internal/sdpcore"
	"viaduct/internal/wire/sdpwire"
	"viaduct/iwarp"
)

// sideRecv is the state of receiving.
type sideRecv struct {
	in    *inbox
	cur   []byte // payload of the message being handled
	index int    // index of the message's Private Buffer
	kept  bool   // whether the machine holds that buffer
	holds []hold // payload that waits for reads, from index head on
	head  int
	local [][]byte // memory of each RDMA Read in progress, oldest first; nil for one into a call's buffer
}

// A hold is payload waiting for a read.
type hold struct {
	b     []byte
	index int // index of the Private Buffer that contains b, or -1 if none does
}

// exec performs the actions of an event, all of them by iWARP. [SDP-8.1.1-1] [SDP-8.1.1-32] mu must
// be held.
func (c *Conn) exec(acts []sdpcore.Action) {
	c.acts = acts
	for i := 0; i < len(acts); i++ {
		a := &acts[i]
		switch a.Op {
		case sdpcore.OpSend:
			if a.Adv == 0 || c.advertise(a) {
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
			c.recv.holds = append(c.recv.holds, hold{c.recv.cur[:a.N], c.recv.index})
			c.recv.kept = true
		case sdpcore.OpCompact:
			c.compact(a.N)
		case sdpcore.OpCopy:
			o := find(c.calls.reads, a.ID)
			c.takeHeld(o.buf[a.Off:a.Off+a.N], a.N)
		case sdpcore.OpDrop:
			c.takeHeld(nil, a.N)
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
			c.urg.pending++
			c.urg.notify()
		case sdpcore.OpUrgent:
			c.urgentCame(a)
		case sdpcore.OpMode:
			c.opt.Logger.Debug("mode", "remote", c.path.Remote, "sending", a.Local, "mode", a.Msg.Mode)
		case sdpcore.OpResize:
			// All buffers have their largest possible size, so a new size is valid at once. [D-46]
			// [SDP-10.6-13] [SDP-10.6.2-2]
			c.drv.resized = true
		case sdpcore.OpSuspended:
			c.suspendedNow(nil)
		case sdpcore.OpReconnect:
			c.resumeAt = a.Msg.Port
			c.reconnect()
		case sdpcore.OpFinish:
			c.finish()
		case sdpcore.OpAbort:
			c.abortNow(a.Local, a.Err)
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
	if c.drv.resized {
		c.drv.resized = false
		c.exec(c.m.Resized(c.now(), c.room()))
		return
	}
	if c.drv.fail != nil {
		err := c.drv.fail
		c.drv.fail = nil
		c.exec(c.m.Abort(c.now(), err, c.room()))
		return
	}
	c.send.flush()
}

// logsMessages reports whether each message is logged.
func logsMessages(l *slog.Logger) bool { return l.Enabled(context.Background(), slog.LevelDebug) }

// advertise registers the bytes a SrcAvail or SinkAvail offers to the peer. If the registration
// fails, advertise returns false, and exec then aborts the connection. Reads and Writes by the peer
// are enabled on every connection. [SDP-14.1-1]
func (c *Conn) advertise(a *sdpcore.Action) bool {
	var b []byte
	access := iwarp.RemoteRead
	if a.Msg.MID == sdpwire.SinkAvail {
		c.withdraw()
		b, access = find(c.calls.reads, a.RID).buf[:a.Msg.Size], iwarp.RemoteWrite
	} else {
		b = find(c.calls.writes, a.ID).bytes(a.Off, int(a.Msg.Size))
	}
	win, err := c.advs.offer(c.qp, a.Adv, b, access)
	if err != nil {
		c.drv.fail = err
		return false
	}
	a.Msg.STag, a.Msg.VA = win.STag(), win.TO()
	c.m.Bind(a.Adv, win.STag())
	return true
}

func (c *Conn) rdmaRead(a *sdpcore.Action) {
	var b, local []byte
	if a.Local {
		b = make([]byte, a.N)
		local = b
	} else {
		c.withdraw()
		b = bytesOf(c.calls.reads, a)
	}
	c.recv.local = append(c.recv.local, local)
	c.send.read(b, iwarp.RemoteAddr{STag: a.STag, TO: a.TO})
}

// takeHeld moves n bytes from the front of the held payload to dst. If dst is nil, takeHeld drops
// the bytes.
func (c *Conn) takeHeld(dst []byte, n int) {
	r := &c.recv
	for n > 0 {
		h := &r.holds[r.head]
		k := min(n, len(h.b))
		if dst != nil {
			if &dst[0] != &h.b[0] { // otherwise the bytes were received here directly
				copy(dst, h.b[:k])
			}
			dst = dst[k:]
		}
		h.b = h.b[k:]
		n -= k
		if len(h.b) == 0 {
			if h.index >= 0 {
				c.recv.in.release(h.index)
			}
			*h = hold{}
			r.head++
		}
	}
	if r.head == len(r.holds) {
		r.holds, r.head = r.holds[:0], 0
	}
}

// compact copies the n bytes of the newest held payload out of its Private Buffer, and releases the
// buffer.
func (c *Conn) compact(n int) {
	r := &c.recv
	h := &r.holds[len(r.holds)-1]
	index := h.index
	if before := len(r.holds) - 2; before >= r.head && r.holds[before].index < 0 {
		r.holds[before].b = append(r.holds[before].b, h.b[:n]...)
		*h = hold{}
		r.holds = r.holds[:len(r.holds)-1]
	} else {
		*h = hold{b: append(make([]byte, 0, max(n, 512)), h.b[:n]...), index: -1}
	}
	c.recv.in.release(index)
}

// withdraw takes back the lent buffer of the waiting read, if any. From now on only RDMA Writes of
// the peer and our own RDMA Reads place bytes there. Bytes in the buffer not yet counted by the
// machine are copied to Private Buffers.
func (c *Conn) withdraw() {
	if c.recv.in.lends() {
		c.qp.Reclaim()
		c.keepLoose()
	}
}

// keepLoose copies to Private Buffers the bytes that arrived directly in the buffer of a read, but
// are not yet counted as read by the machine.
func (c *Conn) keepLoose() {
	r := &c.recv
	if !r.in.lending() {
		return
	}
	for i := r.head; i < len(r.holds); i++ {
		if h := &r.holds[i]; h.index >= 0 {
			h.b = r.in.own(h.index, h.b)
		}
	}
	if r.cur != nil && !r.kept {
		r.cur = r.in.own(r.index, r.cur)
	}
	for i := range r.in.slots {
		r.in.own(i, nil)
	}
}

// writeDone ends write a.ID, no longer needed by the machine, or keeps the write until its Sends
// are complete.
func (c *Conn) writeDone(a *sdpcore.Action) {
	o := take(&c.calls.writes, a.ID)
	if !o.own {
		o.n, o.err = a.N, a.Err
	}
	o.after = c.send.lent
	if o.after <= c.send.done || c.m.Dead() && c.released {
		c.calls.end(o)
	} else if c.calls.ending = append(c.calls.ending, o); o.cancel {
		c.keepSends()
	}
}

// readDone ends read a.ID with the result in a.
func (c *Conn) readDone(a *sdpcore.Action) {
	o := take(&c.calls.reads, a.ID)
	o.n, o.err = a.N, a.Err
	c.withdraw()
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

// flush records that TCP has all of the stream, or never will.
func (c *Conn) flush() {
	select {
	case <-c.flushed:
	default:
		close(c.flushed)
	}
}
