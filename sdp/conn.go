package sdp

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"viaduct/internal/attend"
	"viaduct/internal/perturb"
	"viaduct/internal/sdpcore"
	"viaduct/internal/sock"
	"viaduct/internal/wire/sdpwire"
	"viaduct/iwarp"
)

// A Conn is a stream socket over SDP. It is a net.Conn, and its methods are safe for concurrent
// use. Writes are atomic with respect to each other, and reads are served in the order of the
// calls.
//
// Read returns io.EOF at the end of the peer's stream. All other errors are *net.OpError, and match
//
//   - net.ErrClosed after a local Close,
//   - os.ErrDeadlineExceeded when a deadline has passed,
//   - ErrReset if the peer or the network ended the connection,
//   - *ProtocolError if the peer broke the protocol,
//   - *iwarp.TerminateError if an error of the layers below ended the connection.
type Conn struct { // [D-84] [SDP-4.1-1]
	// A Conn passes the completions of an iwarp stream to a machine of internal/sdpcore. Each file
	// has the methods for one part of the connection.

	opt    Options
	layout sdpwire.Layout
	path   Path
	token  []byte

	queue atomic.Pointer[iwarp.CompletionQueue] // completion queue of the stream

	mu    perturb.Mutex // guards all fields below; released by unlock
	m     *sdpcore.Machine
	qp    *iwarp.QueuePair
	acts  []sdpcore.Action
	comps [8]iwarp.Completion // buffer for the completions that run polls
	born  time.Time

	calls calls
	recv  receiver
	send  sender
	advs  adverts
	drv   driver
	alarm alarm
	flow  flow
	held  held
	urg   urgent

	ends
	moving
}

// The ends hold the state of a connection's end.
type ends struct {
	closed      bool          // Close was called
	readClosed  bool          // CloseRead was called
	linger      time.Duration // set by SetLinger; negative for the default
	closeWithin time.Duration // time that Close waits by default
	flushed     chan struct{} // closed when TCP has the DisConn, or will never get it
	gone        chan struct{} // closed when the connection has ended and all its resources are released
	released    bool
	closing     bool   // Close will release the stream itself, if the stream has ended in order
	letGo       func() // closes the stream; release sets it for Close to call, if closing is set
}

// A moving connection continues in another process or on another stream.
type moving struct {
	suspendTo chan error // gets the result of Suspend
	resumeAt  uint16     // port named by OpReconnect; 0 after reconnect has begun, or if there is none
	suspended bool
}

var (
	_ net.Conn      = (*Conn)(nil)
	_ io.ReaderFrom = (*Conn)(nil)
	_ io.WriterTo   = (*Conn)(nil)
)

// actions is a pool of slices for the actions of an event.
var actions = sync.Pool{New: func() any { return new(make([]sdpcore.Action, 0, 8)) }}

// room returns the empty slice to which the machine appends the actions of an event. mu must be
// held.
func (c *Conn) room() []sdpcore.Action { return c.acts[:0] }

// newConn makes the connection of a complete set-up. It handles no arrivals before begin.
func newConn(opt Options, layout sdpwire.Layout, s *setup, p sdpcore.Params) *Conn {
	c := &Conn{opt: opt, layout: layout, born: time.Now(), acts: *actions.Get().(*[]sdpcore.Action)}
	c.calls.room = opt.SendBuffer
	c.linger, c.closeWithin = -1, defaultCloseTimeout
	c.flushed, c.gone = make(chan struct{}), make(chan struct{})
	c.m = sdpcore.New(p)
	c.attach(s)
	return c
}

// attach makes the connection use the stream of a set-up, at first and again after a suspension.
func (c *Conn) attach(s *setup) {
	c.qp = s.qp
	c.queue.Store(s.cq)
	c.drv.pooled = s.pooled
	c.recv.move(s.in)
	c.send.attach(s.qp, c.layout, s.sendDepth)
	c.alarm.attend = c.now() + attendTime
}

// begin starts the handling of arrivals. Set path before calling begin.
func (c *Conn) begin() {
	c.mu.Lock()
	defer c.unlock()
	c.queue.Load().Handle(c.completed)
}

func (c *Conn) now() sdpcore.Time { return time.Since(c.born) }

