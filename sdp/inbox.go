package sdp

import (
	"sync"

	"viaduct/internal/perturb"
	"viaduct/internal/ulp"
	"viaduct/internal/wire/sdpwire"
	"viaduct/iwarp"
)

// An inbox receives the messages. It has the announced Private Buffers and a spare buffer [D-08]. A
// buffer has memory only while a message is stored there. While a read waits and no bytes are held
// for the read, payload goes directly into the read's own buffer, and the Private Buffer has no
// memory.
//
// The inbox is the stream's [ulp.Source], whose methods are called in the receive role. mu
// guards the state shared by these methods and the connection. mu is locked after all other locks.
type inbox struct {
	stream ulp.Stream[iwarp.SendWR]
	layout sdpwire.Layout
	rests  bool // the last lend lent nothing, found nothing lent, and no read waits; used by lend only
	size   int  // bytes of a Private Buffer

	mu    perturb.Mutex // guards all fields below
	slots []*slot       // slots from index made on are nil
	made  int           // number of slots that are not nil
	free  []int         // indexes of unused slots, last used first
	loose int           // number of slots whose payload is in the buffer of a read

	// These fields describe the lent buffer of a waiting read.
	lent    bool   // a buffer is lent, even if all of it has been used
	closed  bool   // a payload went to a Private Buffer, and later payload must follow it there
	into    []byte // unused rest of the lent buffer
	longest int    // longest payload placed in the lent buffer, in bytes; 0 after lend
	usual   int    // payload of the last message in the buffer, for the next prediction
	open    int    // length of the current message, if its payload goes to the lent buffer; otherwise 0
	wary    bool   // a read that has received bytes does not wait for the rest of a message
	full    bool   // a message was left unread since the last call of lend
	noRead  bool   // no read waits
}

// A slot is a Private Buffer.
type slot struct {
	buf  *[]byte // memory of the whole message, or nil
	hdr  [sdpwire.BSDHLen]byte
	body []byte // payload in the buffer of a read, with the header in hdr; otherwise nil
	sg   [3]iwarp.SGE
}

var _ ulp.Source[iwarp.SendWR, iwarp.RecvWR] = (*inbox)(nil)

// SetStream implements [ulp.Source].
func (in *inbox) SetStream(s ulp.Stream[iwarp.SendWR]) { in.stream = s }

func newInbox(layout sdpwire.Layout, n, size int) *inbox {
	return &inbox{layout: layout, size: size, slots: make([]*slot, n)}
}

// takeLocked returns the index of an unused slot. ok is false if there is none.
func (in *inbox) takeLocked() (i int, ok bool) {
	if n := len(in.free); n > 0 {
		i = in.free[n-1]
		in.free = in.free[:n-1]
		return i, true
	}
	if in.made == len(in.slots) {
		return 0, false
	}
	i = in.made
	in.slots[i] = new(slot)
	in.made++
	return i, true
}

// NextRecv implements [ulp.Source]. NextRecv returns the lent buffer for the payload of a
// fitting message, otherwise a Private Buffer. ok is false if all slots are in use.
func (in *inbox) NextRecv(head []byte, size int, last bool) (wr iwarp.RecvWR, ok bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	i, ok := in.takeLocked()
	if !ok {
		return wr, false
	}
	s := in.slots[i]
	wr.ID = uint64(i)
	if in.lent && !in.closed {
		if n := in.lands(head, size, last); n > 0 {
			s.body = in.into[:n:n]
			in.into = in.into[n:]
			in.longest = max(in.longest, n)
			in.usual = n
			in.open = sdpwire.BSDHLen + n
			in.loose++
			s.sg[0], s.sg[1] = iwarp.Buf(s.hdr[:]), iwarp.Buf(s.body)
			wr.SG = s.sg[:2]
			if !last { // the message may be longer than its header says
				s.buf = getBuffer(in.size)
				s.sg[2] = iwarp.Buf(*s.buf)
				wr.SG = s.sg[:3]
			}
			return wr, true
		}
	}
	in.open = 0
	if last && size <= smallBuffer {
		s.buf = getBuffer(min(smallBuffer, in.size))
	} else {
		s.buf = getBuffer(in.size)
	}
	s.sg[0] = iwarp.Buf(*s.buf)
	wr.SG = s.sg[:1]
	return wr, true
}

// lands returns the number of payload bytes a message puts into the lent buffer. It returns 0 if
// the message must go to a Private Buffer.
func (in *inbox) lands(head []byte, size int, last bool) int {
	if len(head) < sdpwire.BSDHLen {
		in.closed = true
		return 0
	}
	mid, flags, length := sdpwire.Peek(head, in.layout)
	n := int(length) - sdpwire.BSDHLen
	switch {
	case mid == sdpwire.Data && flags == 0 && n > 0 && n <= len(in.into) && (!last || int(length) == size):
		return n
	case mid != sdpwire.Data || n != 0 || !last:
		// The message may contain payload, or advertise the source of an RDMA Read whose bytes
		// precede later payload.
		in.closed = true
	}
	return 0
}

