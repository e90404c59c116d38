package sdp

import (
	"sync"

	"viaduct/internal/perturb"
	"viaduct/internal/wire/sdpwire"
	"viaduct/iwarp"
)

// An inbox receives the messages. It has the announced Private Buffers and one more as a spare
// [D-08]. A buffer is bound to memory only while a message is in it. While a read waits and no
// bytes are held for it, payload goes directly into the read's own buffer, and the Private Buffer
// exists in name only.
//
// It is the stream's iwarp.RecvSource, whose methods are called in the receive role. mu guards the
// state that they share with the connection. It is locked after all other locks.
type inbox struct {
	layout sdpwire.Layout
	size   int  // bytes of a Private Buffer
	rests  bool // nothing is lent since the last call of lend, and no read waits; that of lend's caller alone

	mu    perturb.Mutex // guards everything below
	slots []*slot       // those not used so far are nil, and the last ones
	made  int           // of them
	free  []int         // made and not in use, last used first
	loose int           // slots whose payload is in the buffer of a read

	// What is lent of the buffer of a read that waits.
	lent    bool   // something is, or was and has all been used
	into    []byte // what is left of it
	closed  bool   // payload went elsewhere: what follows has to as well
	longest int    // payload of a message so far
	usual   int    // payload of the last message that went there, for the next guess
	open    int    // length of the message in progress, if it goes there
	wary    bool   // a read that has got something does not wait for the rest of a message
	full    bool   // something was left alone since the connection last lent
	noRead  bool   // no read waits
}

// A slot is a Private Buffer.
type slot struct {
	buf  *[]byte // memory of the whole message, or nil
	hdr  [sdpwire.BSDHLen]byte
	body []byte // payload in the buffer of a read, with the header in hdr
	sg   [3]iwarp.SGE
}

var _ iwarp.RecvSource = (*inbox)(nil)

func newInbox(layout sdpwire.Layout, n, size int) *inbox {
	return &inbox{layout: layout, size: size, slots: make([]*slot, n)}
}

// takeLocked returns an unused slot, if there is one.
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

// NextRecv implements iwarp.RecvSource.
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
			if !last { // it may be longer than it says
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

// lands returns how many bytes of payload a message puts into the lent memory,
// 0 if it has to go elsewhere.
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
		// It may be payload, or the source of an RDMA Read that what follows belongs
		// behind.
		in.closed = true
	}
	return 0
}

// lend lends into, the rest of the buffer of a waiting read, or nothing if into is empty. If a
// message has arrived in a Private Buffer, later bytes must wait until that message was counted,
// because they would take its place otherwise. Bytes after a message in a read's buffer belong
// after it. [SDP-4.1-1] left reports whether bytes were left unread. now means that they must be
// received now; with none set no read waits.
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

// lends reports whether something may come into the buffer of a read, or has.
func (in *inbox) lends() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.loose == 0 && len(in.into) == 0 {
		return false
	}
	in.into, in.closed = nil, true // from now on
	return true
}

// Full implements iwarp.RecvSource: bytes that do not fit stay unread until the next read. So does
// the arrived part of a message of a stream, if the read has already got a message and does not
// wait for the rest, because that part would have to be moved.
func (in *inbox) Full(stream iwarp.Pending) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.lent {
		return false
	}
	full := in.closed || len(in.into) < max(1, in.longest) || in.whole() && !stream.Has(in.usual+overhead)
	in.full = in.full || full
	return full
}

// Keep implements iwarp.RecvSource: keep bytes until the connection has handled the arrived ones,
// and then for the next read.
func (in *inbox) Keep() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.full || in.noRead
}

// overhead exceeds the bytes that the lower layers add to a message of a stream.
const overhead = 256

// whole reports whether a message of a stream is left alone unless it is there
// whole.
func (in *inbox) whole() bool { return in.wary && in.longest >= bulkSize }

// Guess implements iwarp.RecvSource: more Data messages as long as the last.
func (in *inbox) Guess() iwarp.RecvGuess {
	in.mu.Lock()
	defer in.mu.Unlock()
	g := iwarp.RecvGuess{Open: in.open}
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

// Reclaim implements iwarp.RecvSource.
func (in *inbox) Reclaim(id uint64) []iwarp.SGE {
	in.mu.Lock()
	defer in.mu.Unlock()
	s := in.slots[id]
	if s.body == nil {
		return nil
	}
	in.into, in.closed = nil, true
	s.body = nil
	if s.buf == nil {
		s.buf = getBuffer(in.size)
	}
	in.loose--
	return []iwarp.SGE{iwarp.Buf(*s.buf)}
}

// lending reports whether payload is in the buffer of a read.
func (in *inbox) lending() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.loose > 0
}

// idle reports whether no message is anywhere in the inbox.
func (in *inbox) idle() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return len(in.free) == in.made
}

// message returns the message of a completion: its header, and the payload that is not stored with
// the header.
func (in *inbox) message(id uint64, n int) (head, body []byte) {
	s := in.slots[id]
	if s.body != nil {
		return s.hdr[:], s.body
	}
	return (*s.buf)[:n], nil
}

// release makes a Private Buffer ready for another message.
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
	clear(s.sg[:]) // or an idle connection would keep what it once used
	in.free = append(in.free, id)
}

// own copies the payload of a slot out of the buffer of a read, and returns
// where the part p of it is now.
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

// smallBuffer is the memory of a message that is not longer.
const smallBuffer = 2 << 10

// Memory of Private Buffers is used again, by whatever connection needs some
// next. By size: to *sync.Pool of *[]byte.
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
