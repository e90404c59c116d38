package decode

import (
	"fmt"
	"net/netip"
	"slices"
)

// A connKey identifies a TCP connection regardless of direction.
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
	addr   [2]netip.AddrPort // first the side that opened the connection, or was seen first
	half   [2]half           // directions by sender, as in addr
	seen   bool              // the connection was seen from its first byte on
	closed bool
	ignore bool   // the connection does not carry a known protocol
	name   string // protocol, "" until it is known
	p      parser // nil until the protocol is known, and after giveUp
	tried  int    // bytes received at the last attempt to recognise it
	kept   int    // memory at the last call of count
	at     int    // frame number of its last packet
}

// A half is one direction of a connection.
type half struct {
	c      *conn
	back   bool
	began  bool   // next is valid
	fin    bool   // its FIN was seen
	end    uint32 // sequence number of the FIN, if fin
	next   uint32 // next sequence number
	acked  uint32 // highest acknowledgement of the other side, if hasAck
	hasAck bool
	late   int     // acknowledgements that the other side has sent since acked last rose
	queue  []piece // segments after a hole, in order
	held   int     // memory of queue

	buf    []byte // bytes that were received and not decoded yet
	filled int    // bytes at the end of buf that were not captured
	untold int    // missing bytes that were not reported, because the protocol is not known yet
	lost   bool   // the position of the next frame is unknown
	skip   int    // bytes skipped in search of the next frame
}

// behind reports whether the other side has acknowledged bytes still missing here.
func (h *half) behind() bool {
	n := int32(h.acked - h.next)
	return h.hasAck && h.began && (n > 1 || n == 1 && !h.fin)
}

// ended reports whether all bytes before the FIN were received.
func (h *half) ended() bool { return h.fin && int32(h.end-h.next) <= 0 }

// beyond returns the position of the first known data after a hole: early bytes, or the FIN.
func (h *half) beyond() (seq uint32, ok bool) {
	if len(h.queue) > 0 {
		return h.queue[0].seq, true
	}
	return h.end, h.began && h.fin && !h.ended()
}

// A piece is an early segment.
type piece struct {
	seq     uint32
	b       []byte
	missing int
}

const (
	maxHeld    = 4 << 20 // bytes that one direction holds after a hole
	maxPieces  = 4096    // segments that one direction holds, in order
	patience   = 16      // acknowledgements of a hole after which the hole is given up
	maxUnknown = 192 << 10
)

// segment handles a TCP segment.
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
	if c.p != nil && other.behind() { // this segment may answer the missing bytes
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

// open starts to follow a connection. At maxConns, it closes the oldest connection.
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
	if p.flags&(synFlag|ackFlag) == synFlag|ackFlag { // the SYN is not in the capture
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

// close ends a connection. It decodes the remaining data as far as possible, and reports missing
// data.
func (c *conn) close() {
	for i := range c.half {
		h := &c.half[i]
		h.bridgeAll()
		if h.behind() { // the other side has received more
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

// tell emits a message about the connection itself, unless the protocol is unknown.
func (c *conn) tell(m *Message) {
	if c.name != "" && !c.ignore {
		c.d.emit(m)
	}
}

// take handles the payload of a segment.
func (h *half) take(p *packet) {
	b, seq := p.payload, p.seq
	if len(b)+p.missing == 0 {
		if !h.began && p.flags&ackFlag != 0 {
			h.began, h.next, h.lost = true, seq, true
		}
		return
	}
	if !h.began { // the capture begins in the middle of the connection
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

// place handles bytes next in order, or older.
func (h *half) place(seq uint32, b []byte, missing int) {
	old := int(h.next - seq)
	if old >= len(b)+missing {
		if n := len(b) + missing; n > 1 || old > 1 { // otherwise it is a keep-alive
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

// hold stores an early segment.
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

// drain places stored segments next in order.
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

// bridge gives up the first hole if now is set, or if the other side acknowledged the missing bytes
// so long ago that the bytes cannot be in the rest of the capture.
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

// hole reports n missing bytes. If the hole ends within the current frame, and the frame's headers
// were captured, decoding continues after the hole. Otherwise the next frame must be searched for.
func (h *half) hole(n int, why string) {
	c := h.c
	if c.name == "" {
		h.untold += n
	}
	h.tellMissing(n, why)
	if c.p != nil && !h.lost && len(h.buf) > 0 {
		// If a complete frame is waiting, the missing bytes come after the frame.
		if total, hdr, err := c.p.need(h, h.buf); err == nil && total > len(h.buf) &&
			len(h.buf) >= hdr && h.filled == 0 {
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

// feed decodes b, the next bytes of the stream.
func (h *half) feed(b []byte) {
	c := h.c
	if len(b) == 0 || c.ignore {
		return
	}
	if c.p == nil && c.name != "" { // after giveUp
		c.p = newParser(c.name, c)
	}
	if c.p != nil && len(h.buf) == 0 { // the usual case, in which nothing is copied
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
		h.buf = nil // so that an idle connection holds no memory
	}
}

// decode decodes the complete frames at the front of b, and returns their total length.
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

// lose records that the position of the next frame is unknown, and reports err as the reason.
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

// A wrongError is a Wrong after which the position of the next frame is unknown.
type wrongError Wrong

func (e *wrongError) Error() string { return fmt.Sprintf("[%s] %s", e.ID, e.Text) }

// finish reports the incomplete frame at the end of a stream. Because the frame's length may be
// wrong, the frame's bytes are searched for other frames.
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
	// layer returns the name of the protocol of the frames.
	layer() string
	// need returns the length of the frame at the front of b, or 0 if b is too short to know.
	// header is the number of bytes that must be present to decode the frame.
	need(h *half, b []byte) (total, header int, err error)
	// frame decodes the frame of total bytes at the front of b, whose last filled bytes were not
	// captured. frame returns the number of bytes used: total, or at least 1 if the length cannot
	// be right.
	frame(h *half, b []byte, total, filled int) int
	// find returns where in b the first recognised frame begins. If ok is false, no frame is
	// recognised yet, and the bytes before at can be skipped. If end is set, no bytes follow b.
	find(h *half, b []byte, end bool) (at int, ok bool)
	// forget discards uncertain state after missing or wrong bytes in a direction.
	forget(h *half)
	// size returns the memory the parser holds, in bytes.
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
	wait := false // more bytes may decide
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

// search searches for frames of any protocol in a stream not captured from the beginning. search
// returns the protocol, or "".
func (c *conn) search(h *half, end bool) string {
	for _, name := range []string{"fcip", "vitcp", "iwarp"} {
		if _, ok := newParser(name, c).find(h, h.buf, end); ok {
			h.lost = true
			return name
		}
	}
	return ""
}
