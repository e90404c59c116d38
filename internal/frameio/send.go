package frameio

import (
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"viaduct/internal/counter"
	"viaduct/internal/perturb"
	"viaduct/internal/regmem"
	"viaduct/internal/sock"
)

// States of the send role.
const (
	idle  = iota // nothing sends and nothing is known to be queued
	busy         // a goroutine has the role
	again        // a goroutine has the role and must check the queue once more
	dead         // the connection has ended; nobody takes the role any more
)

// turns is the number of batches a caller of Kick sends before another goroutine takes over, so
// that the caller is not occupied with the frames of others.
const turns = 8

// A sender is the sending half of a Conn.
type sender struct {
	state     atomic.Int32
	finishing atomic.Bool // Shutdown was called

	batches counter.Counter // incremented by every write; the holder of the role writes it

	// The holder of the role owns the following fields. mu is held while the batch is filled. mu is
	// also held from the write of the batch until Sent has been called, so that Quiesce never meets
	// a frame written but not yet reported by Sent. mu is free while the holder waits for the
	// socket, so that Relinquish and Quiesce can access the batch.
	mu       perturb.Mutex
	batch    *Batch
	reserved int                // number of bytes of the ring that Frame has returned
	finished bool               // the direction was ended
	closed   bool               // the descriptor is closed; guarded by mu
	waiting  bool               // the holder waits for the socket; guarded by mu
	reset    bool               // a write has failed because the peer reset the stream; guarded by mu
	held     []*regmem.Registry // registries that list this sender as a holder

	parked  atomic.Bool   // a poll may resume the role; see park
	watched atomic.Bool   // watch runs
	parks   atomic.Uint32 // number of parks so far
	looks   uint32        // att.Looks when the role last waited; owned by the holder of the role

	free bool          // the sender has ended and no goroutine has the role; guarded by mu
	left chan struct{} // closed when free is set; nil unless a goroutine has waited; guarded by mu
}

// try writes as much of the batch as the socket takes. If the socket is full, the error is
// ErrWouldBlock. The caller then waits for room, and deregistrations may release the batch's pins
// meanwhile.
func (c *Conn) try() error {
	t := &c.tx
	t.mu.Lock()
	defer t.mu.Unlock()
	err := c.writeLocked()
	switch err {
	case nil:
		c.sentLocked()
	case sock.ErrWouldBlock:
		t.holdLocked()
	}
	return err
}

func (c *Conn) writeLocked() error {
	if c.tx.closed {
		return net.ErrClosed
	}
	if c.tx.batch.gone {
		return regmem.ErrFault
	}
	c.tx.batches.Add(1)
	err := c.writeBatch(c.sock.Load())
	if err != nil && errors.Is(err, syscall.ECONNRESET) {
		c.tx.reset = true
	}
	return err
}

// Kick starts sending if frames may be queued. It does not wait for the peer. It does nothing after
// the end of the sending direction.
func (c *Conn) Kick() {
	for {
		perturb.Point()
		switch s := c.tx.state.Load(); s {
		case idle:
			if c.tx.state.CompareAndSwap(idle, busy) {
				c.drain()
				return
			}
		case busy:
			if c.tx.state.CompareAndSwap(busy, again) {
				return
			}
		default: // again, dead
			return
		}
	}
}

// drain sends until the queue is empty. The caller has the role. drain releases the role or passes
// it to a goroutine.
func (c *Conn) drain() {
	if c.take(); c.sock.Load() == nil {
		// Write may block on a portable stream.
		go c.sendLoop()
		return
	}
	c.drainOn()
}

// drainOn is drain for a Conn with a socket.
func (c *Conn) drainOn() {
	t := &c.tx
	for n := 0; ; n++ {
		last := t.finishing.Load()
		more, err := c.sendBatch(n < turns)
		if !more {
			c.finish(last)
			if c.giveBack() {
				return
			}
			continue
		}
		if n >= turns { // rounds without a frame count too
			go c.sendLoop()
			return
		}
		if err != nil {
			c.sendLater(err)
			return
		}
	}
}

// sendLater passes the role on after a write failed with err. If the socket was full, either the
// role is parked or a goroutine waits for room. After any other error a goroutine ends the
// direction.
func (c *Conn) sendLater(err error) {
	switch {
	case err != sock.ErrWouldBlock:
		go c.sendFailed(err)
	case !c.park():
		go c.sendLoop()
	}
}

