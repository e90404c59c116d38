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

// A Conn is a stream socket over SDP. It is a net.Conn: all methods may be
// called by any goroutine; writes are atomic with respect to each other, reads
// are served in the order of the calls.
//
// Errors are *net.OpError. They match net.ErrClosed after a local Close,
// os.ErrDeadlineExceeded for deadlines, ErrReset where the peer or the network
// ended the connection, *ProtocolError where the peer broke the protocol, and
// *iwarp.TerminateError where the layers below did.
type Conn struct { // [D-84] [SDP-4.1-1]
	// It drives a machine of internal/sdpcore by the completions of a stream of iwarp.
	// The methods, those of net.Conn and of that, stand in files by the part that they
	// work on.

	opt    Options
	layout sdpwire.Layout
	path   Path
	role   sdpcore.Role
	token  []byte

	rd, wd half
	queue  atomic.Pointer[iwarp.CompletionQueue] // of the stream

	mu    perturb.Mutex // guards everything below; given back by unlock
	m     *sdpcore.Machine
	qp    *iwarp.QueuePair
	acts  []sdpcore.Action
	comps [8]iwarp.Completion // for run
	born  time.Time
	calls

	recv  sideRecv
	send  sideSend
	drv   driver
	alarm alarm
	flow  flow
	held  held
	urg   urgent

	ends
	moving
}

// The calls in progress.
type calls struct {
	wops   []*op // writes in the machine
	rops   []*op // reads in the machine
	ending []*op // writes done but for their Sends
	nextID uint64
}

// The ends of a connection.
type ends struct {
	closed      bool          // Close was called
	readClosed  bool          // CloseRead was
	onEnd       []func()      // what is told of the end
	linger      time.Duration // as SetLinger; negative for the default
	closeWithin time.Duration // how long Close waits by default
	flushed     chan struct{} // closed when DisConn has been handed to TCP, or never will be
	gone        chan struct{} // closed when the connection and all its resources are gone
	released    bool
	closing     bool   // Close is about to let go of the stream, if that has ended in order
	letGo       func() // what Close is to do for that
}

// A moving connection goes on in another process or on another stream.
type moving struct {
	suspendTo chan error // waits for OpSuspended
	resumeAt  uint16     // the port OpReconnect says to go to, until that begins
	suspended bool
}

var (
	_ net.Conn      = (*Conn)(nil)
	_ io.ReaderFrom = (*Conn)(nil)
	_ io.WriterTo   = (*Conn)(nil)
)

// An op is a read or write in the machine.
type op struct {
	id     uint64
	buf    []byte // for a write: bytes from base on
	base   int
	n      int   // bytes done, at the end
	err    error // of the end
	done   bool
	read   bool
	own    bool   // a write whose bytes the connection has copied; no call waits
	held   int    // bytes of the send buffer an own write occupies
	after  uint64 // a write is free when this Send is complete
	cancel bool
	waited bool         // a call still looks at it although own is set
	late   sdpcore.Time // when the call of a write that waits returns as soon as it may, 0 for never
	free   bool         // the call of a write may return; like done set with the half locked, too
	past   bool         // late has come
	ended  bool         // an own write whose call has to let go of it
	onDone func()
}

var opPool = sync.Pool{New: func() any { return new(op) }}

// actions are slices that events of connections are answered in.
var actions = sync.Pool{New: func() any { return new(make([]sdpcore.Action, 0, 8)) }}

// room is where the machine puts the actions of an event.
func (c *Conn) room() []sdpcore.Action { return c.acts[:0] }

func newOp() *op {
	o := opPool.Get().(*op)
	*o = op{}
	return o
}

func freeOp(o *op) {
	o.buf, o.onDone = nil, nil
	opPool.Put(o)
}

// newConn makes the connection of a set-up that is complete.
func newConn(opt Options, layout sdpwire.Layout, s *setup, p sdpcore.Params) *Conn {
	c := &Conn{opt: opt, layout: layout, role: p.Role, born: time.Now(), acts: *actions.Get().(*[]sdpcore.Action)}
	c.linger, c.closeWithin = -1, defaultCloseTimeout
	c.flushed, c.gone = make(chan struct{}), make(chan struct{})
	c.rd.init()
	c.wd.init()
	c.m = sdpcore.New(p)
	c.attach(s)
	return c
}

// attach gives the connection the stream of a set-up.
func (c *Conn) attach(s *setup) {
	c.qp = s.qp
	c.queue.Store(s.cq)
	c.drv.pooled = s.pooled
	c.recv.in = s.in
	c.send.init(s.sendDepth)
	c.alarm.attend = c.now() + attendTime
}

