package decode

import (
	"fmt"
	"net/netip"
	"slices"
)

// A connKey names a TCP connection whichever way its packets go.
type connKey struct{ a, b netip.AddrPort }

func keyOf(p *packet) connKey {
	if p.dst.Compare(p.src) < 0 {
		return connKey{p.dst, p.src}
	}
	return connKey{p.src, p.dst}
}

// A conn is a TCP connection.
type conn struct {
	d      *Decoder
	key    connKey
	num    int
	addr   [2]netip.AddrPort // of the side that opened it, or was seen first, and of the other
	half   [2]half           // what each side sends
	seen   bool              // from its first byte
	closed bool
	ignore bool   // not one of the protocols
	name   string // of the protocol, "" until it is known
	p      parser // nil until the protocol is known, and after giveUp
	tried  int    // bytes at the last attempt to recognise it
	kept   int    // bytes of memory that it holds, as they were counted last
	at     int    // number of its last packet
}

// A half is what one side of a connection sends.
type half struct {
	c      *conn
	back   bool
	began  bool   // next is valid
	fin    bool   // its FIN has come
	end    uint32 // sequence number of the FIN, if fin
	next   uint32 // sequence number that comes next
	acked  uint32 // by the other side, if hasAck
	hasAck bool
	late   int     // packets of the connection since it was acknowledged what is missing
	queue  []piece // behind a hole, in order
	held   int     // memory of what is in queue

	buf    []byte // received and not yet decoded
	filled int    // bytes at the end of buf that the capture does not have
	untold int    // bytes missing that were not told: the protocol is not known yet
	lost   bool   // the next frame's place is not known
	skip   int    // bytes passed over in search of it
}

// behind reports whether the other side has acknowledged bytes that the capture does not have, or
// not yet.
func (h *half) behind() bool {
	n := int32(h.acked - h.next)
	return h.hasAck && h.began && (n > 1 || n == 1 && !h.fin)
}

// ended reports whether all bytes ahead of the FIN have come.
func (h *half) ended() bool { return h.fin && int32(h.end-h.next) <= 0 }

// beyond returns the position of the first known data after a hole: early bytes, or the FIN.
func (h *half) beyond() (seq uint32, ok bool) {
	if len(h.queue) > 0 {
		return h.queue[0].seq, true
	}
	return h.end, h.began && h.fin && !h.ended()
}

// A piece is a segment that arrived early.
type piece struct {
	seq     uint32
	b       []byte
	missing int
}

const (
	maxHeld    = 4 << 20 // bytes that one direction holds behind a hole
	maxPieces  = 4096    // and segments: they are kept in order
	patience   = 16      // packets that a hole is waited for after its acknowledgement
	maxUnknown = 192 << 10
)

// segment takes a TCP segment.
func (d *Decoder) segment(p *packet) {
	k := keyOf(p)
	c := d.conns[k]
	opens := p.flags&(synFlag|ackFlag) == synFlag
	if c != nil && opens && (c.closed || c.half[0].began && c.addr[0] == p.src && p.seq+1 != c.half[0].next) {
		if !c.closed {
			c.close()
		}
		c = nil
	}
	if c == nil {
		c = d.open(k, p)
	}
	if c.closed {
		return
	}
	c.at = d.frame
	defer d.count(c)
	i := 0
	if p.src != c.addr[0] || c.addr[0] == c.addr[1] {
		i = 1
	}
	h, other := &c.half[i], &c.half[1-i]
	if p.flags&synFlag != 0 {
		if !h.began {
			h.began, h.next = true, p.seq+1
			c.seen = c.seen || i == 0
		}
		return
	}
	if p.flags&ackFlag != 0 {
		if !other.hasAck || int32(p.ack-other.acked) > 0 {
			other.acked, other.hasAck, other.late = p.ack, true, 0
		}
		other.late++
		other.bridge(false)
	}
	if c.ignore {
		return
	}
	if c.p != nil && other.behind() { // what is said now may answer what is missing
		c.p.forget(other)
	}
	h.take(p)
	switch {
	case p.flags&rstFlag != 0:
		m := d.message(c, h.back)
		m.Proto, m.Name = "tcp", "reset"
		c.tell(m)
		c.close()
	case p.flags&finFlag != 0 && !h.fin:
		h.fin, h.end = true, p.seq+uint32(len(p.payload)+p.missing)
	}
	if h.ended() && other.ended() && len(h.queue) == 0 && len(other.queue) == 0 && !c.closed {
		c.close()
	}
}