// SendNow sends one frame past the queue, if the send role is free, and reports whether it did.
// Instead of the protocol's Fill, fill builds the frame, in memory Frame returns. SendNow returns
// false, and sends nothing, if the role is taken, if fill returned false, on a portable stream, and
// after Shutdown or Close. fill runs in the send role, at most once, and obeys the rules for
// methods of a Protocol. Sent is called, before SendNow returns or later, when the kernel or the
// peer has the whole frame. SendNow does not wait for the peer. Use SendNow for a short message
// when nothing else is queued.
func (c *Conn) SendNow(fill func() bool) bool {
	t := &c.tx
	perturb.Point()
	if c.sock.Load() == nil || t.finishing.Load() || !t.state.CompareAndSwap(idle, busy) {
		return false
	}
	ok, err := c.sendOnly(fill)
	if err != nil {
		c.sendLater(err)
	} else if !c.giveBack() {
		c.drainOn()
	}
	return ok
}

// Frame returns n bytes for the frame of a SendNow; n is from 1 to MaxHeader. The bytes are in the
// ring read by the peer, if there is a ring with enough room, and otherwise in a batch. Their
// contents are undefined and may change, because the peer can write to the ring. Only the fill
// function of a SendNow may call Frame, and only once.
func (c *Conn) Frame(n int) []byte {
	t := &c.tx
	if p := c.sock.Load().Reserve(n); p != nil {
		t.reserved = n
		return p
	}
	t.batch = batches.Get().(*Batch)
	return t.batch.Header(n)
}

// sendOnly sends one frame from fill. ok is false if no frame was sent.
func (c *Conn) sendOnly(fill func() bool) (ok bool, err error) {
	t := &c.tx
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.batch != nil || t.finished || t.closed || c.closing.Load() {
		return false, nil
	}
	t.reserved = 0
	if !fill() {
		if t.batch != nil {
			t.dropLocked()
		}
		return false, nil
	}
	if t.reserved > 0 {
		t.batches.Add(1)
		c.sock.Load().Commit(t.reserved)
		c.proto.Sent()
		return true, nil
	}
	t.batch.close()
	if err = c.writeLocked(); err == nil {
		c.sentLocked()
	}
	return true, err
}

// sendBatch creates a batch if there is none, unless the queue is empty. With write, sendBatch
// writes the batch at once. more reports whether a batch or queued frames are left to send.
func (c *Conn) sendBatch(write bool) (more bool, err error) {
	t := &c.tx
	t.mu.Lock()
	defer t.mu.Unlock()
	if more = c.fillLocked(); !more || !write {
		return more, nil
	}
	if err = c.writeLocked(); err != nil {
		return true, err
	}
	more = t.batch.more
	c.sentLocked()
	return more, nil
}

// sendLoop is drain for a goroutine free to wait for the socket. There may be a batch already.
func (c *Conn) sendLoop() {
	t := &c.tx
	for {
		if !c.fill() {
			c.deliver() // Fill may have completed requests that need no bytes
			if c.giveBack() {
				return
			}
			continue
		}
		var err error
		if s := c.sock.Load(); s != nil {
			for err = c.try(); err == sock.ErrWouldBlock; err = c.try() {
				s.WaitWritable()
			}
			t.release()
		} else if err = c.writePortable(); err == nil {
			t.mu.Lock()
			c.sentLocked()
			t.mu.Unlock()
		}
		if err != nil {
			c.sendFailed(err)
			return
		}
		c.deliver()
	}
}

func (c *Conn) deliver() {
	if c.deliverer != nil {
		c.deliverer.Deliver()
	}
}

// fill creates a batch, unless a batch exists or nothing is queued, and reports whether there is a
// batch to write.
func (c *Conn) fill() bool {
	last := c.tx.finishing.Load()
	c.tx.mu.Lock()
	more := c.fillLocked()
	c.tx.mu.Unlock()
	if !more {
		c.finish(last)
	}
	return more
}

func (c *Conn) fillLocked() bool {
	t := &c.tx
	if t.batch == nil {
		t.batch = batches.Get().(*Batch)
	}
	if t.batch.bytes == 0 && !t.finished && !c.closing.Load() {
		c.proto.Fill(t.batch)
		t.batch.close()
	}
	return t.batch.bytes > 0 && !c.closing.Load()
}

