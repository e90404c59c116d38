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

// A Protocol is what a Conn drives: it builds the frames that leave and takes
// the frames that arrive. Methods of one role are never called concurrently
// with each other; the two roles run independently. No method may block or
// call Close.
type Protocol interface {
	// Fill appends frames to b until [Batch.Full], or until nothing is left to
	// send: it is called again after the next Kick then. If it stops earlier it calls
	// [Batch.LeaveMore]. [send role]
	Fill(b *Batch)

	// Sent reports that the kernel took everything the last Fill appended:
	// the memory behind it may be reused. It must not deregister memory. [send role]
	Sent()

	// Receive takes the complete frames at the front of p and returns how many bytes that were. If
	// they are followed by the beginning of a long frame and mayPlan is set, which it is for a
	// [Planner] only, Receive may take that beginning too: it places the payload that has come and
	// returns how many bytes of payload are missing; those are read straight to where Plan says. p
	// is reused after the call. An error ends the connection, but for ErrEnough, which leaves the
	// rest for the next look. [receive role]
	Receive(p []byte, mayPlan bool) (n, missing int, err error)

	// Drained tells that everything which had arrived was handled: the moment
	// for acknowledgements. [receive role]
	Drained()

	// Failed tells, once, that the connection can't go on: io.EOF after an
	// orderly end between frames, io.ErrUnexpectedEOF after an end inside
	// one, the error of Receive, Plan or Landed, or that of the stream. It is not
	// called after Close or Abort. No role is held. Frames not yet sent may
	// still be sent if only the peer's direction ended.
	Failed(err error)
}

// A Planner is a Protocol whose long frames need not pass through the staging buffer.
type Planner interface {
	// Plan tells where the bytes of the next read belong. It is asked before each read that may be
	// for a long frame, since rights may have gone since the last; what it names stays pinned until
	// Landed. If bytes of a frame are missing, p.Frame gets a place for one at least. [receive role]
	Plan(p *Plan) error

	// Landed reports what was read to the places of the last Plan, if there were any: frame bytes of
	// the frame in progress, then behind bytes from the first predicted header on, perhaps more than
	// were predicted. The protocol takes the predicted frames in order, as Receive would take them.
	// It stops at the first frame that does not match, or whose header and one byte more have not
	// come. It may move payload, but never to where a later frame was read. It returns how many of
	// the bytes behind the frame in progress it took (Receive is shown the rest), and how many bytes
	// of payload are missing of the last frame. [receive role]
	Landed(p *Plan, frame, behind int) (taken, missing int, err error)
}

// A SendFailer is a Protocol that wants to hear when its sending direction
// fails, also after Failed has told of an orderly end of the other one.
type SendFailer interface {
	// SendFailed tells that nothing can be sent any more. If it is the first
	// failure, Failed was called just before. No role is held.
	SendFailed(err error)
}

// A Deliverer is a Protocol that has something to tell its consumer after a
// Receive, or after Sent was called by a goroutine other than that of the Kick.
type Deliverer interface {
	// Deliver is called without a role, by one goroutine or several at a time. It
	// reports whether what ErrEnough has left is best kept for a consumer, which is
	// about to poll. [no role]
	Deliver() (keep bool)
}

// Options for New. The zero value is right for most.
type Options struct {
	// Portable forces the portable path even where the fast path would work.
	Portable bool
}

// A Conn is a framed connection. All methods may be called from any
// goroutine.
type Conn struct {
	nc        net.Conn
	proto     Protocol
	planner   Planner                     // proto, or nil
	deliverer Deliverer                   // likewise
	sock      atomic.Pointer[sock.Socket] // nil: portable path; see take

	portable bool
	near     bool // the other end is on this host; read only when sock is set
	taken    sync.Once

	tx  sender
	rx  receiver
	att attend.Attention // the receive role, and what waits for arrivals

	slept atomic.Uint32 // tx.batches as a consumer last slept at the socket

	failOnce sync.Once
	closing  atomic.Bool // Close or Abort was called
	reset    atomic.Bool // it was Abort
	torn     sync.Once
	wg       sync.WaitGroup
}

// New wraps nc, which the Conn owns from then on. Nothing is read before
// Start and nothing is written before the first Kick; until then nc may still
// be used.
func New(nc net.Conn, p Protocol, o Options) *Conn {
	c := &Conn{nc: nc, proto: p, portable: o.Portable}
	c.planner, _ = p.(Planner)
	c.deliverer, _ = p.(Deliverer)
	return c
}