// lend lends into, the unused rest of the buffer of a waiting read; an empty into lends nothing.
// While a message is in a Private Buffer, later payload goes to Private Buffers too, because it
// belongs after that message. While payload is in the buffer of a read, lend changes nothing.
// [SDP-4.1-1] none is true if no read waits. left reports whether messages were left unread since
// the last call, and now whether a read waits for these messages.
func (in *inbox) lend(into []byte, none, wary bool) (left, now bool) {
	if in.rests && none && len(into) == 0 {
		return false, false
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.noRead = none
	in.rests = none && len(into) == 0 && in.loose == 0
	if in.loose > 0 {
		return false, false
	}
	in.lent = len(into) > 0
	in.into, in.longest, in.closed, in.wary = into, 0, len(in.free) < in.made, wary
	left, in.full = in.full, false
	return left, left && !none
}

// lends reports whether payload is in the buffer of a read, or may go there. lends also ends the
// loan, so that no later message goes there.
func (in *inbox) lends() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.loose == 0 && len(in.into) == 0 {
		return false
	}
	in.into, in.closed = nil, true // no later message goes there
	return true
}

// Full implements [ulp.Source]. Full returns true for bytes that must stay unread until the
// next read: bytes that do not fit the lent buffer or no longer belong there, and, if the waiting
// read is wary, an incomplete long message, because the first part would have to be moved. Without
// a lent buffer, Full returns false.
func (in *inbox) Full(next ulp.Pending) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.lent {
		return false
	}
	full := in.closed || len(in.into) < max(1, in.longest) || in.whole() && !next.Has(in.usual+overhead)
	in.full = in.full || full
	return full
}

// Keep implements [ulp.Source]. Messages refused by Full stay unread until the connection has
// handled the earlier messages and lends a buffer again. All messages stay unread while no read
// waits.
func (in *inbox) Keep() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.full || in.noRead
}

// overhead is an upper limit for the bytes added to a message of a stream by the lower layers.
const overhead = 256

// whole reports whether a message of a steady stream stays unread until all of it has arrived.
func (in *inbox) whole() bool { return in.wary && in.longest >= bulkSize }

// Guess implements [ulp.Source]. Guess predicts Data messages of the same length as the last,
// if the length is at least bulkSize and the lent buffer has room for another.
func (in *inbox) Guess() ulp.Guess {
	in.mu.Lock()
	defer in.mu.Unlock()
	g := ulp.Guess{Open: in.open}
	if !in.lent || in.closed || len(in.into) < in.usual || in.usual < bulkSize {
		return g
	}
	g.Header, g.Size, g.Payload = sdpwire.BSDHLen, in.usual, in.into
	switch {
	case !in.wary:
		g.Partial = len(in.into) / in.usual
	case !in.whole():
		g.Partial = 1
	}
	return g
}

// Reclaim implements [ulp.Source]. It ends the loan, and returns the Private Buffer of slot id.
// It ends no loan if the payload is not in the buffer of a read: ok is false.
func (in *inbox) Reclaim(id uint64) (wr iwarp.RecvWR, ok bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	s := in.slots[id]
	if s.body == nil {
		return wr, false
	}
	in.into, in.closed = nil, true
	s.body = nil
	if s.buf == nil {
		s.buf = getBuffer(in.size)
	}
	in.loose--
	wr.SG = []iwarp.SGE{iwarp.Buf(*s.buf)}
	return wr, true
}

// lending reports whether payload is in the buffer of a read.
func (in *inbox) lending() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.loose > 0
}

// idle reports whether the inbox contains no message.
func (in *inbox) idle() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return len(in.free) == in.made
}

// message returns the message of n bytes in slot id: the header, and the payload if not stored
// after the header.
func (in *inbox) message(id uint64, n int) (head, body []byte) {
	s := in.slots[id]
	if s.body != nil {
		return s.hdr[:], s.body
	}
	return (*s.buf)[:n], nil
}

// release makes slot id available for another message.
func (in *inbox) release(id int) {
	in.mu.Lock()
	defer in.mu.Unlock()
	s := in.slots[id]
	if s.body != nil {
		s.body = nil
		in.loose--
	}
	if s.buf != nil {
		putBuffer(s.buf)
		s.buf = nil
	}
	clear(s.sg[:]) // otherwise an idle connection would keep memory that it once used
	in.free = append(in.free, id)
}

// own copies the payload of slot id from the buffer of a read to a Private Buffer. p is the end of
// the payload, and own returns the copy of p. If the payload is not in the buffer of a read, own
// returns p.
func (in *inbox) own(id int, p []byte) []byte {
	in.mu.Lock()
	s := in.slots[id]
	if s == nil || s.body == nil {
		in.mu.Unlock()
		return p
	}
	in.loose--
	in.mu.Unlock()
	if s.buf == nil {
		s.buf = getBuffer(in.size)
	}
	n := copy(*s.buf, s.hdr[:])
	n += copy((*s.buf)[n:], s.body)
	s.body = nil
	return (*s.buf)[n-len(p) : n]
}

// smallBuffer is the size in bytes of the memory for a message of at most smallBuffer bytes.
const smallBuffer = 2 << 10

// bufferPools reuse the memory of Private Buffers for all connections. They map a size to a
// *sync.Pool of *[]byte.
var bufferPools sync.Map

func getBuffer(size int) *[]byte {
	p, ok := bufferPools.Load(size)
	if !ok {
		p, _ = bufferPools.LoadOrStore(size, &sync.Pool{New: func() any {
			b := make([]byte, size)
			return &b
		}})
	}
	return p.(*sync.Pool).Get().(*[]byte)
}

func putBuffer(b *[]byte) {
	if p, ok := bufferPools.Load(len(*b)); ok {
		p.(*sync.Pool).Put(b)
	}
}
