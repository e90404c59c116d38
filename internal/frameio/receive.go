package frameio

import (
	"errors"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// stageSize is what one read takes at most. It fits in the second-level
	// cache, so that copying out of it is cheap.
	stageSize = 256 << 10

	// longGlimpse is how much is staged of what follows a long frame: enough to
	// tell whether another long frame begins there.
	longGlimpse = 8 << 10

	// shortGlimpse is that after a frame that was where it was guessed to be,
	// since the next one is too.
	shortGlimpse = 2 << 10

	// maxGlimpses is how many may go by without a long frame before as much as
	// possible is staged again. The end of a long message, and short ones
	// behind it, need one or two.
	maxGlimpses = 4

	// maxFrame is the longest frame a protocol may wait for in staging.
	maxFrame = 80 << 10

	// reads bounds how long the receive role is kept for a peer that never
	// pauses.
	reads = 16
)

// A stage is what one read may need beside the memory of the protocol.
type stage struct {
	b       [stageSize]byte
	heads   [maxGuesses][maxGuessed]byte
	guesses [maxGuesses]Guess
	iov     [][]byte
	vecs    []iovec
}

var stages = sync.Pool{New: func() any { return new(stage) }}

// A receiver is the receiving half of a Conn.
type receiver struct {
	// mu is the receive role. It is only held while reading without
	// blocking and handling what was read.
	mu      sync.Mutex
	started bool        // Start was called
	absent  atomic.Bool // the passive goroutine begins with the next Unpoll
	closed  bool        // the descriptor is closed
	done    bool        // the peer's direction has ended or failed
	stage   *stage      // staging buffer; nil if nothing is staged and nobody reads
	fill    int         // bytes staged
	early   []byte      // bytes that come before those in the socket, and behind those staged
	direct  int         // payload bytes to be read straight into place
	left    bool        // the protocol has left some of what is staged for later
	large   bool        // a frame was long enough to be read straight into place not long ago
	guesser Guesser     // the protocol, if it is one
	guessed bool        // the last long frame was where it was guessed to be
	trust   uint8       // how many frames are guessed at a time
	doubt   uint8       // how often it was wrong of late
	right   uint8       // frames guessed since that became less
	looking bool        // who looks at the socket sees what is behind the next bytes
	skip    uint16      // occasions to guess that are passed over

	polls    uint32                 // moves with every Poll that reads
	missed   atomic.Uint32          // moves with every Poll that finds somebody reading
	polled   bool                   // it is a Poll that receives
	before   uint32                 // missed as the receive in progress began
	took     int                    // bytes it has read
	glimpses int                    // since the last long frame
	resume   chan struct{}          // tells the passive goroutine to come back
	told     atomic.Pointer[func()] // what UnpollUntil asked to be called at the next arrival
	ended    chan struct{}          // closed when done; made when first asked for

	seen   uint32        // polls when the passive goroutine last looked
	woken  atomic.Uint32 // moves when the passive goroutine handles what came, and more when a consumer does
	looked atomic.Uint32 // woken at the last look of the rota
	quiet  uint8         // owned by the rota; looks in a row that found little
	dozed  atomic.Uint32 // tx.batches as a consumer last began to doze
	listed atomic.Bool   // the passive goroutine is to retire when it is quiet

	lobby  atomic.Pointer[lobby] // where it waits instead of the passive goroutine, or nil
	seat   uint32                // where there, guarded by the lobby's mu
	rushed uint32                // arrivals there that followed each other closely
	served time.Time             // when the last of them was reported
}

// over returns a channel that is closed when the direction has ended or failed.
func (r *receiver) over() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended == nil {
		r.ended = make(chan struct{})
		if r.done {
			close(r.ended)
		}
	}
	return r.ended
}

// keep puts bytes aside that were received before the role started.
func (r *receiver) keep(p []byte) { r.early = append([]byte(nil), p...) }

