package sdp

import (
	"context"
	"errors"
	"io"
	"net"

	"viaduct/internal/sdpcore"
)

// A Transfer is a read or write that continues after the call of StartRead or StartWrite. The slice
// is borrowed until the transfer has ended. The methods are safe for concurrent use.
type Transfer struct { // [D-40]
	c    *Conn
	o    *op
	done chan struct{}
	n    int
	err  error
}

// StartWrite begins to send p, which belongs to the connection until Wait returns. Several writes
// may be under way, and the peer can then fetch all at once. The error matches net.ErrClosed after
// Close.
func (c *Conn) StartWrite(p []byte) (*Transfer, error) {
	c.mu.Lock()
	defer c.unlock()
	if c.closed {
		return nil, c.opError("write", net.ErrClosed)
	}
	t := c.startTransfer(p, false)
	if len(p) > 0 {
		c.calls.writes = append(c.calls.writes, t.o)
		c.exec(c.m.Write(c.now(), t.o.id, len(p), false, c.room()))
	}
	c.look()
	return t, nil
}

// StartRead begins to read at least one byte into p, which belongs to the connection until Wait
// returns. Meanwhile p may be offered to the peer for RDMA Write. The error matches net.ErrClosed
// after Close.
func (c *Conn) StartRead(p []byte) (*Transfer, error) {
	c.mu.Lock()
	defer c.unlock()
	if c.closed {
		return nil, c.opError("read", net.ErrClosed)
	}
	t := c.startTransfer(p, true)
	if len(p) > 0 {
		c.calls.reads = append(c.calls.reads, t.o)
		c.exec(c.m.Read(c.now(), t.o.id, len(p), false, c.room()))
	}
	return t, nil
}

func (c *Conn) startTransfer(p []byte, read bool) *Transfer {
	o := c.calls.begin(p, read)
	t := &Transfer{c: c, o: o, done: make(chan struct{})}
	o.onDone = func() {
		t.n, t.err = o.n, o.err
		if read {
			c.urg.read(o.n)
		}
		close(t.done)
	}
	if len(p) == 0 {
		c.calls.end(o)
	}
	return t
}

// Done returns a channel that is closed when the transfer has ended.
func (t *Transfer) Done() <-chan struct{} { return t.done }

// Cancel asks to end the transfer early. The transfer then ends with the exact count of bytes
// moved, possibly all of them. An ended transfer is not affected.
func (t *Transfer) Cancel() {
	t.c.mu.Lock()
	defer t.c.unlock()
	if t.o.state != opDone && !t.o.cancel {
		t.c.cancel(t.o)
	}
}

// Wait waits for the end of the transfer and returns the count of bytes. The error is nil, io.EOF,
// or the reason for a short count. If ctx ends first, Wait cancels the transfer, waits for its end,
// and returns the cause of ctx with the count. The deadlines of the connection do not apply.
func (t *Transfer) Wait(ctx context.Context) (int, error) {
	name := "write"
	if t.o.read {
		name = "read"
	}
	cause := t.c.until(ctx, t.c.calls.half(t.o), t.o)
	if cause != nil {
		t.Cancel()
		<-t.done
	}
	switch {
	case t.err == nil, t.o.read && t.n > 0:
		return t.n, nil
	case t.err == io.EOF:
		return t.n, io.EOF
	case errors.Is(t.err, sdpcore.ErrCancelled) && cause != nil:
		return t.n, t.c.opError(name, cause)
	case errors.Is(t.err, sdpcore.ErrCancelled):
		return t.n, t.c.opError(name, context.Canceled)
	}
	return t.n, t.c.opError(name, t.err)
}