// open begins to follow a connection.
func (d *Decoder) open(k connKey, p *packet) *conn {
	if len(d.order) >= maxConns {
		old := d.order[0]
		d.order = d.order[1:]
		if !old.closed {
			old.close()
		}
		if d.conns[old.key] == old {
			delete(d.conns, old.key)
		}
	}
	d.made++
	c := &conn{d: d, key: k, num: d.made, addr: [2]netip.AddrPort{p.src, p.dst}}
	if p.flags&(synFlag|ackFlag) == synFlag|ackFlag { // the SYN before it is not in the capture
		c.addr[0], c.addr[1] = p.dst, p.src
		c.seen = true
		c.half[0].began, c.half[0].next = true, p.ack
	}
	c.half[0].c, c.half[1].c, c.half[1].back = c, c, true
	switch as := d.forced(c.addr[0], c.addr[1]); {
	case as == "none", d.opt.Stream > 0 && d.opt.Stream != c.num:
		c.ignore = true
	case as != "":
		c.name, c.p = as, newParser(as, c)
	}
	d.conns[k] = c
	d.order = append(d.order, c)
	return c
}

// close ends a connection: what waits is decoded as far as it goes, and what never
// came is said.
func (c *conn) close() {
	for i := range c.half {
		h := &c.half[i]
		h.bridgeAll()
		if h.behind() { // the other side has had more
			n := int(int32(h.acked - h.next))
			if h.fin {
				n--
			}
			h.next += uint32(n)
			h.hole(n, "not in the capture")
		}
	}
	c.closed = true
	if c.p == nil && !c.ignore {
		c.recognise(true)
	}
	for i := range c.half {
		c.half[i].finish()
	}
	for i := range c.half {
		c.half[i].buf, c.half[i].queue = nil, nil
	}
	c.p = nil
	c.d.count(c)
}

// tell emits a message about the connection itself, which is of interest only if its protocol is
// known.
func (c *conn) tell(m *Message) {
	if c.name != "" && !c.ignore {
		c.d.emit(m)
	}
}

// take takes what a segment carries.
func (h *half) take(p *packet) {
	b, seq := p.payload, p.seq
	if len(b)+p.missing == 0 {
		if !h.began && p.flags&ackFlag != 0 {
			h.began, h.next, h.lost = true, seq, true
		}
		return
	}
	if !h.began { // the capture begins in the middle
		h.began, h.next, h.lost = true, seq, true
	}
	missing := p.missing
	if ahead := int32(seq - h.next); ahead > 0 {
		h.hold(piece{seq, slices.Clone(b), missing})
		return
	}
	if _, late := h.beyond(); late && int32(seq+uint32(len(b)+missing)-h.next) > 0 {
		m := h.c.d.message(h.c, h.back)
		m.Proto, m.Name = "tcp", "out of order"
		m.num("tcp.bytes", uint64(len(b)+missing))
		m.num("tcp.ahead", uint64(max(1, len(h.queue))))
		m.Note = "later packets came ahead of it"
		h.c.tell(m)
	}
	h.place(seq, b, missing)
	h.drain()
}

// place takes bytes that are due, or older.
func (h *half) place(seq uint32, b []byte, missing int) {
	old := int(h.next - seq)
	if old >= len(b)+missing {
		if n := len(b) + missing; n > 1 || old > 1 { // else it is a keep-alive
			m := h.c.d.message(h.c, h.back)
			m.Proto, m.Name = "tcp", "retransmission"
			m.num("tcp.bytes", uint64(n))
			h.c.tell(m)
		}
		return
	}
	if old > 0 {
		m := h.c.d.message(h.c, h.back)
		m.Proto, m.Name = "tcp", "retransmission"
		m.num("tcp.bytes", uint64(old))
		m.Note = fmt.Sprintf("with %d new bytes behind them", len(b)+missing-old)
		h.c.tell(m)
	}
	k := min(old, len(b))
	b, missing = b[k:], missing-(old-k)
	h.next += uint32(len(b) + missing)
	h.feed(b)
	if missing > 0 {
		h.hole(missing, "cut short by the capture")
	}
}