// LocalAddr returns the local address of the TCP connection; RemoteAddr returns the peer's.
func (c *Conn) LocalAddr() net.Addr  { return c.path.Local }
func (c *Conn) RemoteAddr() net.Addr { return c.path.Remote }

// SetDeadline sets the read and the write deadline. A zero t means never. After Close the error
// matches net.ErrClosed.
func (c *Conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline sets the time when waiting reads, and later ones, end with
// os.ErrDeadlineExceeded. A zero t means never. After Close the error matches net.ErrClosed.
func (c *Conn) SetReadDeadline(t time.Time) error {
	if c.isClosed() {
		return c.opError("set", net.ErrClosed)
	}
	c.calls.rd.set(t)
	return nil
}

// SetWriteDeadline sets the time when waiting writes, and later ones, end with
// os.ErrDeadlineExceeded. A zero t means never. After Close the error matches net.ErrClosed.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	if c.isClosed() {
		return c.opError("set", net.ErrClosed)
	}
	c.calls.wd.set(t)
	return nil
}

func (c *Conn) isClosed() bool {
	c.mu.Lock()
	defer c.unlock()
	return c.closed
}

// SetLinger sets how long Close waits until the peer's TCP has all written bytes and the end of the
// stream. With sec < 0, the default, Close waits 10 seconds; delivery then continues in the
// background as long as the process runs. With sec > 0, Close waits sec seconds, and then resets
// the connection. With sec = 0, Close drops undelivered bytes and resets the connection at once.
func (c *Conn) SetLinger(sec int) error { // [D-78] [SDP-8.2.1-11]
	return c.setting(func() { c.linger = time.Duration(sec) * time.Second })
}

// SetReadBuffer limits the received bytes held in addition to the Private Buffers. Bytes held
// already are not dropped. A negative number counts as 0.
func (c *Conn) SetReadBuffer(bytes int) error { // [D-79]
	return c.setting(func() {
		c.opt.ReceiveBuffer = max(0, bytes)
		c.m.SetBudgets(c.calls.room, c.opt.ReceiveBuffer)
	})
}

// SetWriteBuffer limits the bytes that Write copies before it blocks. Bytes copied already are not
// affected. A negative number counts as 0.
func (c *Conn) SetWriteBuffer(bytes int) error {
	return c.setting(func() {
		c.calls.room = max(0, bytes)
		c.m.SetBudgets(c.calls.room, c.opt.ReceiveBuffer)
	})
}

// setting runs change with mu held. It returns net.ErrClosed if the connection is closed.
func (c *Conn) setting(change func()) error {
	c.mu.Lock()
	defer c.unlock()
	if c.closed {
		return c.opError("set", net.ErrClosed)
	}
	change()
	return nil
}

// SetKeepAlive switches TCP's keepalive on or off; SDP has no messages for it. It returns
// ErrUnsupported on systems other than Linux.
func (c *Conn) SetKeepAlive(on bool) error { // [SDP-14.3-1] [SDP-14.3-2] [D-77]
	return c.opError("set", c.sockopt(func(fd uintptr) error { return setKeepAlive(fd, on) }))
}

// SetKeepAlivePeriod sets the period of TCP's keepalive, rounded up to seconds. It returns
// ErrUnsupported on systems other than Linux.
func (c *Conn) SetKeepAlivePeriod(d time.Duration) error {
	return c.opError("set", c.sockopt(func(fd uintptr) error { return setKeepAlivePeriod(fd, d) }))
}

// sockopt calls f with the descriptor of the TCP socket. The error is net.ErrClosed if the
// connection is closed.
func (c *Conn) sockopt(f func(fd uintptr) error) error {
	c.mu.Lock()
	defer c.unlock()
	if c.closed {
		return net.ErrClosed
	}
	raw, err := c.qp.SyscallConn()
	if err != nil {
		return err
	}
	if cerr := raw.Control(func(fd uintptr) { err = f(fd) }); cerr != nil {
		return cerr
	}
	return err
}

// SetNoDelay does nothing, because messages are never delayed to be filled. Only small writes that
// wait for credit are sent together.
func (c *Conn) SetNoDelay(bool) error { return nil } // [D-78]

