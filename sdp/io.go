package sdp

import (
	"errors"
	"io"
	"net"
	"sync"

	"viaduct/internal/sdpcore"
	"viaduct/internal/wire/sdpwire"
)

// Read reads at least one byte of the stream, or returns io.EOF at the end. While Read blocks, p
// may be offered to the peer for RDMA Write. p is free when Read returns.
func (c *Conn) Read(p []byte) (int, error) { return c.read(p, false) } // [D-40]

// ReadFull fills p in a single call, like io.ReadFull or MSG_WAITALL. p is never offered for RDMA
// Write. At the end of the stream the error is io.ErrUnexpectedEOF, or io.EOF if no byte was read.
// The count is exact even with an error.
func (c *Conn) ReadFull(p []byte) (int, error) { // [SDP-9.3-15]
	n, err := c.read(p, true)
	switch {
	case n == len(p):
		err = nil
	case n > 0 && err == nil:
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

func (c *Conn) read(p []byte, full bool) (int, error) {
	c.mu.Lock()
	defer c.unlock()
	return c.readLocked(p, full)
}

func (c *Conn) readLocked(p []byte, full bool) (int, error) {
	if err := c.refused("read", &c.calls.rd); err != nil || len(p) == 0 {
		return 0, err
	}
	o := c.calls.begin(p, true)
	c.calls.reads = append(c.calls.reads, o)
	c.exec(c.m.Read(c.now(), o.id, len(p), full, c.room()))
	if o.state == opWaits {
		c.await(o, true)
	}
	return c.readEnded(o, full)
}

// readEnded returns the result of read o, and frees o.
func (c *Conn) readEnded(o *op, full bool) (int, error) {
	n, err := o.n, o.err
	freeOp(o)
	c.urg.read(n)
	if err == nil {
		return n, nil
	}
	if errors.Is(err, sdpcore.ErrCancelled) {
		if n > 0 && !full {
			return n, nil
		}
		return n, c.opError("read", c.readCancelled())
	}
	if n > 0 && !full {
		return n, nil
	}
	if err == io.EOF {
		return n, io.EOF
	}
	if c.closed {
		err = net.ErrClosed
	}
	return n, c.opError("read", err)
}

// refused returns the error of a call on a closed connection or after the deadline, or nil.
func (c *Conn) refused(op string, d *half) error {
	switch {
	case c.closed:
		return c.opError(op, net.ErrClosed)
	case d.passed():
		return c.opError(op, errDeadline)
	}
	return nil
}

// takenAway reports whether Close or Suspend has ended the other calls, so that a cancelled call
// has not timed out.
func (c *Conn) takenAway() bool { return c.closed || c.suspendTo != nil }

// readCancelled returns the reason why a read was cancelled.
func (c *Conn) readCancelled() error {
	if c.takenAway() || c.readClosed {
		return net.ErrClosed
	}
	return errDeadline
}

// Write sends p, and returns when TCP or the peer has the bytes, or the bytes were copied; p is
// free then. Write blocks while more than Options.SendBuffer bytes wait to be sent. With an error,
// the count is the number of bytes that were or will be delivered.
func (c *Conn) Write(p []byte) (int, error) { // [D-32] [D-40] [SDP-4.2-1]
	c.mu.Lock()
	defer c.unlock()
	if err := c.refused("write", &c.calls.wd); err != nil || len(p) == 0 {
		return 0, err
	}
	c.flow.streak = 0
	if c.calls.join(c.m, p) {
		c.look()
		return len(p), nil
	}
	if c.straight(p) {
		return len(p), nil
	}
	return c.write(p, false)
}

// straight writes p without queueing it and without a list of actions, if no other bytes wait and
// there is credit. Otherwise straight sends nothing and returns false. If the result is true, TCP
// has p, or p was copied. Most bytes of a stream go through straight, and the code runs cold after
// each system call, so every instruction counts.
func (c *Conn) straight(p []byte) bool {
	if len(c.calls.writes) > 0 || len(c.calls.ending) > 0 || c.send.busy() ||
		c.state != streamUp || logsMessages(c.opt.Logger) {
		return false
	}
	var msgs [4]sdpwire.Message
	k := c.m.Straight(c.now(), len(p), msgs[:])
	if k == 0 {
		return false
	}
	if sent, inline := c.send.straight(c.recv.in.stream, msgs[:k], p); !sent && !inline {
		o := c.calls.begin(p, false)
		o.n, o.after = len(p), c.send.posted
		c.calls.ending = append(c.calls.ending, o)
		c.await(o, true) // the end of the stream also ends this wait, with all bytes counted
		freeOp(o)
		return true
	}
	if c.m.LowCredit() {
		c.look()
	}
	return true
}

func (c *Conn) write(p []byte, urgent bool) (int, error) {
	o := c.calls.begin(p, false)
	c.calls.writes = append(c.calls.writes, o)
	c.exec(c.m.Write(c.now(), o.id, len(p), urgent, c.room()))
	if o.state == opWaits {
		c.run() // handles completions of messages that went directly to TCP
	}
	if o.state == opWaits {
		c.await(o, true)
	}
	return c.written(o, len(p))
}

// written returns the result of write o of want bytes, and frees o. If o is not done, the bytes of
// o were copied, and the connection keeps o.
func (c *Conn) written(o *op, want int) (int, error) {
	if o.own {
		if o.waited = false; o.state == opDone {
			freeOp(o)
		}
		return want, nil
	}
	n, err := o.n, o.err
	freeOp(o)
	switch {
	case err == nil:
		return n, nil
	case c.takenAway():
		err = net.ErrClosed
	case errors.Is(err, sdpcore.ErrCancelled):
		err = errDeadline
	}
	return n, c.opError("write", err)
}

// Exchange writes req, and then reads at least one byte of the answer into resp. If the modes
// allow, a single message carries the request and the offer of resp for RDMA Write (the Transaction
// mechanism), which saves a message. Exchange suits short requests with long answers, such as reads
// of a file server. While other writes wait, and for an empty slice, Exchange equals Write and then
// Read. Both slices are free when Exchange returns.
func (c *Conn) Exchange(req, resp []byte) (int, error) { // [SDP-9.4-1]
	c.mu.Lock()
	switch {
	case c.closed || c.calls.rd.passed() || c.calls.wd.passed() || len(req) == 0 || len(resp) == 0 || len(c.calls.writes) > 0:
		c.unlock()
		if _, err := c.Write(req); err != nil {
			return 0, err
		}
		return c.Read(resp)
	}
	c.flow.streak = 0
	w, r := c.calls.begin(req, false), c.calls.begin(resp, true)
	c.calls.writes, c.calls.reads = append(c.calls.writes, w), append(c.calls.reads, r)
	c.exec(c.m.Exchange(c.now(), w.id, len(req), r.id, len(resp), c.room()))
	if w.state == opWaits {
		c.await(w, true)
	}
	if _, err := c.written(w, len(req)); err != nil {
		c.cancel(r)
		c.await(r, false)
		freeOp(r)
		c.unlock()
		return 0, err
	}
	defer c.unlock()
	c.await(r, true)
	return c.readEnded(r, false)
}

var copyBuffers = sync.Pool{New: func() any { b := make([]byte, 256<<10); return &b }}

// ReadFrom sends the bytes of r until io.EOF, and returns the number of bytes. io.Copy uses
// ReadFrom.
func (c *Conn) ReadFrom(r io.Reader) (n int64, err error) {
	b := copyBuffers.Get().(*[]byte)
	defer copyBuffers.Put(b)
	for {
		k, rerr := r.Read(*b)
		if k > 0 {
			w, err := c.Write((*b)[:k])
			n += int64(w)
			if err != nil {
				return n, err
			}
		}
		if rerr == io.EOF {
			return n, nil
		}
		if rerr != nil {
			return n, rerr
		}
	}
}

// WriteTo writes the stream to w until the end of the stream, and returns the number of bytes.
// io.Copy uses it.
func (c *Conn) WriteTo(w io.Writer) (n int64, err error) {
	b := copyBuffers.Get().(*[]byte)
	defer copyBuffers.Put(b)
	for {
		k, rerr := c.Read(*b)
		if k > 0 {
			x, err := w.Write((*b)[:k])
			n += int64(x)
			if err != nil {
				return n, err
			}
			if x < k {
				return n, io.ErrShortWrite
			}
		}
		if rerr == io.EOF {
			return n, nil
		}
		if rerr != nil {
			return n, rerr
		}
	}
}