// InPlace tells that the bytes of the connection are moved from and to where the protocol
// says. Memory that may fault and is gone then is syscall.EFAULT, which ends the connection.
func (c *Conn) InPlace() bool { return c.sock.Load() != nil }

// Start begins to receive; until then Poll does nothing. early holds bytes
// that were read from the stream before; they are handled first, in a goroutine
// of the Conn's.
func (c *Conn) Start(early []byte) { c.start(early, false) }

// StartPolled is Start for a caller that begins by polling, and calls Unpoll
// when it is done with that: only then does anything else wait for the socket.
// Until Poll or Unpoll nothing is received.
func (c *Conn) StartPolled(early []byte) { c.start(early, true) }

func (c *Conn) start(early []byte, polled bool) {
	c.take()
	c.att.Lock()
	defer c.att.Unlock()
	if c.rx.closed {
		return // Close may be waiting for goroutines already
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

// take decides between the fast path and the portable one, before the first
// byte is read or written.
func (c *Conn) take() {
	c.taken.Do(func() {
		if !c.portable {
			s := sock.Take(c.nc)
			c.near = sock.Near(c.nc)
			c.sock.Store(s)
		}
	})
}

// NetConn returns the stream below, for addresses and socket options. Do not
// read or write it.
func (c *Conn) NetConn() net.Conn {
	if s := c.sock.Load(); s != nil {
		return sock.Handle(c.nc, s)
	}
	return c.nc
}

// Control calls f with the descriptor of the stream, if it has one, for socket
// options.
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

// Go is go f(), for work on the connection.
func (c *Conn) Go(f func()) { attend.Go(c.sock.Load() != nil, f) }

// fail reports the first failure to the protocol.
func (c *Conn) fail(err error) {
	if c.closing.Load() {
		return
	}
	c.failOnce.Do(func() { c.proto.Failed(err) })
}

// Pending returns how many bytes have arrived behind those that the protocol was
// shown, 0 for a portable stream. [receive role]
func (c *Conn) Pending() int {
	if s := c.sock.Load(); s != nil {
		return len(c.rx.early) + s.Pending()
	}
	return 0
}

// WithReceiver calls f in the receive role, waiting for it if need be, which is
// never for the peer. f must not call methods of the Conn.
func (c *Conn) WithReceiver(f func()) {
	c.att.Lock()
	defer c.att.Unlock()
	f()
}

// Shutdown ends the sending direction in an orderly way as soon as everything
// that is queued was sent. Receiving goes on. It does not block.
func (c *Conn) Shutdown() {
	c.tx.finishing.Store(true)
	c.Kick()
}

// Abort resets the connection and forgets what is queued. It does not block
// and may be called from a Protocol's methods. The protocol hears nothing
// more after the roles in progress have ended; [Conn.Close] waits for that.
func (c *Conn) Abort() {
	if c.closing.Swap(true) {
		return
	}
	c.reset.Store(true)
	go c.tearDown()
}

// Reset is Abort and Close. It must not be called from a Protocol's method.
func (c *Conn) Reset() error {
	if !c.closing.Swap(true) {
		c.reset.Store(true)
	}
	return c.Close()
}

// Close closes the stream at once (queued bytes that the kernel has are still
// delivered, as for any socket) and waits until no method of the protocol
// runs any more. It must not be called from one.
func (c *Conn) Close() error {
	c.closing.Store(true)
	c.tearDown()
	c.wg.Wait()
	c.att.Join()
	c.tx.waitIdle()
	return nil
}

// CloseAfter waits until the peer has ended its direction too, at most for d,
// then closes. For use after Shutdown, when everything received meanwhile is
// of no interest any more.
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

// tearDown closes the descriptor when no reader can be using it.
func (c *Conn) tearDown() {
	c.torn.Do(func() {
		c.att.Close(func() {
			c.rx.closed = true
			if c.rx.stage != nil {
				c.rx.unstage()
			}
		})
		c.taken.Do(func() {}) // not any more
		if s := c.sock.Load(); s != nil {
			c.tx.mu.Lock()
			c.tx.closed = true
			if c.tx.batch != nil {
				c.tx.batch.detach() // before its pins are given back
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

// ErrEnough is returned by a Protocol's Receive that wants to see no more for
// now, on a stream that is not portable. What it left is shown to it at the next
// Receive, which comes soon after Deliver, or when the consumer polls.
var ErrEnough = errors.New("frameio: enough")