// finish ends the direction if Shutdown was called and nothing is left to send. last is true if
// Shutdown was called before the queue was found empty. Without last, a frame queued before
// Shutdown might still be in the queue.
func (c *Conn) finish(last bool) {
	t := &c.tx
	if last && !t.finished && (t.batch == nil || t.batch.bytes == 0) {
		c.endWrite()
	}
}

// endWrite ends the sending direction, unless already ended. The caller has the role.
func (c *Conn) endWrite() {
	if c.tx.finished {
		return
	}
	c.tx.finished = true
	if s := c.sock.Load(); s != nil {
		s.CloseWrite()
	} else if cw, ok := c.nc.(interface{ CloseWrite() error }); ok {
		cw.CloseWrite()
	}
}

// giveBack releases the role. It returns false if a frame was queued meanwhile; the caller then
// still has the role.
func (c *Conn) giveBack() bool {
	t := &c.tx
	t.drop()
	if c.closing.Load() {
		t.die()
		return true
	}
	perturb.Point()
	if t.state.CompareAndSwap(busy, idle) {
		perturb.Point()
		if c.closing.Load() && t.state.CompareAndSwap(idle, dead) {
			t.die()
		}
		return true
	}
	t.state.Store(busy)
	return false
}

// sentLocked calls Sent after the last byte of the batch was written, and empties the batch. If
// Fill has left no frames, sentLocked frees the batch.
func (c *Conn) sentLocked() {
	t := &c.tx
	t.waiting = false
	if t.batch.more {
		t.batch.reset()
	} else {
		t.dropLocked()
	}
	c.proto.Sent()
}

// drop frees the batch, if any. Only the holder of the role creates and drops batches.
func (t *sender) drop() {
	if t.batch == nil {
		return
	}
	t.mu.Lock()
	t.dropLocked()
	t.mu.Unlock()
}

func (t *sender) dropLocked() {
	b := t.batch
	t.batch = nil
	b.reset()
	batches.Put(b)
}

// sendFailed ends the send role for good. It also ends the sending direction, so that a peer with
// an intact stream is notified at once if our memory has faulted. Arrived bytes are handled first,
// because the peer may have sent a reason before closing the connection.
func (c *Conn) sendFailed(err error) {
	t := &c.tx
	t.drop()
	t.state.Store(dead)
	c.hearOut()
	c.fail(err)
	c.endWrite()
	if sf, ok := c.proto.(SendFailer); ok && !c.closing.Load() {
		sf.SendFailed(err)
	}
	t.die()
}

// lastWords is the time the receiver continues after a failed write, because the peer may have sent
// a reason before closing. A portable stream may need the time to deliver. The limit matters if the
// peer sends without end.
const lastWords = 250 * time.Millisecond

func (c *Conn) hearOut() {
	if c.sock.Load() == nil {
		select {
		case <-c.over():
		case <-time.After(lastWords):
		}
		return
	}
	for end := time.Now().Add(lastWords); c.att.Receive() && time.Now().Before(end); {
	}
}

func (t *sender) die() {
	t.state.Store(dead)
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.free && t.left != nil {
		close(t.left)
	}
	t.free = true
}

// stop makes the role unavailable. If a goroutine has the role, it ends soon, because the stream is
// closed.
func (t *sender) stop() {
	if t.state.CompareAndSwap(idle, dead) {
		t.die()
	}
}

func (t *sender) waitIdle() {
	t.mu.Lock()
	if t.free {
		t.mu.Unlock()
		return
	}
	if t.left == nil {
		t.left = make(chan struct{})
	}
	left := t.left
	t.mu.Unlock()
	<-left
}

// flats is a pool of buffers for portable streams. A portable stream gets one Write per batch, so
// that a record layer such as TLS makes large records.
var flats = sync.Pool{New: func() any { return new(flat) }}

type flat [aheadBytes + slabSize + maxFrame]byte

// writePortable writes the batch through the net.Conn. It copies the bytes first, because the write
// may wait for the peer and no memory may stay pinned meanwhile.
func (c *Conn) writePortable() error {
	if p := c.tx.single(); p != nil {
		return c.writeAll(p)
	}
	f := flats.Get().(*flat)
	defer flats.Put(f)
	p, err := c.tx.flatten(f[:0])
	if err != nil {
		return err
	}
	return c.writeAll(p)
}