// SetPolicies changes the policy of the outgoing half-connection to send, and of the incoming
// half-connection to recv. Nothing changes on a connection that has ended.
func (c *Conn) SetPolicies(send, recv Policy) {
	c.mu.Lock()
	defer c.unlock()
	c.exec(c.m.SetPolicy(c.now(), sdpcore.Policy(send), sdpcore.Policy(recv), c.room()))
}

// SetThresholds changes Options.SendThreshold and RecvThreshold of this connection, in bytes. With
// a negative send, writes never use zero copy. Zero means 0, not the default. A recv below the size
// of a Private Buffer is raised to the buffer's size.
func (c *Conn) SetThresholds(send, recv int) {
	c.mu.Lock()
	defer c.unlock()
	c.exec(c.m.SetThresholds(c.now(), threshold(send), recv, c.room()))
}

// RequestPeerBufferSize asks the peer to make each of its Private Buffers n bytes.
// RequestPeerBufferSize returns false, and sends no request, if the connection is not open, if
// another request is open, if the size is n already, or if the peer has refused to change its size
// in the same direction.
func (c *Conn) RequestPeerBufferSize(n int) bool { // [SDP-10.6-1]
	c.mu.Lock()
	defer c.unlock()
	acts, ok := c.m.RequestPeerSize(c.now(), n, c.room())
	c.exec(acts)
	return ok
}

func threshold(n int) int {
	if n < 0 {
		return sdpcore.Infinite
	}
	return n
}

// CloseWrite ends the outgoing stream: written bytes are delivered, and then the peer reads io.EOF.
// Reading continues. If the connection was aborted, or ended before all bytes were sent, CloseWrite
// returns the cause.
func (c *Conn) CloseWrite() error { // [SDP-4.1-3] [SDP-8.2.1-1] [SDP-8.2.1-22]
	c.mu.Lock()
	defer c.unlock()
	if c.closed {
		return c.opError("close", net.ErrClosed)
	}
	c.exec(c.m.CloseWrite(c.now(), c.room()))
	c.look() // the peer may have ended the connection
	return c.opError("close", c.lost())
}

// CloseRead drops unread bytes, and waiting and later reads return net.ErrClosed. Data arriving
// afterwards resets the connection, as with TCP.
func (c *Conn) CloseRead() error { // [D-49]
	c.mu.Lock()
	defer c.unlock()
	if c.closed {
		return c.opError("close", net.ErrClosed)
	}
	c.readClosed = true
	c.exec(c.m.CloseRead(c.now(), false, c.room()))
	return nil
}

// Close ends both directions, and blocked calls return. Close waits until the peer's TCP has the
// written bytes, see SetLinger, so that the process may exit afterwards, as after Close of a TCP
// connection. If the bytes were not delivered, Close returns an error: os.ErrDeadlineExceeded if
// the time was too short, otherwise the cause of the end. After an AbortConn of the peer, Close
// returns ErrReset whatever was delivered. A second Close returns net.ErrClosed.
func (c *Conn) Close() error { // [SDP-8.2.1-5] [SDP-8.2.1-7] [SDP-8.2.1-22]
	c.mu.Lock()
	if c.closed {
		c.unlock()
		return c.opError("close", net.ErrClosed)
	}
	c.closed = true
	linger := c.linger
	c.closing = linger != 0 // without linger, release must not wait for Close
	c.calls.wd.set(longAgo) // the machine ends the reads
	if linger == 0 {
		c.exec(c.m.Abort(c.now(), sdpcore.ErrClosed, c.room()))
	} else {
		c.exec(c.m.CloseRead(c.now(), false, c.room()))
		c.exec(c.m.CloseWrite(c.now(), c.room()))
	}
	c.alarm.close = c.now() + defaultLingerTimeout
	c.look() // TCP most likely has the DisConn now
	limit := linger
	if linger < 0 {
		limit = c.closeWithin
	}
	soon := linger != 0 && c.send.ended // TCP has the DisConn
	c.unlock()
	c.endSoon(soon)
	if linger == 0 {
		return nil
	}
	if err := c.awaitDelivery(limit); err != errDeadline || linger < 0 {
		return c.opError("close", err)
	}
	c.mu.Lock() // [SDP-8.2.1-11]
	c.exec(c.m.Abort(c.now(), errDeadline, c.room()))
	c.unlock()
	return c.opError("close", errDeadline)
}

