package frameio

import (
	"io"
	"slices"
	"sync"
	"syscall"

	"viaduct/internal/attend"
	"viaduct/internal/sock"
)

const (
	// stageSize is the size of the staging buffer in bytes. The buffer fits in the second-level cache,
	// so that copying out of staging is cheap.
	stageSize = 256 << 10

	// longGlimpse is the number of bytes staged after a long frame: enough to see whether another
	// long frame begins.
	longGlimpse = 8 << 10

	// shortGlimpse replaces longGlimpse after a right prediction, because the next prediction is
	// likely to be right too.
	shortGlimpse = 2 << 10

	// maxGlimpses is the number of reads without a long frame after which reads fill the whole
	// stage. The end of a long message and the short messages after it need one or two short reads.
	maxGlimpses = 4

	// maxFrame is the greatest length of a frame received through staging.
	maxFrame = 80 << 10

	// reads bounds the number of reads in one hold of the receive role, in case the peer never
	// pauses.
	reads = 16
)

// A stage is the memory that a read needs besides the protocol's own.
type stage struct {
	b    [stageSize]byte
	plan Plan
	vecs []sock.Vec
}

var stages = sync.Pool{New: func() any { return new(stage) }}

// A receiver is the receiving half of a Conn, with received bytes and state. The holder of the
// receive role owns the receiver.
type receiver struct {
	started bool // Start was called
	closed  bool // Close or Abort was called and no goroutine reads any more
	ended   chan struct{}
	over    bool // the peer's direction has ended or failed; then ended, if not nil, is closed

	stage   *stage // staging buffer; nil if no bytes are staged and no goroutine reads
	fill    int    // bytes staged
	early   []byte // bytes after the staged ones and before those in the socket
	missing int    // payload bytes of the current frame that are still to be read to their place
	left    bool   // bytes were read that the protocol has not seen or has left for later
	unread  bool   // the socket has bytes that no further epoll report announces

	took     int    // bytes read by the receive in progress or the last one
	polled   bool   // the current receiver is a consumer
	before   uint32 // att.Looks at the beginning of the receive in progress
	large    bool   // a long frame was read directly to its place recently
	glimpses int    // reads since the last long frame

	ahead ahead
}

// over returns a channel that is closed when the receiving direction has ended or failed.
func (c *Conn) over() <-chan struct{} {
	c.att.Lock()
	defer c.att.Unlock()
	r := &c.rx
	if r.ended == nil {
		r.ended = make(chan struct{})
		if r.over {
			close(r.ended)
		}
	}
	return r.ended
}

// end wakes the goroutines waiting for the end of the direction.
func (r *receiver) end() {
	if !r.over && r.ended != nil {
		close(r.ended)
	}
	r.over = true
}

// keep stores in early a copy of the bytes read before the start.
func (r *receiver) keep(p []byte) {
	r.early = append([]byte(nil), p...)
	r.left = len(p) > 0
}

// Poll reads and handles the bytes in the socket without blocking, and reports whether bytes
// arrived or a parked send was resumed. If another goroutine is receiving, Poll returns at once. A
// polling consumer keeps other goroutines away from the socket, and must call Unpoll before
// waiting. On a portable stream Poll does nothing and returns false.
func (c *Conn) Poll() bool {
	if c.sock.Load() == nil {
		return false
	}
	sent := c.tx.parked.Load() && c.takeUp()
	return c.att.Poll() || sent
}

// Polled reports whether a consumer is polling now: a consumer makes the current receive, or has
// called Poll in the meantime. [receive role]
func (c *Conn) Polled() bool {
	r := &c.rx
	return r.polled || c.att.Looks() != r.before
}

// Leaves reports whether Receive may return ErrEnough. It is false for a portable stream.
func (c *Conn) Leaves() bool { return c.sock.Load() != nil }

// Unpoll reports that the consumer stops polling. Another goroutine receives from then on. On a
// portable stream Unpoll does nothing.
func (c *Conn) Unpoll() {
	if c.sock.Load() != nil {
		c.unpark()
		c.att.Wait()
	}
}

// A reader adapts a Conn to its Attention.
type reader Conn

var _ attend.Receiver = (*reader)(nil)

