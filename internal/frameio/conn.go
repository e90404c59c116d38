package frameio

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"viaduct/internal/attend"
	"viaduct/internal/sock"
)

// A Protocol builds the frames to send and consumes the received frames of a Conn. Methods of one
// role are never called concurrently with each other; the two roles run independently. No method
// may block or call Close.
type Protocol interface {
	// Fill appends frames to b until [Batch.Full] or until the queue is empty. In both cases the
	// Conn calls Fill again when necessary: for the next batch, or after the next Kick. A Fill that
	// stops earlier calls [Batch.LeaveMore]. [send role]
	Fill(b *Batch)

	// Sent reports that the kernel has taken every frame of the last Fill, so that the memory of the
	// frames may be reused. Sent must not deregister memory. [send role]
	Sent()

	// Receive consumes the complete frames at the front of p and returns their length, n. If
	// mayPlan is set, Receive may also begin a long frame only partly in p: Receive copies the
	// arrived payload to its place and returns the number of missing payload bytes. The next reads
	// put the missing bytes directly in the places Plan returns. mayPlan is set for a [Planner]
	// only. p is reused after the call. ErrEnough leaves the bytes of p after n for the next
	// Receive. Any other error ends the connection. [receive role]
	Receive(p []byte, mayPlan bool) (n, missing int, err error)

	// Drained reports that every arrived byte was handled: the time to send acknowledgements.
	// [receive role]
	Drained()

	// Failed reports, once, why the connection cannot continue. err is io.EOF after an orderly end
	// between frames, and io.ErrUnexpectedEOF after an end inside a frame. Otherwise err is the
	// error of Receive, Plan or Landed, or of the stream. If only the peer's direction ended,
	// queued frames may still be sent. Failed is not called after Close or Abort. It is called
	// without a role.
	Failed(err error)
}

// A Planner is a Protocol whose long frames need not pass through the staging buffer.
type Planner interface {
	// Plan adds to p the places for the bytes of the next read. The Conn calls Plan before each
	// read possibly within a long frame, because access rights may have changed since the last
	// read. The places stay pinned until Landed. If payload of the current frame is missing,
	// p.Frame must have a place for at least one byte. [receive role]
	Plan(p *Plan)

	// Landed reports where the last read put its bytes. The first frame bytes belong to the current
	// frame. The next after bytes begin at the first predicted header, and may extend beyond the
	// predicted frames. The protocol consumes predicted frames in order, as Receive would. Landed
	// stops at the first frame that does not match, or lacks the header or the first byte after the
	// header. The protocol may move payload, but never onto a later prediction. taken is the number
	// of after bytes consumed; Receive gets the others. missing is the number of payload bytes
	// missing of the last frame. [receive role]
	Landed(p *Plan, frame, after int) (taken, missing int, err error)
}

// A SendFailer is a Protocol that is notified when the sending direction fails, even if Failed has
// already reported an orderly end of the receiving direction.
type SendFailer interface {
	// SendFailed reports that nothing more can be sent. For the first failure of the Conn, Failed
	// was called just before. SendFailed is called without a role.
	SendFailed(err error)
}

// A Deliverer is a Protocol that notifies the consumer after a Receive, and after a Sent in another
// goroutine than Kick.
type Deliverer interface {
	// Deliver is called without a role, by one or several goroutines at a time. keep reports
	// whether bytes left by ErrEnough should wait for a consumer that is about to poll. [no role]
	Deliver() (keep bool)
}

// Options are settings for New. The zero value suits most users.
type Options struct {
	// Portable forces the portable path even where the fast path would work.
	Portable bool
}

// A Conn is a framed connection. All methods are safe for concurrent use, unless their comments say
// otherwise.
type Conn struct {
	nc        net.Conn
	proto     Protocol
	planner   Planner                     // proto, or nil
	deliverer Deliverer                   // proto, or nil
	sock      atomic.Pointer[sock.Socket] // nil before take, and on the portable path

	portable bool
	near     bool // the other end is on this host; read only when sock is set
	taken    sync.Once

	tx  sender
	rx  receiver
	att attend.Attention // the receive role, and the goroutines that wait for arrivals

	slept atomic.Uint32 // tx.batches when a consumer last slept at the socket

	failOnce sync.Once
	closing  atomic.Bool // Close or Abort was called
	reset    atomic.Bool // Abort or Reset was called
	torn     sync.Once
	wg       sync.WaitGroup
}

// New returns a Conn that owns nc. The Conn reads nothing before Start and writes nothing before
// the first Kick; until then the caller may still use nc.
func New(nc net.Conn, p Protocol, o Options) *Conn {
	c := &Conn{nc: nc, proto: p, portable: o.Portable}
	c.planner, _ = p.(Planner)
	c.deliverer, _ = p.(Deliverer)
	return c
}

// InPlace reports whether bytes are moved directly to and from the protocol's memory. If such
// memory is unmapped, the connection ends with the error syscall.EFAULT. InPlace is false before
// the first Start or Kick.
func (c *Conn) InPlace() bool { return c.sock.Load() != nil }

// Start begins to receive. Until then Poll does nothing. early has the bytes the caller has already
// read from the stream. Start copies early, and a goroutine of the Conn handles the copy first.
// After Close, Start does nothing.
func (c *Conn) Start(early []byte) { c.start(early, false) }

