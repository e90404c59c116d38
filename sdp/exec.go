package sdp

import (
	"context"
	"log/slog"

	"viaduct/internal/sdpcore"
	"viaduct/internal/wire/sdpwire"
	"viaduct/iwarp"
)

// sideSend is the state of sending: headers, each kept in place until its Send is complete, and the
// numbers of Sends posted and completed.
type sideSend struct {
	hdrs    [][48]byte   // indexed by the number of the Send; see header
	depth   int          // depth of the send queue
	posted  uint64       // number of Sends and Writes posted so far, which is the number of the last one
	lent    uint64       // number of the last Send or Write that refers to memory of the caller
	done    uint64       // number of the last Send or Write known to be complete
	backlog []backlogged // requests that wait for room in the send queue, oldest first
	last    uint64       // number of the DisConn until it is complete, otherwise 0
	ended   bool         // the DisConn is complete: TCP has all of the stream
	rang    bool         // requests were posted since the last Flush of the stream
	sg      [iwarp.MaxSGE]iwarp.SGE
	advs    []advert
}

// A backlogged request waits for room in the send queue of the stream.
type backlogged struct {
	wr iwarp.SendWR
	sg [iwarp.MaxSGE]iwarp.SGE
}

// An advert is memory the peer may read or write.
type advert struct {
	key uint64
	mr  *iwarp.MemoryRegion
	win *iwarp.Window // window of the whole region, which the peer may invalidate
}

func (s *sideSend) init(depth int) {
	*s = sideSend{depth: depth}
}

// header returns the memory for the header of the last numbered Send, in use until the Send is
// complete. The memory grows with the number of concurrent Sends, up to the depth of the queue. The
// memory is small at first, because most connections are short or send little.
func (s *sideSend) header() []byte {
	n := len(s.hdrs)
	if n == 0 || s.posted > s.done+uint64(n) {
		if n == s.depth { // this Send waits for room in the queue
			return make([]byte, 0, len(s.hdrs[0]))
		}
		// Sends under way continue to use the old memory.
		n = min(max(8, 2*n), s.depth)
		s.hdrs = make([][48]byte, n)
	}
	return s.hdrs[s.posted%uint64(n)][:0]
}

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
			i += c.sendMessage(acts, i)
		case sdpcore.OpRDMAWrite:
			c.rdmaWrite(a)
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
			c.revoke(a.Adv)
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
	if c.send.rang {
		c.send.rang = false
		c.qp.Flush()
	}
}

// sendMessage posts the Send of acts[i] and of the OpParts after acts[i]. sendMessage returns the
// number of OpParts.
func (c *Conn) sendMessage(acts []sdpcore.Action, i int) int {
	a, s := &acts[i], &c.send
	if a.Adv != 0 && !c.advertise(a) {
		return a.Parts
	}
	if c.logsMessages() {
		c.opt.Logger.Debug("sent", "remote", c.path.Remote, "msg", &a.Msg)
	}
	s.posted++
	h := a.Msg.Append(s.header(), c.layout)
	payload := a.Msg.PayloadLen()
	wr := iwarp.SendWR{ID: s.posted, Op: sendOp(a), Invalidate: a.STag, More: true, Unsignaled: true}
	s.sg[0] = iwarp.Buf(h)
	n := 1
	if payload > 0 {
		n = c.gather(acts, i, payload, n)
	}
	wr.SG = s.sg[:n]
	if len(h)+payload <= iwarp.MaxInline {
		wr.Inline = true
	} else {
		s.lent = s.posted
		// A call may wait until this memory is free, so a completion must report the end of the
		// Send. If the next action is a Send by reference too, a later completion covers both.
		next := i + 1 + a.Parts
		wr.Unsignaled = next < len(acts) && acts[next].Op == sdpcore.OpSend && acts[next].N > iwarp.MaxInline
	}
	if a.Msg.MID == sdpwire.DisConn {
		s.last, wr.Unsignaled = s.posted, false
	}
	if s.posted%32 == 0 {
		wr.Unsignaled = false
	}
	c.post(&wr)
	return a.Parts
}

// logsMessages reports whether each message is logged.
func (c *Conn) logsMessages() bool {
	return c.opt.Logger.Enabled(context.Background(), slog.LevelDebug)
}

func sendOp(a *sdpcore.Action) iwarp.Op {
	switch { // [SDP-14.2-1] [SDP-14.2-2]
	case a.Solicited && a.Invalidate:
		return iwarp.OpSendSEInvalidate
	case a.Solicited:
		return iwarp.OpSendSE
	}
	return iwarp.OpSend
}

// gather fills the gather list from element n on with the payload of acts[i] and its OpParts, and
// returns the number of elements. If there are more parts than elements, gather copies all parts
// into a single element.
func (c *Conn) gather(acts []sdpcore.Action, i, payload, n int) int {
	a, s := &acts[i], &c.send
	if a.Parts+1 > len(s.sg)-n {
		b := make([]byte, 0, payload)
		p := find(c.calls.writes, a.ID).bytes(a.Off, a.N)
		b = append(b, p...)
		for k := i + 1; k <= i+a.Parts; k++ {
			b = append(b, find(c.calls.writes, acts[k].ID).bytes(acts[k].Off, acts[k].N)...)
		}
		s.sg[n] = iwarp.Buf(b)
		return n + 1
	}
	for k := i; k <= i+a.Parts; k++ {
		s.sg[n] = iwarp.Buf(find(c.calls.writes, acts[k].ID).bytes(acts[k].Off, acts[k].N))
		n++
	}
	return n
}

