package sdp

import (
	"context"
	"log/slog"

	"viaduct/internal/sdpcore"
	"viaduct/internal/wire/sdpwire"
	"viaduct/iwarp"
)

// sideSend is what sending needs: headers that stay in place until their Send
// is complete, and how far that is.
type sideSend struct {
	hdrs    [][48]byte // by the number of the Send; see header
	depth   int        // of the send queue
	posted  uint64     // Sends and Writes posted so far; the last one's number
	lent    uint64     // number of the last one that names memory of others
	done    uint64     // number of the last one known to be complete
	backlog []backlogged
	held    int    // bytes of the send buffer in use
	last    uint64 // number of the DisConn, until it is complete
	ended   bool   // it is: TCP has all of the stream
	rang    bool
	sg      [iwarp.MaxSGE]iwarp.SGE
	advs    []advert
}

// A backlogged request waits for room in the send queue.
type backlogged struct {
	wr iwarp.SendWR
	sg [iwarp.MaxSGE]iwarp.SGE
}

// An advert is memory that the peer may read or write.
type advert struct {
	key uint64
	mr  *iwarp.MemoryRegion
	win *iwarp.Window // of all of it: the peer may invalidate it
}

func (s *sideSend) init(depth int) {
	*s = sideSend{depth: depth, held: s.held}
}

// header returns the memory for the header of the Send just numbered, which
// keeps it until it is complete. There is as much as Sends were under way at a
// time, up to the depth of the queue, and little of it at first: most connections
// are short or send little.
func (s *sideSend) header() []byte {
	n := len(s.hdrs)
	if n == 0 || s.posted > s.done+uint64(n) {
		if n == s.depth { // it waits for room in the queue
			return make([]byte, 0, len(s.hdrs[0]))
		}
		// What is under way keeps the old memory.
		n = min(max(8, 2*n), s.depth)
		s.hdrs = make([][48]byte, n)
	}
	return s.hdrs[s.posted%uint64(n)][:0]
}

// sideRecv is what receiving needs.
type sideRecv struct {
	in    *inbox
	cur   []byte // payload of the message being dealt with
	index int    // of its buffer
	kept  bool   // the machine holds that buffer
	holds []hold // payload that waits for reads, from head on
	head  int
	local [][]byte // memory of RDMA Reads that no read of the ULP waits for, oldest first
}

// A hold is payload that waits for a read.
type hold struct {
	b     []byte
	index int // of its Private Buffer, or -1
}

// exec carries out the actions of an event, all of them by iWARP. [SDP-8.1.1-1]
// [SDP-8.1.1-32] Called with mu held.
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
			o := c.readOp(a.ID)
			c.takeHeld(o.buf[a.Off:a.Off+a.N], a.N)
		case sdpcore.OpDrop:
			c.takeHeld(nil, a.N)
		case sdpcore.OpRevoke:
			c.revoke(a.Adv)
		case sdpcore.OpWriteDone:
			c.writeDone(a)
		case sdpcore.OpDetach:
			o := c.writeOp(a.ID)
			c.detach(o, a.Off)
			o.n = a.N // for a transfer
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
			// All buffers are as large as they can become, so that a new size
			// holds at once. [D-46] [SDP-10.6-13] [SDP-10.6.2-2]
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
			// The peer's Close waits until our TCP has acknowledged this, which it
			// would put off for 40 ms where no DisConn of ours is about to follow.
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

func (c *Conn) readOp(id uint64) *op {
	for _, o := range c.rops {
		if o.id == id {
			return o
		}
	}
	return nil
}

func (c *Conn) writeOp(id uint64) *op {
	for _, o := range c.wops {
		if o.id == id {
			return o
		}
	}
	return nil
}

// bytes returns n bytes of write id from off.
func (c *Conn) bytes(id uint64, off, n int) (*op, []byte) {
	o := c.writeOp(id)
	return o, o.buf[off-o.base : off-o.base+n]
}

// sendMessage posts the Send of acts[i] and of the OpParts that follow it, and returns the number
// of OpParts.
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
		// Something may wait for this memory. The completion of the Data behind
		// it will do, if that is of the same kind.
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

// gather fills the gather list from n on with the payload of acts[i]. More
// pieces than there are elements are copied together.
func (c *Conn) gather(acts []sdpcore.Action, i, payload, n int) int {
	a, s := &acts[i], &c.send
	if a.Parts+1 > len(s.sg)-n {
		b := make([]byte, 0, payload)
		_, p := c.bytes(a.ID, a.Off, a.N)
		b = append(b, p...)
		for k := i + 1; k <= i+a.Parts; k++ {
			_, p := c.bytes(acts[k].ID, acts[k].Off, acts[k].N)
			b = append(b, p...)
		}
		s.sg[n] = iwarp.Buf(b)
		return n + 1
	}
	for k := i; k <= i+a.Parts; k++ {
		_, p := c.bytes(acts[k].ID, acts[k].Off, acts[k].N)
		s.sg[n] = iwarp.Buf(p)
		n++
	}
	return n
}