// endSoon completes the end of the connection, or leaves a long wait to a goroutine. A peer that
// answers at once sends its DisConn and the end of its stream within a few microseconds; receiving
// both here costs less than waking goroutines. If answer is true, endSoon waits for the peer's
// DisConn, for answerTime after the peer's TCP has acknowledged our DisConn.
func (c *Conn) endSoon(answer bool) {
	if answer {
		acked := time.Time{}
		sock.Soon(func() bool {
			c.mu.Lock()
			defer c.unlock()
			c.look()
			if c.released || c.lost() != nil {
				return true
			}
			if acked.IsZero() && c.qp.Undelivered() == 0 {
				acked = time.Now()
			}
			return !acked.IsZero() && time.Since(acked) > answerTime
		})
	}
	c.mu.Lock()
	letGo := c.letGo
	c.closing, c.letGo = false, nil
	c.unlock()
	switch {
	case letGo == nil:
	case attend.CloseSoon(c.qp):
		c.mu.Lock()
		c.drained()
		c.unlock()
	default:
		attend.Go(c.drv.pooled, letGo)
	}
}

// awaitDelivery waits, at most limit, until the peer's TCP has all written bytes and the DisConn.
// If the process ended earlier, unread arrivals such as credit would reset the connection, and
// unsent bytes would be lost.
func (c *Conn) awaitDelivery(limit time.Duration) error {
	var err error
	known := func() (done bool) {
		done, err = c.delivered()
		return done
	}
	select {
	case <-c.flushed:
		if known() {
			return err
		}
	default:
	}
	late := time.NewTimer(limit)
	defer late.Stop()
	select {
	case <-c.flushed:
	case <-late.C:
		return errDeadline
	}
	if sock.Soon(known) { // the peer's acknowledgement usually arrives at once
		return err
	}
	for d := 50 * time.Microsecond; !known(); d = min(2*d, 10*time.Millisecond) {
		if d < time.Millisecond && nap(d) {
			continue
		}
		select {
		case <-c.gone:
		case <-late.C:
			return errDeadline
		case <-time.After(d):
		}
	}
	return err
}

// napping is the number of Close calls that nap. maxNapping limits this number, because each nap
// occupies a thread.
var napping atomic.Int32

const maxNapping = 4

// nap sleeps for d, which is less than the shortest time of a timer in an otherwise idle process, a
// millisecond. nap returns false without sleeping if the system cannot sleep so briefly, or if too
// many calls nap.
func nap(d time.Duration) bool {
	defer napping.Add(-1)
	if napping.Add(1) > maxNapping || !attend.CanNap {
		return false
	}
	attend.Nap(d)
	return true
}

// lost returns the reason why written bytes will not be delivered, or nil.
func (c *Conn) lost() error {
	if err := c.m.WriteErr(); err != nil {
		return err
	}
	if c.m.Dead() && c.drv.left || c.m.Finished() && c.released && !c.send.ended && c.send.last == 0 {
		return ErrReset
	}
	return nil
}

// delivered reports whether the fate of the written bytes is known, and the error if bytes were
// lost. Call delivered after the stream was handed to TCP.
func (c *Conn) delivered() (known bool, err error) {
	c.mu.Lock()
	defer c.unlock()
	if err := c.lost(); err != nil || c.m.Dead() {
		return true, err
	}
	left := c.qp.Undelivered()
	select {
	case <-c.qp.Ended():
		// The socket may have been closed before Undelivered was called. If both DisConns were
		// exchanged, the end is graceful [SDP-8.2.1-12]; streamEnded reports other ends.
		return c.m.Finished(), nil
	default:
		return left == 0, nil
	}
}

// Abort resets the connection and drops undelivered bytes. It does not wait. A later Close returns
// net.ErrClosed.
func (c *Conn) Abort() { // [SDP-8.2.2-5]
	c.mu.Lock()
	defer c.unlock()
	c.closed = true
	c.exec(c.m.Abort(c.now(), sdpcore.ErrClosed, c.room()))
}

// Done returns a channel that is closed when the connection has ended and released its resources.
func (c *Conn) Done() <-chan struct{} { return c.gone }