// Receive implements [attend.Receiver]. It returns the staging buffer to the pool if nothing is
// staged, unless a polling consumer needs the buffer again soon.
func (c *reader) Receive(all, polled bool) (got attend.Got, more bool, err error) {
	r := &c.rx
	r.polled = polled
	got.Any, more, err = (*Conn)(c).receive(all)
	got.Bytes = r.took
	if err != nil {
		r.end()
	}
	// A polling consumer keeps the buffer, because the next poll comes soon and getting a buffer
	// takes a considerable part of an empty poll. Rest frees the buffer. If many bytes arrive, the
	// buffer returns to the pool, because one buffer for all connections is better for the caches.
	keep := polled && r.took < longGlimpse && c.att.State() != attend.Shared
	if r.stage != nil && (r.fill == 0 && !keep || r.over) {
		r.unstage()
	}
	r.polled = false
	return got, more, err
}

// Left implements [attend.Receiver]. Left also counts bytes in the socket that no further report
// announces.
func (c *reader) Left() bool { return c.rx.left || c.rx.unread }

// Deliver implements [attend.Receiver]. It returns false if the protocol is no Deliverer.
func (c *reader) Deliver() (keep bool) { return c.deliverer != nil && c.deliverer.Deliver() }

// Partial implements [attend.Receiver]: payload of the current frame is missing.
func (c *reader) Partial() bool { return c.rx.missing > 0 }

// Rest implements [attend.Receiver]. Rest frees the staging buffer before a possibly long wait. A
// partial frame moves to a buffer of the frame's size.
func (c *reader) Rest() {
	r := &c.rx
	if r.fill > 0 && r.missing == 0 {
		r.early = slices.Concat(r.stage.b[:r.fill], r.early)
		r.fill = 0
	}
	if r.stage != nil && r.fill == 0 {
		r.unstage()
	}
}

// Ended implements [attend.Receiver]. It reports err to the protocol.
func (c *reader) Ended(err error) { (*Conn)(c).fail(err) }

// Sent implements [attend.Receiver]. The number is the count of writes.
func (c *reader) Sent() uint32 { return uint32(c.tx.batches.Load()) }

// receive reads and handles the bytes in the socket. The caller has the receive role. A short read
// ends receive, unless all is set: only a further read finds an end of stream after the last bytes.
// got is true if bytes arrived. more is true if receive stopped early to let others run.
func (c *Conn) receive(all bool) (got, more bool, err error) {
	r := &c.rx
	r.restage()
	r.before, r.took, r.unread = c.att.Looks(), 0, false
	undrained := false
	if r.fill > 0 && r.missing == 0 {
		// The protocol has not seen the bytes, because they were read before the start. Or the
		// bytes begin a frame, and passing the frame again costs little.
		if err := c.handle(); err == ErrEnough {
			c.enough(all || !r.polled)
			return true, false, nil
		} else if err != nil {
			return false, false, err
		}
		undrained = true
	}
	for range reads {
		n, room, err := c.read()
		if err == sock.ErrWouldBlock {
			if undrained {
				c.proto.Drained()
			}
			return got, false, nil
		}
		if err != nil {
			return got, false, err
		}
		got, undrained = true, true
		r.took += n
		if err := c.handle(); err == ErrEnough {
			c.enough(all || !r.polled && n == room)
			return got, false, nil
		} else if err != nil {
			return got, false, err
		}
		if n < room && len(r.early) == 0 { // otherwise staging had no room for more bytes
			c.proto.Drained()
			if undrained = false; !all {
				return got, false, nil
			}
		}
	}
	if undrained {
		c.proto.Drained()
	}
	return got, true, nil
}

// enough ends a receive whose protocol returned ErrEnough. reported is true if the unread bytes may
// have been reported already, so that no further report will arrive.
func (c *Conn) enough(reported bool) {
	c.proto.Drained()
	r := &c.rx
	r.unread = reported && !r.left && c.sock.Load().Unread()
}

func (r *receiver) unstage() {
	stages.Put(r.stage)
	r.stage = nil
}

// restage gets a staging buffer if there is none, and moves the early bytes there.
func (r *receiver) restage() {
	if r.stage == nil {
		r.stage = stages.Get().(*stage)
		r.fill = 0
	}
	r.refill()
}