// Poll reads what the socket has, without blocking, and handles it. It tells
// whether anything came. If another goroutine is receiving it returns at
// once. A consumer that polls keeps the passive goroutine away from the
// socket; one that is about to wait calls Unpoll.
func (c *Conn) Poll() bool { return c.PollBetween(nil, nil) }

// PollBetween is Poll with two functions that are called in the receive role,
// begin before the socket is read and end after that. Neither is called if
// there was nothing to read from.
func (c *Conn) PollBetween(begin, end func()) bool {
	r := &c.rx
	if c.sock.Load() == nil {
		return false
	}
	if !r.mu.TryLock() {
		r.missed.Add(1) // who reads just now steps aside
		return false
	}
	if !r.started || r.closed || r.done {
		r.mu.Unlock()
		return false
	}
	r.polls++
	r.polled = true
	if begin != nil {
		begin()
	}
	got, _, err := c.receive(false)
	if got {
		r.woken.Add(little + 1)
	}
	if end != nil {
		end()
	}
	c.unlock(err)
	return got
}

// Polled tells whether a consumer polls at this moment: it makes the receive
// in progress, or has found it in progress. [receive role]
func (c *Conn) Polled() bool {
	r := &c.rx
	return r.polled || r.missed.Load() != r.before
}

// pollsLocked moves whenever somebody polls.
func (r *receiver) pollsLocked() uint32 { return r.polls + r.missed.Load() }

// Unpoll gives the socket back to the passive goroutine.
func (c *Conn) Unpoll() { c.UnpollUntil(nil) }

// UnpollUntil is Unpoll for a consumer that wants to receive itself: the
// passive goroutine leaves the next arrival in the socket and calls arrived,
// once. The consumer polls between UnpollUntil and waiting, as something may
// have arrived before, and soon after arrived was called. arrived must not block;
// nil stands for Unpoll. A portable stream is received as ever, and arrived is
// not called.
func (c *Conn) UnpollUntil(arrived *func()) {
	c.rx.told.Store(arrived)
	if c.rx.absent.Load() {
		defer c.attend()
	}
	select {
	case c.rx.resume <- struct{}{}:
	default:
	}
}

// unlock gives the receive role back after a receive, and reports how the
// direction ended if it did.
func (c *Conn) unlock(err error) {
	if c.release(err) {
		c.fail(err)
	}
}

// release is unlock, but whether the end is to be reported is left to the caller.
func (c *Conn) release(err error) bool {
	r := &c.rx
	if err != nil && !r.done {
		r.done = true
		if r.ended != nil {
			close(r.ended)
		}
	} else {
		err = nil
	}
	// A poller is back soon, and taking the buffer each time would be a good
	// part of a poll that finds nothing. The passive goroutine frees it, if there is
	// one. With much to read one buffer for all connections is better for the caches.
	keep := r.polled && r.took < longGlimpse && r.lobby.Load() == nil
	if r.stage != nil && (r.fill == 0 && !keep || r.done) {
		r.unstage()
	}
	r.polled = false
	r.mu.Unlock()
	return err != nil
}