// single returns the bytes of the batch without a copy if the batch is a single piece of the slab,
// otherwise nil.
func (t *sender) single() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	if v := t.batch.vecs; len(v) == 1 && t.batch.inSlab(v[0]) {
		return v[0]
	}
	return nil
}

// flatten appends the batch to p and releases the pins. An error means unmapped memory in the
// batch.
func (t *sender) flatten(p []byte) ([]byte, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, v := range t.batch.vecs {
		n := len(p)
		// A frame longer than the frames of this module's protocols needs more room.
		if cap(p)-n < len(v) {
			p = slices.Grow(p, len(v))
		}
		p = p[:n+len(v)]
		if err := regmem.Copy(p[n:], v, t.batch.guarded); err != nil {
			return nil, err
		}
	}
	// From here on, the consumer may reuse the memory of the vectors.
	clear(t.batch.vecs)
	t.batch.vecs = t.batch.vecs[:0]
	t.batch.release()
	return p, nil
}

func (c *Conn) writeAll(p []byte) error {
	n, err := c.nc.Write(p)
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	return err
}

// holdLocked registers the sender as a holder of the batch's pins during the wait for the socket.
// The caller holds mu.
func (t *sender) holdLocked() {
	if t.waiting {
		return
	}
	t.waiting = true
	var last *regmem.Registry
	for _, ref := range t.batch.pins {
		if g := regmem.RegistryOf(ref); g != nil && g != last {
			if !slices.Contains(t.held, g) {
				t.held = append(t.held, g)
				g.AddHolder(t)
			}
			last = g
		}
	}
	for _, ref := range t.batch.pins {
		if ref.Closing() {
			t.batch.own()
			break
		}
	}
}

// release undoes holdLocked.
func (t *sender) release() {
	t.mu.Lock()
	t.waiting = false
	held := t.held
	t.held = t.held[:0]
	t.mu.Unlock()
	for i, g := range held {
		g.RemoveHolder(t)
		held[i] = nil
	}
}

// Relinquish implements [regmem.Holder]. If the sender waits for the socket, Relinquish copies the
// batch to release the pins.
func (t *sender) Relinquish() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.waiting {
		t.batch.own()
	}
}

// WithSender calls f while no batch is filled or written and Sent is not called. Before f, the
// referenced memory of the current batch is copied. WithSender does not wait for the peer. Methods
// of the protocol must not call WithSender.
func (c *Conn) WithSender(f func()) {
	c.tx.mu.Lock()
	defer c.tx.mu.Unlock()
	if c.tx.batch != nil {
		c.tx.batch.own()
	}
	f()
}

// Quiesce waits for running protocol methods, and copies queued bytes out of registered memory. A
// protocol with a stopped mark, set before the call and checked in every method, does not access
// the consumer's memory after the call. Quiesce does not wait for the peer. Of the protocol's
// methods only Failed may call Quiesce.
func (c *Conn) Quiesce() {
	t := &c.tx
	t.mu.Lock()
	if t.batch != nil {
		t.batch.own()
	}
	t.mu.Unlock()
	c.att.Lock()
	c.att.Unlock() //lint:ignore SA2001 the point is to have waited
}

// writeBatch writes as much of the batch as the socket takes. It returns nil if all was written,
// and sock.ErrWouldBlock if the socket is full.
func (c *Conn) writeBatch(to *sock.Socket) error {
	b := c.tx.batch
	for {
		n, err := b.writeTo(to)
		if err != nil {
			return err
		}
		if b.written(n) {
			return nil
		}
	}
}

// writeTo makes one write call. The error for unmapped memory is EFAULT, whether the kernel or the
// process itself copies the bytes.
func (b *Batch) writeTo(to *sock.Socket) (n int, err error) {
	b.to = to
	if !b.guarded || to.ByKernel() {
		return to.WriteV(b.vecs, b.scratch[:0:maxVecs])
	}
	if regmem.Guard(func() { n, err = to.WriteV(b.vecs, b.scratch[:0:maxVecs]) }) != nil {
		return 0, syscall.EFAULT // the stream ends here, so the number of written bytes does not matter
	}
	return n, err
}
