package testkit

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// DefaultWindow is the number of bytes held by a direction of a [Pipe] before Write blocks. Real
// connections have socket buffers for the same purpose.
const DefaultWindow = 256 << 10

// A Conn is an end of an in-memory stream: a [net.Conn] with the methods CloseRead and CloseWrite
// of a [net.TCPConn]. A Conn is safe for concurrent use.
//
// After Close its methods return [net.ErrClosed]. Write returns [syscall.EPIPE] if the peer has
// stopped reading. Read and Write return [syscall.ECONNRESET] after a reset, and
// [os.ErrDeadlineExceeded] after their deadline.
type Conn struct {
	in, out *stream
	name    string

	mu     sync.Mutex
	closed bool
}

var _ net.Conn = (*Conn)(nil)

// Pipe returns the two ends of an in-memory stream without faults.
func Pipe() (a, b *Conn) { return PipeSize(DefaultWindow) }

// PipeSize is [Pipe] with the given window for both directions. window is in bytes and must be at
// least 1.
func PipeSize(window int) (a, b *Conn) {
	ab, ba := newStream(window), newStream(window)
	return &Conn{in: ba, out: ab, name: "a"}, &Conn{in: ab, out: ba, name: "b"}
}

// Fault adds faults to the bytes c sends from now on. The offsets in faults count from the first
// byte ever sent by c.
func (c *Conn) Fault(f ...Fault) {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	for _, f := range f {
		f(c.out)
	}
	c.out.wake.Broadcast()
}

// Resume ends a stall made by [StallAfter] in the bytes sent by c.
func (c *Conn) Resume() {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	c.out.stallAt = never
	c.out.wake.Broadcast()
}

// Sent returns the number of bytes sent by c, including bytes lost to a fault.
func (c *Conn) Sent() int64 {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	return c.out.written
}

// Read reads bytes the peer sent.
func (c *Conn) Read(p []byte) (int, error) { return c.in.read(p) }

// Write sends p. It blocks while the window is full.
func (c *Conn) Write(p []byte) (int, error) { return c.out.write(p) }

// Close ends both directions: the peer reads the remaining bytes and then io.EOF. A second Close
// returns net.ErrClosed.
func (c *Conn) Close() error {
	c.mu.Lock()
	again := c.closed
	c.closed = true
	c.mu.Unlock()
	if again {
		return net.ErrClosed
	}
	c.out.finish(io.EOF, net.ErrClosed)
	c.in.abandon()
	return nil
}

// CloseWrite ends the direction from c to the peer. The peer reads the remaining bytes and then
// io.EOF.
func (c *Conn) CloseWrite() error {
	c.out.finish(io.EOF, syscall.EPIPE)
	return nil
}

// CloseRead ends the direction from the peer to c. Later Writes of the peer fail, and Read of c
// returns io.EOF.
func (c *Conn) CloseRead() error {
	c.in.shut()
	return nil
}

// Reset ends both directions at once. Unread bytes are lost, as after a TCP RST.
func (c *Conn) Reset() {
	c.out.reset()
	c.in.reset()
}

// LocalAddr returns an address of network "mem".
func (c *Conn) LocalAddr() net.Addr { return memAddr(c.name) }

// RemoteAddr returns an address of network "mem".
func (c *Conn) RemoteAddr() net.Addr {
	if c.name == "a" {
		return memAddr("b")
	}
	return memAddr("a")
}

// SetDeadline sets the deadlines of Read and of Write.
func (c *Conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline sets the time after which Read fails.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.in.setDeadline(&c.in.readBy, t) }

// SetWriteDeadline sets the time after which Write fails.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.out.setDeadline(&c.out.writeBy, t) }

type memAddr string

func (memAddr) Network() string  { return "mem" }
func (a memAddr) String() string { return string(a) }

// A stream is a direction of a Pipe. mu guards all fields.
type stream struct {
	mu   sync.Mutex
	wake sync.Cond // signalled at every change of the stream

	buf     []byte // sent and not yet read
	window  int
	written int64 // total of bytes taken from the writer
	taken   int64 // total of bytes given to the reader

	readErr  error // error of Read once buf is empty
	writeErr error // error of Write
	readBy   deadline
	writeBy  deadline

	faults
}

func newStream(window int) *stream {
	s := &stream{window: window, faults: noFaults()}
	s.wake.L = &s.mu
	return s
}

// available returns the number of bytes Read can return now: none after the offset of StallAfter.
func (s *stream) available() int {
	n := int64(len(s.buf))
	return int(max(0, min(n, s.stallAt-s.taken)))
}

func (s *stream) read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case s.readErr == net.ErrClosed || s.readErr == syscall.ECONNRESET:
			return 0, s.readErr
		case s.readBy.passed():
			return 0, os.ErrDeadlineExceeded
		case len(p) == 0:
			return 0, nil
		case s.available() > 0:
			n := copy(p, s.buf[:min(s.available(), s.pieceLocked(len(p)))])
			s.buf = s.buf[n:]
			s.taken += int64(n)
			s.wake.Broadcast()
			return n, nil
		case s.readErr != nil && len(s.buf) == 0:
			return 0, s.readErr
		}
		s.wake.Wait()
	}
}

func (s *stream) write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	done := 0
	for {
		switch {
		case s.writeErr != nil:
			return done, s.writeErr
		case s.writeBy.passed():
			return done, os.ErrDeadlineExceeded
		case done == len(p):
			return done, nil
		}
		if room := s.window - len(s.buf); room > 0 {
			n := min(room, len(p)-done)
			s.takeLocked(p[done : done+n])
			done += n
			s.wake.Broadcast()
			continue
		}
		s.wake.Wait()
	}
}

// finish ends the direction from the writer's side, with the errors Read and Write return from now
// on.
func (s *stream) finish(readErr, writeErr error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.readErr == nil {
		s.readErr = readErr
	}
	if s.writeErr == nil || writeErr == net.ErrClosed {
		s.writeErr = writeErr
	}
	s.wake.Broadcast()
}

// abandon ends the direction from the reader's side. Read returns an error afterwards.
func (s *stream) abandon() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readErr = net.ErrClosed
	s.buf = nil
	if s.writeErr == nil {
		s.writeErr = syscall.EPIPE
	}
	s.wake.Broadcast()
}

// shut is abandon for CloseRead: the reader's Conn stays open.
func (s *stream) shut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.buf = nil
	if s.readErr == nil {
		s.readErr = io.EOF
	}
	if s.writeErr == nil {
		s.writeErr = syscall.EPIPE
	}
	s.wake.Broadcast()
}

func (s *stream) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resetLocked()
}

func (s *stream) resetLocked() {
	s.buf = nil
	if s.readErr != net.ErrClosed {
		s.readErr = syscall.ECONNRESET
	}
	if s.writeErr != net.ErrClosed {
		s.writeErr = syscall.ECONNRESET
	}
	s.wake.Broadcast()
}

func (s *stream) setDeadline(d *deadline, t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	d.set(t, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.wake.Broadcast()
	})
	s.wake.Broadcast()
	return nil
}

// A deadline is a time with a timer to wake the waiting goroutines. mu of the stream guards the
// deadline.
type deadline struct {
	at    time.Time
	timer *time.Timer
}

func (d *deadline) passed() bool { return !d.at.IsZero() && !time.Now().Before(d.at) }

func (d *deadline) set(t time.Time, wake func()) {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	d.at = t
	if !t.IsZero() {
		if wait := time.Until(t); wait > 0 {
			d.timer = time.AfterFunc(wait, wake)
		}
	}
}