// post passes a request to the stream, or keeps it while the stream's queue is full.
func (c *Conn) post(wr *iwarp.SendWR) {
	s := &c.send
	s.rang = true
	if len(s.backlog) == 0 {
		err := c.qp.Post(*wr)
		if err == nil {
			return
		}
		if err != iwarp.ErrQueueFull {
			return // the stream has ended; its completions say so
		}
	}
	b := backlogged{wr: *wr}
	if wr.Inline { // its payload is not kept until it is sent
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

// catchUp posts what waited for room.
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

// advertise registers what a SrcAvail or SinkAvail offers to the peer: the
// exact bytes, for this connection only. [D-80] Reads and Writes by the peer are
// enabled on every connection. [SDP-14.1-1]
func (c *Conn) advertise(a *sdpcore.Action) bool {
	var b []byte
	access := iwarp.RemoteRead
	if a.Msg.MID == sdpwire.SinkAvail {
		c.withdraw()
		b, access = c.readOp(a.RID).buf[:a.Msg.Size], iwarp.RemoteWrite
	} else {
		_, b = c.bytes(a.ID, a.Off, int(a.Msg.Size))
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

// revoke ends an advertisement: no peer touches the memory afterwards.
func (c *Conn) revoke(key uint64) {
	for i, ad := range c.send.advs {
		if ad.key == key {
			_ = ad.win.Close() // the peer may have invalidated it already
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
	_, p := c.bytes(a.ID, a.Off, a.N)
	s.sg[0] = iwarp.Buf(p)
	s.lent = s.posted
	c.post(&iwarp.SendWR{ID: s.posted, Op: iwarp.OpWrite, SG: s.sg[:1], Remote: iwarp.RemoteAddr{STag: a.STag, TO: a.TO}, More: true})
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
		b = c.readOp(a.ID).buf[a.Off : a.Off+a.N]
		c.recv.local = append(c.recv.local, nil)
	}
	s.sg[0] = iwarp.Buf(b)
	c.post(&iwarp.SendWR{ID: s.posted, Op: iwarp.OpRead, SG: s.sg[:1], Remote: iwarp.RemoteAddr{STag: a.STag, TO: a.TO}, More: true})
}

// takeHeld moves n bytes from the front of the held payload to dst, or drops
// them if dst is nil.
func (c *Conn) takeHeld(dst []byte, n int) {
	r := &c.recv
	for n > 0 {
		h := &r.holds[r.head]
		k := min(n, len(h.b))
		if dst != nil {
			if &dst[0] != &h.b[0] { // else it came straight here
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

// compact copies the newest held payload out of its Private Buffer.
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

// withdraw takes back the buffer of the waiting read, to which only the peer, or nothing, writes
// from now on. Bytes that arrived there and were not counted are kept.
func (c *Conn) withdraw() {
	if c.recv.in.lends() {
		c.qp.Reclaim()
		c.keepLoose()
	}
}

// keepLoose copies bytes that arrived directly in the buffer of a read that ended before they were
// counted.
func (c *Conn) keepLoose() {
	r := &c.recv
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

// writeDone: the machine needs write a.ID no more.
func (c *Conn) writeDone(a *sdpcore.Action) {
	for i, o := range c.wops {
		if o.id != a.ID {
			continue
		}
		c.wops = append(c.wops[:i], c.wops[i+1:]...)
		if !o.own {
			o.n, o.err = a.N, a.Err
		}
		o.after = c.send.lent
		if o.after <= c.send.done || c.m.Dead() && c.released {
			c.endOp(o)
		} else if c.ending = append(c.ending, o); o.cancel {
			c.keepSends()
		}
		return
	}
}

// readDone: read a.ID has ended.
func (c *Conn) readDone(a *sdpcore.Action) {
	for i, o := range c.rops {
		if o.id == a.ID {
			c.rops = append(c.rops[:i], c.rops[i+1:]...)
			o.n, o.err = a.N, a.Err
			c.withdraw()
			c.endOp(o)
			return
		}
	}
}

// endOp ends a read or write for good.
func (c *Conn) endOp(o *op) {
	if o.own {
		c.send.held -= o.held
		o.held = 0
		o.ended = true
		switch {
		case o.onDone != nil:
			c.letTransferGo(o)
		case o.waited:
			c.wd.letGo(o)
		default:
			freeOp(o)
		}
		return
	}
	if o.onDone != nil {
		o.onDone()
	}
	if o.read {
		c.rd.finish(o)
	} else {
		c.wd.finish(o)
	}
}

// letTransferGo ends the transfer of a write whose bytes the connection has copied.
func (c *Conn) letTransferGo(o *op) {
	o.onDone()
	o.onDone = nil
	c.wd.letGo(o)
}

// sendsDone ends the writes whose Sends are complete.
func (c *Conn) sendsDone(upTo uint64) {
	s := &c.send
	s.done = max(s.done, upTo)
	if s.last != 0 && s.done >= s.last {
		s.last, s.ended = 0, true
		c.flush()
	}
	n := 0
	for n < len(c.ending) && c.ending[n].after <= s.done {
		n++
	}
	for _, o := range c.ending[:n] {
		c.endOp(o)
	}
	if n > 0 {
		c.ending = append(c.ending[:0], c.ending[n:]...)
	}
	if len(s.backlog) > 0 {
		c.catchUp()
	}
}

// flush says that all of the stream has been handed to TCP, or never will be.
func (c *Conn) flush() {
	select {
	case <-c.flushed:
	default:
		close(c.flushed)
	}
}

// detach copies the bytes of o from off, so that its caller can return.
func (c *Conn) detach(o *op, off int) {
	o.buf = append([]byte(nil), o.buf[off-o.base:]...)
	o.base = off
	o.held = len(o.buf)
	c.send.held += o.held
	o.own = true
	// The caller waits for Sends that still name its memory.
	o.after = c.send.lent
}