// refill moves early bytes to staging, without a read, and returns their number.
func (r *receiver) refill() int {
	if len(r.early) == 0 {
		return 0
	}
	n := copy(r.stage.b[r.fill:], r.early)
	r.fill += n
	if r.early = r.early[n:]; len(r.early) == 0 {
		r.early = nil
	}
	return n
}

// read makes one read call, into planned places first and staging after them. n is the number of
// bytes read, and room the number of bytes the call could have read. If there are early bytes, read
// stages them and makes no call.
func (c *Conn) read() (n, room int, err error) {
	r := &c.rx
	if n := r.refill(); n > 0 {
		return n, n, nil
	}
	from := c.sock.Load()
	if most := r.mayPredict(); r.missing > 0 || most > 0 {
		if p := c.plan(most); len(p.Frame) > 0 || len(p.Predicted) > 0 {
			return c.readPlan(from, p)
		}
	}
	to := r.stage.b[r.fill:r.limit()]
	room = len(to)
	n, err = from.Read(to)
	if err == nil && n == 0 {
		err = c.eof()
	}
	r.fill += max(n, 0)
	if n < room && from.Apart() {
		room = n // the read was short, but more bytes may have arrived
	}
	return n, room, err
}

// glimpse returns the number of bytes to stage after a long frame.
func (r *receiver) glimpse() int {
	if r.ahead.right {
		return shortGlimpse
	}
	return longGlimpse
}

// limit returns the number of bytes up to which the next read fills the stage. After a long frame
// another long frame is likely, whose payload should not be staged.
func (r *receiver) limit() int {
	if r.large {
		return min(r.fill+r.glimpse(), stageSize)
	}
	return stageSize
}

// handle passes the staged bytes to the protocol, unless payload of a long frame is missing. It
// returns io.ErrShortBuffer if staging is full and the protocol consumed nothing.
func (c *Conn) handle() error {
	r := &c.rx
	if r.missing > 0 || r.fill == 0 {
		return nil
	}
	n, missing, err := c.proto.Receive(r.stage.b[:r.fill], c.planner != nil && len(r.early) == 0)
	if err != nil && err != ErrEnough {
		return err
	}
	r.missing = missing
	r.left = err == ErrEnough && (n < r.fill || len(r.early) > 0)
	switch {
	case missing > 0:
		r.large, r.glimpses = true, 0
	case r.large && r.fill >= r.glimpse():
		if r.glimpses++; r.glimpses == maxGlimpses {
			r.large, r.ahead.right = false, false
		}
	}
	if n == r.fill {
		r.fill = 0
	} else if n > 0 {
		r.fill = copy(r.stage.b[:], r.stage.b[n:r.fill])
	}
	if r.fill == stageSize && err == nil {
		return io.ErrShortBuffer
	}
	return err
}

// eof returns the error for an end of stream: io.EOF between frames, io.ErrUnexpectedEOF inside a
// frame, and ECONNRESET after a reset. The kernel reports a reset once; if a write has consumed the
// report, the read sees a plain end of stream.
func (c *Conn) eof() error {
	if c.rx.fill > 0 || c.rx.missing > 0 {
		return io.ErrUnexpectedEOF
	}
	c.tx.mu.Lock() // waits for a write in progress
	defer c.tx.mu.Unlock()
	if c.tx.reset {
		return syscall.ECONNRESET
	}
	return io.EOF
}

// readLoop receives from a portable stream. Everything is staged, because the read may wait for the
// peer and no memory may stay pinned meanwhile.
func (c *Conn) readLoop() {
	r := &c.rx
	buf := make([]byte, max(maxFrame, len(r.early)+1))
	n := copy(buf, r.early)
	r.early = nil
	for first := n > 0; ; first = false {
		var err error
		if !first {
			var m int
			m, err = c.nc.Read(buf[n:])
			n += m
		}
		c.att.Lock()
		if r.closed {
			c.att.Unlock()
			return
		}
		if n > 0 {
			k, _, herr := c.proto.Receive(buf[:n], false)
			if herr != nil {
				err = herr
			} else if n = copy(buf, buf[k:n]); n == len(buf) {
				err = io.ErrShortBuffer
			}
			c.proto.Drained()
		}
		if err == io.EOF && n > 0 {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			r.end()
		}
		c.att.Unlock()
		if c.deliverer != nil {
			c.deliverer.Deliver()
		}
		if err != nil {
			c.fail(err)
			return
		}
	}
}