// hold stores a segment that arrived early.
func (h *half) hold(x piece) {
	i := len(h.queue)
	for i > 0 && int32(h.queue[i-1].seq-x.seq) > 0 {
		i--
	}
	h.queue = slices.Insert(h.queue, i, x)
	h.held += x.cost()
	if h.held > maxHeld || len(h.queue) > maxPieces {
		h.bridge(true)
	}
}

// drain places stored segments that are next in order.
func (h *half) drain() {
	for len(h.queue) > 0 && int32(h.queue[0].seq-h.next) <= 0 {
		x := h.queue[0]
		h.queue = h.queue[1:]
		h.held -= x.cost()
		h.place(x.seq, x.b, x.missing)
	}
	if len(h.queue) == 0 {
		h.queue = nil
	}
}

// bridge gives up a hole: at once, or if the other side has acknowledged its bytes so long ago that
// the capture cannot still have them.
func (h *half) bridge(now bool) {
	first, ok := h.beyond()
	if !ok {
		return
	}
	if !now && (!h.hasAck || int32(h.acked-first) < 0 || h.late < patience) {
		return
	}
	if n := int32(first - h.next); n > 0 {
		h.next = first
		h.hole(int(n), "not in the capture")
	}
	h.drain()
}

// bridgeAll gives up all holes.
func (h *half) bridgeAll() {
	for {
		if _, ok := h.beyond(); !ok {
			return
		}
		h.bridge(true)
	}
}

// hole reports that n bytes are missing. If they end within the current frame, and its headers were
// captured, decoding continues after them.
func (h *half) hole(n int, why string) {
	c := h.c
	if c.name == "" {
		h.untold += n
	}
	h.tellMissing(n, why)
	if c.p != nil && !h.lost && len(h.buf) > 0 {
		// A complete frame waits for another reason, so the missing bytes come after it.
		if total, hdr, err := c.p.need(h, h.buf); err == nil && total > len(h.buf) && len(h.buf) >= hdr && h.filled == 0 {
			k := min(n, total-len(h.buf))
			h.buf = append(h.buf, make([]byte, k)...)
			h.filled = k
			n -= k
			h.consume()
		}
	}
	if n > 0 {
		h.buf, h.lost, h.filled = h.buf[:0], true, 0
		if c.p != nil {
			c.p.forget(h)
		}
	}
}

func (h *half) tellMissing(n int, why string) {
	m := h.c.d.message(h.c, h.back)
	m.Proto, m.Name = "tcp", "bytes missing"
	m.num("tcp.bytes", uint64(n))
	m.Note = why
	h.c.tell(m)
}

// feed decodes b, which follows the earlier bytes.
func (h *half) feed(b []byte) {
	c := h.c
	if len(b) == 0 || c.ignore {
		return
	}
	if c.p == nil && c.name != "" { // after giveUp
		c.p = newParser(c.name, c)
	}
	if c.p != nil && len(h.buf) == 0 { // the usual case: nothing is copied
		n := h.decode(b)
		if n < len(b) {
			h.buf = append(h.buf, b[n:]...)
		}
		return
	}
	h.buf = append(h.buf, b...)
	if c.p == nil {
		c.recognise(false)
		return
	}
	h.consume()
}

// consume decodes the buffered bytes.
func (h *half) consume() {
	n := h.decode(h.buf)
	if n == 0 {
		return
	}
	h.buf = h.buf[:copy(h.buf, h.buf[n:])]
	if len(h.buf) == 0 && cap(h.buf) > 4<<10 {
		h.buf = nil // an idle connection holds none
	}
}

// decode decodes the complete frames at the front of b and returns their length.
func (h *half) decode(b []byte) (n int) {
	c := h.c
	for !c.ignore {
		rest := b[n:]
		if h.lost {
			at, ok := c.p.find(h, rest, c.closed)
			h.skip += at
			n += at
			if !ok {
				return n
			}
			h.lost = false
			m := c.d.message(c, h.back)
			m.Proto, m.Name = "tcp", "decoding resumed"
			m.num("tcp.skipped", uint64(h.skip))
			m.Note = "at the next frame that could be recognised"
			c.d.emit(m)
			h.skip = 0
			continue
		}
		total, _, err := c.p.need(h, rest)
		if err != nil {
			h.lose(err)
			continue
		}
		if total == 0 || total > len(rest) {
			return n
		}
		filled := 0
		if n+total == len(b) {
			filled, h.filled = h.filled, 0
		}
		n += c.p.frame(h, rest, total, filled)
	}
	return len(b)
}