// receive reads and handles what the socket has. The caller has the receive
// role. A short read ends it, unless all is set: an end of stream behind the
// last bytes is only told by one more read. more tells that it stopped for
// being long at it.
func (c *Conn) receive(all bool) (got, more bool, err error) {
	r := &c.rx
	r.restage()
	r.before, r.took = r.missed.Load(), 0
	undrained := false
	if r.fill > 0 && r.direct == 0 {
		// Bytes from before the start, not looked at yet, or the beginning
		// of a frame: looking again costs little.
		if err := c.handle(); err == ErrEnough {
			c.proto.Drained()
			return true, false, nil
		} else if err != nil {
			return false, false, err
		}
		undrained = true
	}
	for range reads {
		n, room, err := c.read()
		if err == errWouldBlock {
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
			c.proto.Drained()
			return got, false, nil
		} else if err != nil {
			return got, false, err
		}
		if n < room {
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

func (r *receiver) unstage() {
	stages.Put(r.stage)
	r.stage = nil
}

// restage makes sure that there is a staging buffer, with what comes first in it.
func (r *receiver) restage() {
	if r.stage == nil {
		r.stage = stages.Get().(*stage)
		r.fill = 0
	}
	r.refill()
}

// refill stages what is there without a read.
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

// read makes one read call: into place what belongs there, and the rest into
// staging. It returns how much came and how much there was room for.
func (c *Conn) read() (n, room int, err error) {
	r := &c.rx
	if n := r.refill(); n > 0 {
		return n, n, nil
	}
	fd := c.sock.Load().fd
	if r.direct == 0 {
		if g := c.guess(); len(g) > 0 {
			return c.readGuessed(fd, r.stage.iov[:0], g)
		}
		n, err = sysRead(fd, r.stage.b[r.fill:r.end()])
		room = r.end() - r.fill
		if err == nil && n == 0 {
			err = c.eof()
		}
		r.fill += max(n, 0)
		return n, room, err
	}
	iov, err := c.proto.Direct(r.stage.iov[:0])
	if err != nil {
		return 0, 0, err
	}
	want := 0
	for _, v := range iov {
		want += len(v)
	}
	if want == r.direct {
		return c.readGuessed(fd, iov, c.guess())
	}
	n, err = c.sysReadv(fd, iov)
	clear(iov)
	r.stage.iov = iov[:0]
	if derr := c.proto.DirectDone(max(n, 0)); derr != nil {
		return n, want, derr
	}
	if err == nil && n == 0 {
		err = c.eof()
	}
	r.direct -= max(n, 0)
	return n, want, err
}

// glimpse is how much is staged of what follows a long frame.
func (r *receiver) glimpse() int {
	if r.guessed {
		return shortGlimpse
	}
	return longGlimpse
}

// end is up to where the next read fills the stage. After a long frame
// another is likely, whose payload should not pass through here.
func (r *receiver) end() int {
	if r.large {
		return min(r.fill+r.glimpse(), stageSize)
	}
	return stageSize
}

// handle lets the protocol take what is staged.
func (c *Conn) handle() error {
	r := &c.rx
	if r.direct > 0 || r.fill == 0 {
		return nil
	}
	n, direct, err := c.proto.Receive(r.stage.b[:r.fill], len(r.early) == 0)
	if err != nil && err != ErrEnough {
		return err
	}
	r.direct = direct
	r.left = err == ErrEnough && n < r.fill
	switch {
	case direct > 0:
		r.large, r.glimpses = true, 0
	case r.large && r.fill >= r.glimpse():
		if r.glimpses++; r.glimpses == maxGlimpses {
			r.large, r.guessed = false, false
		}
	}
	if n > 0 {
		r.fill = copy(r.stage.b[:], r.stage.b[n:r.fill])
	}
	if r.fill == stageSize && err == nil {
		return io.ErrShortBuffer
	}
	return err
}

// eof tells an orderly end from one inside a frame.
func (c *Conn) eof() error {
	if c.rx.fill > 0 || c.rx.direct > 0 {
		return io.ErrUnexpectedEOF
	}
	return io.EOF
}

// absence is how long nobody must have polled for the passive goroutine to
// come back to the socket.
const absence = time.Millisecond

// passive waits for the socket on behalf of everybody who does not poll.
func (c *Conn) passive() {
	r := &c.rx
	var (
		failed error
		ended  bool
		more   bool
		timer  *time.Timer
		pace   pacer
	)
	defer pace.end()
	sock := c.sock.Load()
	in := &sock.in
	for !sock.openIn() {
		if !c.lookAnyway() {
			return
		}
	}
	wait := func(uintptr) bool {
		if !r.mu.TryLock() {
			in.disarm(sock.fd)
			pace.interrupted()
			return true
		}
		if r.closed || r.done {
			ended = true
			r.mu.Unlock()
			return true
		}
		if p := r.pollsLocked(); p != r.seen {
			r.seen = p
			pace.interrupted()
			select {
			case <-r.resume: // and went to sleep
			default:
				// Somebody polls: being woken for each of its messages would
				// cost it more than the whole rest of the path.
				r.mu.Unlock()
				in.disarm(sock.fd)
				return true
			}
		}
		if pace.on && r.told.Load() == nil {
			// None of what came meanwhile was reported. If no other lull
			// follows, the next turn arms the edge and looks once more.
			got, _, err := c.receive(false)
			if got {
				c.list()
			}
			pace.goesOn(time.Now(), r.took, c.tx.batches.Load())
			ended = err != nil || r.done
			c.unlock(err)
			more = !ended
			return true
		}
		pace.end()
		// What arrives from here on is reported, so reading until there is
		// nothing misses nothing.
		err := io.ErrClosedPipe
		if in.arm(sock.fd) {
			if f := r.told.Load(); f != nil {
				if left, arrived := c.leaves(sock.fd, f); left {
					r.park()
					c.unlock(nil)
					if arrived { // who polls now finds nobody in the way
						select {
						case <-r.resume: // of whoever is told
						default:
						}
						(*f)()
						in.disarm(sock.fd)
					}
					return arrived
				}
			}
			var got bool
			if got, more, err = c.receive(true); got {
				c.list()
				if err == nil && !more && pace.begins(r.took, c.tx.batches.Load()) {
					in.disarm(sock.fd)
					more = true
				}
			}
		}
		if ended = err != nil || r.done; !ended && !more {
			r.park()
		}
		c.unlock(err)
		return ended || more
	}
	for !ended {
		if failed = in.raw.Read(wait); failed != nil {
			if errors.Is(failed, os.ErrDeadlineExceeded) { // see rota
				in.calm()
				if !c.retire() {
					c.enlist()
					c.wg.Go(c.passive)
				}
			}
			return // else the socket was closed under us: Close or Abort
		}
		if more {
			more = false
			if pace.on {
				nap(lull)
			}
			continue
		}
		for !ended {
			if timer == nil {
				timer = time.NewTimer(absence)
			} else {
				timer.Reset(absence)
			}
			back := false
			select {
			case <-r.resume:
				timer.Stop()
				back = true
			case <-timer.C:
			}
			r.mu.Lock()
			p := r.pollsLocked()
			back = back || p == r.seen
			r.seen = p
			r.mu.Unlock()
			if back {
				break
			}
		}
		if c.closing.Load() {
			return
		}
	}
}

// lookAnyway is for want of anything to sleep on: the socket is read now and then.
// It is false when that has come to an end.
func (c *Conn) lookAnyway() bool {
	time.Sleep(absence)
	r := &c.rx
	r.mu.Lock()
	if r.closed || r.done {
		r.mu.Unlock()
		return false
	}
	_, _, err := c.receive(true)
	c.unlock(err)
	return err == nil
}

// leaves reports whether the socket is left alone: because nothing has arrived,
// or because the consumer is to be called, as it asked. What the protocol left when
// the consumer last polled has arrived: if he found the role taken when he looked
// again, nothing else would tell him. An end of the stream is nothing to be left.
// [receive role]
func (c *Conn) leaves(fd int, call *func()) (left, arrived bool) {
	some, err := c.rx.left, error(nil)
	if !some {
		some, err = sysPeek(fd)
	}
	arrived = some && c.rx.told.CompareAndSwap(call, nil)
	return arrived || err == errWouldBlock, arrived
}

// park frees the staging buffer before a wait that may be long: a partial
// frame is put aside in a buffer of its size.
func (r *receiver) park() {
	if r.fill > 0 && r.direct == 0 {
		r.early = slices.Concat(r.stage.b[:r.fill], r.early)
		r.fill = 0
	}
}

// readLoop receives from a portable stream. Nothing is read straight into
// place, since the read may wait for the peer and nothing may stay pinned.
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
		r.mu.Lock()
		if r.closed {
			r.mu.Unlock()
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
		c.unlock(err)
		if err != nil {
			return
		}
	}
}
