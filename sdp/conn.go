package sdp

import (
	"errors"
	"io"
	"net"
	"time"

	"viaduct/internal/sdpcore"
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
	// The methods of a Conn are the calls of a program. All else is done by the driver, whether or not
	// a call is in progress. mu of the driver guards all fields.
	driver

	readClosed  bool          // CloseRead was called
	linger      time.Duration // set by SetLinger; negative for the default
	closeWithin time.Duration // time that Close waits by default
}

var (
	_ net.Conn      = (*Conn)(nil)
	_ io.ReaderFrom = (*Conn)(nil)
	_ io.WriterTo   = (*Conn)(nil)
)

// newConn makes the connection of a complete set-up. It handles no arrivals before begin.
func newConn(opt Options, layout sdpwire.Layout, s *setup, p sdpcore.Params) *Conn {
	c := &Conn{linger: -1, closeWithin: defaultCloseTimeout}
	c.driver.init(opt, layout, s, p)
	return c
}

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
	return c.setting(func() error {
		c.calls.rd.set(t)
		return nil
	})
}

// SetWriteDeadline sets the time when waiting writes, and later ones, end with
// os.ErrDeadlineExceeded. A zero t means never. After Close the error matches net.ErrClosed.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	return c.setting(func() error {
		c.calls.wd.set(t)
		return nil
	})
}

// SetLinger sets how long Close waits until the peer's TCP has all written bytes and the end of the
// stream. With sec < 0, the default, Close waits 10 seconds; delivery then continues in the
// background as long as the process runs. With sec > 0, Close waits sec seconds, and then resets
// the connection. With sec = 0, Close drops undelivered bytes and resets the connection at once.
func (c *Conn) SetLinger(sec int) error { // [D-78] [SDP-8.2.1-11]
	return c.setting(func() error {
		c.linger = time.Duration(sec) * time.Second
		return nil
	})
}

// SetReadBuffer limits the received bytes held in addition to the Private Buffers. Bytes held
// already are not dropped. A negative number counts as 0.
func (c *Conn) SetReadBuffer(bytes int) error { // [D-79]
	return c.setting(func() error {
		c.opt.ReceiveBuffer = max(0, bytes)
		c.m.SetBudgets(c.calls.room, c.opt.ReceiveBuffer)
		return nil
	})
}

// SetWriteBuffer limits the bytes that Write copies before it blocks. Bytes copied already are not
// affected. A negative number counts as 0.
func (c *Conn) SetWriteBuffer(bytes int) error {
	return c.setting(func() error {
		c.calls.room = max(0, bytes)
		c.m.SetBudgets(c.calls.room, c.opt.ReceiveBuffer)
		return nil
	})
}

// setting calls change with mu held, and returns its error. It returns net.ErrClosed if the
// connection is closed.
func (c *Conn) setting(change func() error) error {
	c.mu.Lock()
	defer c.unlock()
	if c.closed {
		return c.opError("set", net.ErrClosed)
	}
	return c.opError("set", change())
}

// SetKeepAlive switches TCP's keepalive on or off; SDP has no messages for it. It returns
// ErrUnsupported on systems other than Linux.
func (c *Conn) SetKeepAlive(on bool) error { // [SDP-14.3-1] [SDP-14.3-2] [D-77]
	return c.setting(func() error {
		return sockopt(c.qp, func(fd uintptr) error { return setKeepAlive(fd, on) })
	})
}

// SetKeepAlivePeriod sets the period of TCP's keepalive, rounded up to seconds. It returns
// ErrUnsupported on systems other than Linux.
func (c *Conn) SetKeepAlivePeriod(d time.Duration) error {
	return c.setting(func() error {
		return sockopt(c.qp, func(fd uintptr) error { return setKeepAlivePeriod(fd, d) })
	})
}

// sockopt calls f with the descriptor of the TCP socket.
func sockopt(qp *iwarp.QueuePair, f func(fd uintptr) error) error {
	raw, err := qp.SyscallConn()
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
