package sdp

import (
	"net"
	"time"

	"viaduct/internal/attend"
	"viaduct/internal/sdpcore"
	"viaduct/internal/sock"
)

// The ends tell how far the end of a connection has come.
type ends struct {
	closed  bool          // Close was called
	cut     bool          // the stream was reset before the peer had acknowledged everything
	flushed chan struct{} // closed when TCP has the DisConn, or will never get it
	gone    chan struct{} // closed when the connection has ended and all its resources are released
	closing bool          // Close will release the stream itself, if the stream has ended in order
	letGo   func()        // releases the stream; set for Close to call, if closing is set
}

func (e *ends) init() {
	e.flushed, e.gone = make(chan struct{}), make(chan struct{})
}

// flush records that TCP has all of the stream, or never will.
func (e *ends) flush() {
	select {
	case <-e.flushed:
	default:
		close(e.flushed)
	}
}

// takeOver returns the function that releases the stream, or nil if the stream has not ended in
// order. In that case Close no longer releases the stream.
func (e *ends) takeOver() (letGo func()) {
	letGo = e.letGo
	e.closing, e.letGo = false, nil
	return letGo
}

// await waits, at most limit, until the peer's TCP has all written bytes and the DisConn. delivered
// reports whether the fate of the bytes is known, and the error if bytes were lost. If the process
// ended earlier, unread arrivals such as credit would reset the connection, and unsent bytes would
// be lost.
func (e *ends) await(limit time.Duration, delivered func() (known bool, err error)) error {
	var err error
	known := func() (done bool) {
		done, err = delivered()
		return done
	}
	select {
	case <-e.flushed:
		if known() {
			return err
		}
	default:
	}
	late := time.NewTimer(limit)
	defer late.Stop()
	select {
	case <-e.flushed:
	case <-late.C:
		return errDeadline
	}
	if sock.Soon(known) { // the peer's acknowledgement usually arrives at once
		return err
	}
	for d := 50 * time.Microsecond; !known(); d = min(2*d, 10*time.Millisecond) {
		if d < time.Millisecond && attend.TryNap(d) {
			continue
		}
		select {
		case <-e.gone:
		case <-late.C:
			return errDeadline
		case <-time.After(d):
		}
	}
	return err
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
// connection. If the process exits before Done reports the end, the peer may find a reset after the
// last byte. If the bytes were not delivered, Close returns an error: os.ErrDeadlineExceeded if the
// time was too short, otherwise the cause of the end. After an AbortConn of the peer, Close returns
// ErrReset whatever was delivered. A second Close returns net.ErrClosed.
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
	if err := c.ends.await(limit, c.delivered); err != errDeadline || linger < 0 {
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
			if c.state == streamReleased || c.lost() != nil {
				return true
			}
			if acked.IsZero() && c.recv.in.stream.Undelivered() == 0 {
				acked = time.Now()
			}
			return !acked.IsZero() && time.Since(acked) > answerTime
		})
	}
	c.mu.Lock()
	letGo := c.takeOver()
	c.unlock()
	switch {
	case letGo == nil:
	case (*c.stream.Load()).CloseSoon():
		c.mu.Lock()
		c.drained()
		c.unlock()
	default:
		attend.Go(c.pooled, letGo)
	}
}

// lost returns the reason why written bytes will not be delivered, or nil.
func (d *driver) lost() error {
	if err := d.m.WriteErr(); err != nil {
		return err
	}
	if d.m.Dead() && d.cut || d.m.Finished() && d.state == streamReleased && !d.send.ended && d.send.last == 0 {
		return ErrReset
	}
	return nil
}

// delivered reports whether the fate of the written bytes is known, and the error if bytes were
// lost. Call delivered after the stream was handed to TCP.
func (d *driver) delivered() (known bool, err error) {
	d.mu.Lock()
	defer d.unlock()
	if err := d.lost(); err != nil || d.m.Dead() {
		return true, err
	}
	left := d.recv.in.stream.Undelivered()
	select {
	case <-d.qp.Ended():
		// The socket may have been closed before Undelivered was called. If both DisConns were
		// exchanged, the end is graceful [SDP-8.2.1-12]; streamEnded reports other ends.
		return d.m.Finished(), nil
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