// begin makes the connection handle arrivals. It is called once path is known.
func (c *Conn) begin() {
	c.mu.Lock()
	defer c.unlock()
	c.queue.Load().Handle(c.completed)
}

func (c *Conn) now() sdpcore.Time { return time.Since(c.born) }

// LocalAddr and RemoteAddr return the addresses of the TCP connection.
func (c *Conn) LocalAddr() net.Addr  { return c.path.Local }
func (c *Conn) RemoteAddr() net.Addr { return c.path.Remote }

// SetDeadline sets both deadlines.
func (c *Conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline ends reads that are still waiting at t. A zero t means never.
func (c *Conn) SetReadDeadline(t time.Time) error {
	if c.isClosed() {
		return c.opError("set", net.ErrClosed)
	}
	c.rd.set(t)
	return nil
}

// SetWriteDeadline ends writes that are still waiting at t. A zero t means never.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	if c.isClosed() {
		return c.opError("set", net.ErrClosed)
	}
	c.wd.set(t)
	return nil
}

func (c *Conn) isClosed() bool {
	c.mu.Lock()
	defer c.unlock()
	return c.closed
}

// SetLinger sets how long Close waits until the peer's TCP has all written bytes and the end of the
// stream. With sec < 0, the default, it is 10 seconds; after that, delivery continues in the
// background as long as the process lives. With sec > 0 it is that many seconds, after which the
// connection is reset. With 0 Close does not wait: undelivered bytes are dropped and the connection
// is reset.
func (c *Conn) SetLinger(sec int) error { // [D-78] [SDP-8.2.1-11]
	return c.setting(func() { c.linger = time.Duration(sec) * time.Second })
}

// SetReadBuffer and SetWriteBuffer bound the bytes held in either direction in addition to the
// Private Buffers. They apply to later bytes.
func (c *Conn) SetReadBuffer(bytes int) error { // [D-79]
	return c.setting(func() {
		c.opt.ReceiveBuffer = max(0, bytes)
		c.m.SetBudgets(c.opt.SendBuffer, c.opt.ReceiveBuffer)
	})
}

// SetWriteBuffer bounds the bytes that Write copies before it blocks.
func (c *Conn) SetWriteBuffer(bytes int) error {
	return c.setting(func() {
		c.opt.SendBuffer = max(0, bytes)
		c.m.SetBudgets(c.opt.SendBuffer, c.opt.ReceiveBuffer)
	})
}

// setting changes a property of a connection that is not closed.
func (c *Conn) setting(change func()) error {
	c.mu.Lock()
	defer c.unlock()
	if c.closed {
		return c.opError("set", net.ErrClosed)
	}
	change()
	return nil
}

// SetKeepAlive and SetKeepAlivePeriod control TCP's own keepalive; SDP has no
// messages for it.
func (c *Conn) SetKeepAlive(on bool) error { // [SDP-14.3-1] [SDP-14.3-2] [D-77]
	return c.opError("set", c.sockopt(func(fd uintptr) error { return setKeepAlive(fd, on) }))
}

// SetKeepAlivePeriod sets the period of TCP's keepalive.
func (c *Conn) SetKeepAlivePeriod(d time.Duration) error {
	return c.opError("set", c.sockopt(func(fd uintptr) error { return setKeepAlivePeriod(fd, d) }))
}

// sockopt calls f with the descriptor of the TCP socket.
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

// SetNoDelay does nothing: messages are never held back to be filled, only
// small writes that wait for credit travel together.
func (c *Conn) SetNoDelay(bool) error { return nil } // [D-78]

// SetPolicies changes the policies of the two halves.
func (c *Conn) SetPolicies(send, recv Policy) {
	c.mu.Lock()
	defer c.unlock()
	c.exec(c.m.SetPolicy(c.now(), sdpcore.Policy(send), sdpcore.Policy(recv), c.room()))
}

// SetThresholds changes Options.SendThreshold and RecvThreshold of this connection.
func (c *Conn) SetThresholds(send, recv int) {
	c.mu.Lock()
	defer c.unlock()
	c.exec(c.m.SetThresholds(c.now(), threshold(send), recv, c.room()))
}

// RequestPeerBufferSize asks the peer to make its Private Buffers n bytes each.
// It reports whether the peer is asked.
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