// lose says that the place of the next frame is not known any more, and why.
func (h *half) lose(err error) {
	m := h.c.d.message(h.c, h.back)
	m.Proto, m.Name = h.c.p.layer(), "not a frame"
	if w, ok := err.(*wrongError); ok {
		m.wrong(w.ID, w.Text)
	} else {
		m.Note = err.Error()
	}
	h.c.d.emit(m)
	h.lost = true
	h.c.p.forget(h)
}

// wrongError is a Wrong that hides where the next frame begins.
type wrongError Wrong

func (e *wrongError) Error() string { return fmt.Sprintf("[%s] %s", e.ID, e.Text) }

// finish reports a frame that the end of the stream cuts off. An endless frame may be one with a
// wrong length, so the bytes are searched for other frames.
func (h *half) finish() {
	c := h.c
	for len(h.buf) > 0 && c.p != nil && !c.ignore {
		if !h.lost {
			m := c.d.message(c, h.back)
			m.Proto, m.Name = c.p.layer(), "incomplete frame"
			m.num("tcp.bytes", uint64(len(h.buf)))
			total, _, _ := c.p.need(h, h.buf)
			m.Note = fmt.Sprintf("the stream ends after %d of %d bytes", len(h.buf), total)
			c.d.emit(m)
			h.lost = true
			h.buf = h.buf[:copy(h.buf, h.buf[1:])]
			h.skip++
		}
		before := len(h.buf)
		h.consume()
		if len(h.buf) == before {
			return
		}
	}
}

// A parser decodes the frames of a protocol in both directions of a connection.
type parser interface {
	// layer names the protocol of the frames.
	layer() string
	// need returns the length of the frame at the front of b, or 0 if b is too short to know.
	// header is how much of the frame must be present to decode it.
	need(h *half, b []byte) (total, header int, err error)
	// frame decodes the frame of total bytes at the front of b, whose last filled bytes were not
	// captured. It returns how many bytes were used, at least one: all of them, or fewer if the
	// length cannot be right.
	frame(h *half, b []byte, total, filled int) int
	// find returns where in b a frame begins. If ok is false none was found, and
	// nothing begins before at. At the end of a stream nothing more comes.
	find(h *half, b []byte, end bool) (at int, ok bool)
	// forget drops state that is uncertain after missing or wrong bytes in a direction.
	forget(h *half)
	// size is the memory that the parser holds.
	size() int
}

func newParser(name string, c *conn) parser {
	switch name {
	case "iwarp", "sdp":
		return newMPA(c, name == "sdp")
	case "vitcp":
		return newVITCP(c)
	case "fcip":
		return newFCIP(c)
	}
	c.ignore = true
	return nil
}

// recognise determines the protocol of a connection. One direction is enough, because the other may
// be damaged.
func (c *conn) recognise(end bool) {
	total := len(c.half[0].buf) + len(c.half[1].buf)
	if !end && c.tried > 0 && total < 2*c.tried && total < 64 {
		return
	}
	if !end && c.tried >= 64 && total < 2*c.tried {
		return
	}
	c.tried = total
	wait := false // for what may make it clear
	for i := range c.half {
		h := &c.half[i]
		if len(h.buf) == 0 {
			wait = wait || total < maxUnknown/4
			continue
		}
		name, more := identify(h.buf)
		if name == "" && !more && (!c.seen || h.lost) {
			name = c.search(h, end)
			more = name == "" && len(h.buf) < maxUnknown
		}
		if name == "" {
			wait = wait || more
			continue
		}
		c.name, c.p = name, newParser(name, c)
		for i := range c.half {
			if h := &c.half[i]; h.untold > 0 {
				h.tellMissing(h.untold, "before the protocol was recognised")
			}
		}
		for i := range c.half {
			c.half[i].consume()
		}
		return
	}
	if wait && !end {
		return
	}
	c.ignore = true
	c.half[0].buf, c.half[1].buf = nil, nil
}

// search looks for frames of any protocol in a stream that was not captured from its beginning.
func (c *conn) search(h *half, end bool) string {
	for _, name := range []string{"fcip", "vitcp", "iwarp"} {
		if _, ok := newParser(name, c).find(h, h.buf, end); ok {
			h.lost = true
			return name
		}
	}
	return ""
}