// post posts a request to the stream, or appends it to the backlog while the stream's queue is
// full.
func (c *Conn) post(wr *iwarp.SendWR) {
	s := &c.send
	s.rang = true
	if len(s.backlog) == 0 {
		err := c.qp.Post(*wr)
		if err == nil {
			return
		}
		if err != iwarp.ErrQueueFull {
			return // the stream has ended; flushed completions report that
		}
	}
	b := backlogged{wr: *wr}
	if wr.Inline { // inline payload is valid only now, so it is copied
		p := make([]byte, 0, iwarp.MaxInline)
		for _, g := range wr.SG {
			p = append(p, g.Buf...)
		}
		b.sg[0] = iwarp.Buf(p)
		b.wr.SG = b.sg[:1]
		s.backlog = append(s.backlog, b)
		return
	}
	copy(b.sg[:], wr.SG)
	b.wr.SG = b.sg[:len(wr.SG)]
	s.backlog = append(s.backlog, b)
}

// catchUp posts the requests of the backlog, until the queue is full again. Once the backlog is
// empty, catchUp continues a pending reconnect.
func (c *Conn) catchUp() {
	s := &c.send
	for len(s.backlog) > 0 {
		b := &s.backlog[0]
		b.wr.SG = b.sg[:len(b.wr.SG)]
		if err := c.qp.Post(b.wr); err == iwarp.ErrQueueFull {
			return
		}
		s.rang = true
		s.backlog = s.backlog[1:]
	}
	s.backlog = nil
	if c.resumeAt != 0 && c.m.Suspended() {
		c.reconnect()
	}
}

// advertise registers the bytes a SrcAvail or SinkAvail offers to the peer, for this connection
// only. [D-80] If the registration fails, advertise returns false, and exec then aborts the
// connection. Reads and Writes by the peer are enabled on every connection. [SDP-14.1-1]
func (c *Conn) advertise(a *sdpcore.Action) bool {
	var b []byte
	access := iwarp.RemoteRead
	if a.Msg.MID == sdpwire.SinkAvail {
		c.withdraw()
		b, access = find(c.calls.reads, a.RID).buf[:a.Msg.Size], iwarp.RemoteWrite
	} else {
		b = find(c.calls.writes, a.ID).bytes(a.Off, int(a.Msg.Size))
	}
	mr, err := c.qp.Register(b, iwarp.LocalOnly)
	if err != nil {
		c.drv.fail = err
		return false
	}
	win, err := c.qp.Bind(mr, 0, len(b), access)
	if err != nil {
		_ = mr.Close()
		c.drv.fail = err
		return false
	}
	c.send.advs = append(c.send.advs, advert{a.Adv, mr, win})
	a.Msg.STag, a.Msg.VA = win.STag(), win.TO()
	c.m.Bind(a.Adv, win.STag())
	return true
}

// revoke ends the advertisement with the given key. The peer does not access the memory afterwards.
// An unknown key is ignored.
func (c *Conn) revoke(key uint64) {
	for i, ad := range c.send.advs {
		if ad.key == key {
			_ = ad.win.Close() // the peer may have invalidated the window already, which is no error
			_ = ad.mr.Close()
			c.send.advs[i] = c.send.advs[len(c.send.advs)-1]
			c.send.advs[len(c.send.advs)-1] = advert{}
			c.send.advs = c.send.advs[:len(c.send.advs)-1]
			return
		}
	}
}

func (c *Conn) rdmaWrite(a *sdpcore.Action) {
	s := &c.send
	s.posted++
	p := find(c.calls.writes, a.ID).bytes(a.Off, a.N)
	s.sg[0] = iwarp.Buf(p)
	s.lent = s.posted
	c.post(&iwarp.SendWR{ID: s.posted, Op: iwarp.OpWrite, SG: s.sg[:1],
		Remote: iwarp.RemoteAddr{STag: a.STag, TO: a.TO}, More: true})
}

func (c *Conn) rdmaRead(a *sdpcore.Action) {
	s := &c.send
	s.posted++
	var b []byte
	if a.Local {
		b = make([]byte, a.N)
		c.recv.local = append(c.recv.local, b)
	} else {
		c.withdraw()
		b = find(c.calls.reads, a.ID).buf[a.Off : a.Off+a.N]
		c.recv.local = append(c.recv.local, nil)
	}
	s.sg[0] = iwarp.Buf(b)
	c.post(&iwarp.SendWR{ID: s.posted, Op: iwarp.OpRead, SG: s.sg[:1],
		Remote: iwarp.RemoteAddr{STag: a.STag, TO: a.TO}, More: true})
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
// these Sends, and posts requests waiting for room.
func (c *Conn) sendsDone(upTo uint64) {
	s := &c.send
	s.done = max(s.done, upTo)
	if s.last != 0 && s.done >= s.last {
		s.last, s.ended = 0, true
		c.flush()
	}
	c.calls.sent(s.done)
	if len(s.backlog) > 0 {
		c.catchUp()
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