// CloseWrite ends the outgoing stream: written bytes are delivered, then the peer reads io.EOF.
// Reading goes on. If the connection ended by an abort, or before all bytes were sent, CloseWrite
// returns the cause.
func (c *Conn) CloseWrite() error { // [SDP-4.1-3] [SDP-8.2.1-1] [SDP-8.2.1-22]
	c.mu.Lock()
	defer c.unlock()
	if c.closed {
		return c.opError("close", net.ErrClosed)
	}
	c.exec(c.m.CloseWrite(c.now(), c.room()))
	c.look() // what has come may be the end
	return c.opError("close", c.lost())
}

// CloseRead ends reading. Data that comes afterwards resets the connection, as
// with TCP.
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

// Close ends both directions. Blocked calls return. Close waits until the peer's TCP has the
// written bytes, see SetLinger, so that a program may end afterwards as after Close of a TCP
// connection. It returns an error if they were not delivered: that of a deadline if the time was
// too short, otherwise the cause of the connection's end. After an AbortConn of the peer it returns
// ErrReset whatever was delivered.
func (c *Conn) Close() error { // [SDP-8.2.1-5] [SDP-8.2.1-7] [SDP-8.2.1-22]
	c.mu.Lock()
	if c.closed {
		c.unlock()
		return c.opError("close", net.ErrClosed)
	}
	c.closed = true
	linger := c.linger
	c.closing = linger != 0 // or it would wait for the end of the stream
	c.wd.set(longAgo)       // the reads are ended by the machine
	if linger == 0 {
		c.exec(c.m.Abort(c.now(), sdpcore.ErrClosed, c.room()))
	} else {
		c.exec(c.m.CloseRead(c.now(), false, c.room()))
		c.exec(c.m.CloseWrite(c.now(), c.room()))
	}
	c.alarm.close = c.now() + defaultLingerTimeout
	c.look() // the DisConn has gone by now, most likely
	limit := linger
	if linger < 0 {
		limit = c.closeWithin
	}
	soon := linger != 0 && c.send.ended // TCP has all of it
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

// endSoon ends what Close may end without a wait to speak of. Where the peer answers
// at once, its DisConn and the end of its stream come within a few microseconds, and
// are better received here than by goroutines that are woken for them. With answer
// the peer's DisConn is waited for, for a little longer than its TCP takes to
// acknowledge ours.
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

// awaitDelivery waits until the peer's TCP has all written bytes and the DisConn. If the process
// ended before, unread arrivals such as credit would reset the connection, and the bytes that have
// not left by then would be lost.
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
	if sock.Soon(known) { // the peer's acknowledgement is on its way, most of the time
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

// napping is how many calls of Close nap, and maxNapping how many may: each keeps a
// thread meanwhile.
var napping atomic.Int32

const maxNapping = 4

// nap sleeps for less than a millisecond, the shortest time of a timer in an otherwise idle
// process. It returns false if the system cannot.
func nap(d time.Duration) bool {
	defer napping.Add(-1)
	if napping.Add(1) > maxNapping || !attend.CanNap {
		return false
	}
	attend.Nap(d)
	return true
}

// lost returns why bytes that were written will not be delivered, or nil.
func (c *Conn) lost() error {
	if err := c.m.WriteErr(); err != nil {
		return err
	}
	if c.m.Dead() && c.drv.left || c.m.Finished() && c.released && !c.send.ended && c.send.last == 0 {
		return ErrReset
	}
	return nil
}

// delivered reports whether the fate of the written bytes is known, and the error if they were
// lost. Call it after the stream was handed to TCP.
func (c *Conn) delivered() (known bool, err error) {
	c.mu.Lock()
	defer c.unlock()
	if err := c.lost(); err != nil || c.m.Dead() {
		return true, err
	}
	left := c.qp.Undelivered()
	select {
	case <-c.qp.Ended():
		// The socket may have been closed before it was asked. With both DisConns
		// there the end is graceful [SDP-8.2.1-12]; streamEnded tells of others.
		return c.m.Finished(), nil
	default:
		return left == 0, nil
	}
}

// Abort resets the connection: bytes not yet delivered are dropped.
func (c *Conn) Abort() { // [SDP-8.2.2-5]
	c.mu.Lock()
	defer c.unlock()
	c.closed = true
	c.exec(c.m.Abort(c.now(), sdpcore.ErrClosed, c.room()))
}

// Done returns a channel that is closed when the connection has ended and holds
// nothing any more.
func (c *Conn) Done() <-chan struct{} { return c.gone }