// StartPolled is Start for callers who poll first and call Unpoll later. Until Unpoll no other
// goroutine waits for the socket, and nothing is received except in Poll. On a portable stream
// StartPolled is Start.
func (c *Conn) StartPolled(early []byte) { c.start(early, true) }

func (c *Conn) start(early []byte, polled bool) {
	c.take()
	c.att.Lock()
	defer c.att.Unlock()
	if c.rx.closed {
		return // Close may already be waiting for goroutines
	}
	c.rx.keep(early)
	switch s := c.sock.Load(); {
	case s == nil:
		c.rx.started = true
		c.wg.Go(c.readLoop)
	case polled:
		c.rx.started = true
		c.att.Init(s, (*reader)(c))
		c.att.Reserve()
	default:
		c.rx.started = true
		c.att.Init(s, (*reader)(c))
		c.att.Start()
	}
}

// take chooses the fast path or the portable path, at the first call, before the first read or
// write.
func (c *Conn) take() {
	c.taken.Do(func() {
		if !c.portable {
			s := sock.Take(c.nc)
			c.near = sock.Near(c.nc)
			c.sock.Store(s)
		}
	})
}

// NetConn returns the underlying stream, for addresses and socket options. The caller must not read
// or write.
func (c *Conn) NetConn() net.Conn {
	if s := c.sock.Load(); s != nil {
		return sock.Handle(c.nc, s)
	}
	return c.nc
}

// Control calls f with the descriptor of the stream, to set socket options. The error is
// errors.ErrUnsupported if the stream has no descriptor. After Close, Control returns an error.
func (c *Conn) Control(f func(fd uintptr)) error {
	if s := c.sock.Load(); s != nil {
		return s.Control(f)
	}
	sc, ok := c.nc.(syscall.Conn)
	if !ok {
		return errors.ErrUnsupported
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(f)
}

// Go runs f in a goroutine working for the connection.
func (c *Conn) Go(f func()) { attend.Go(c.sock.Load() != nil, f) }

// fail reports the first failure to the protocol, unless Close or Abort was called.
func (c *Conn) fail(err error) {
	if c.closing.Load() {
		return
	}
	c.failOnce.Do(func() { c.proto.Failed(err) })
}

// Pending returns how many bytes have arrived and were not yet passed to the protocol. It is 0 for
// a portable stream. [receive role]
func (c *Conn) Pending() int {
	if s := c.sock.Load(); s != nil {
		return len(c.rx.early) + s.Pending()
	}
	return 0
}

// WithReceiver calls f in the receive role. It may wait for the role, but never for the peer. f
// must not call methods of the Conn.
func (c *Conn) WithReceiver(f func()) {
	c.att.Lock()
	defer c.att.Unlock()
	f()
}

// Shutdown ends the sending direction in an orderly way as soon as all queued frames are sent. The
// Conn continues to receive. Shutdown does not block.
func (c *Conn) Shutdown() {
	c.tx.finishing.Store(true)
	c.Kick()
}

// Abort resets the connection and drops queued frames. It does not block. Methods of the Protocol
// may call Abort. A method already running may continue for a moment, and [Conn.Close] waits for
// its end. Abort does nothing after Abort or Close.
func (c *Conn) Abort() {
	if c.closing.Swap(true) {
		return
	}
	c.reset.Store(true)
	go c.tearDown()
}

// Reset is Abort followed by Close. Methods of the Protocol must not call Reset.
func (c *Conn) Reset() error {
	if !c.closing.Swap(true) {
		c.reset.Store(true)
	}
	return c.Close()
}

// Close closes the stream at once and waits until no method of the Protocol runs. Bytes already in
// the kernel are still delivered, as for any socket. Methods of the Protocol must not call Close.
// The error is always nil.
func (c *Conn) Close() error {
	c.closing.Store(true)
	c.tearDown()
	c.wg.Wait()
	c.att.Join()
	c.tx.waitIdle()
	return nil
}

// CloseAfter waits until the peer has ended its direction, for d at most, and then closes the
// connection. It is used after Shutdown if the caller does not need further received bytes.
func (c *Conn) CloseAfter(d time.Duration) error {
	over := c.over()
	select {
	case <-over:
		return c.Close()
	default:
	}
	c.Unpoll()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-over:
	case <-t.C:
	}
	return c.Close()
}

// tearDown closes the stream, once no reader can be using it. Only the first call does so; later
// calls wait for the first.
func (c *Conn) tearDown() {
	c.torn.Do(func() {
		c.att.Close(func() {
			c.rx.closed = true
			if c.rx.stage != nil {
				c.rx.unstage()
			}
		})
		c.taken.Do(func() {}) // afterwards nothing takes the socket
		if s := c.sock.Load(); s != nil {
			c.tx.mu.Lock()
			c.tx.closed = true
			if c.tx.batch != nil {
				c.tx.batch.detach() // before the pins are released
			}
			c.tx.mu.Unlock()
			c.unpark()
			s.Close(c.reset.Load())
		} else {
			if tc, ok := c.nc.(interface{ SetLinger(int) error }); ok && c.reset.Load() {
				tc.SetLinger(0)
			}
			c.nc.Close()
		}
		c.tx.stop()
	})
}

// ErrEnough is returned by a Protocol's Receive to stop receiving for now. A portable stream does
// not allow ErrEnough (see [Conn.Leaves]). The remaining bytes are passed to the next Receive,
// which follows soon after Deliver or when the consumer polls.
var ErrEnough = errors.New("frameio: enough")
