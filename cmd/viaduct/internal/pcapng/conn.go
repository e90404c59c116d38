package pcapng

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"
)

// ackEvery is the number of bytes in a direction before the capture shows an acknowledgement of the
// other side.
const ackEvery = 256 << 10

// Conn wraps conn to record the traffic, including the set-up of the connection. dialed is true if
// this process opened the connection. If conn is not TCP over IP, Conn returns conn unchanged.
func (c *Capture) Conn(conn net.Conn, dialed bool) net.Conn {
	local, ok1 := addrPort(conn.LocalAddr())
	remote, ok2 := addrPort(conn.RemoteAddr())
	if !ok1 || !ok2 {
		return conn
	}
	return &Conn{Conn: conn, Stream: c.Stream(local, remote, dialed)}
}

// Stream begins a connection of the capture whose data is recorded by calls of the Stream's
// methods, without a [Conn]. dialed is true if local opened the connection.
func (c *Capture) Stream(local, remote netip.AddrPort, dialed bool) *Stream {
	w := &Stream{c: c, local: local, remote: remote}
	// The initial sequence numbers differ, to tell the two sides apart. Their values are arbitrary.
	w.sent, w.got = 1000, 2000
	first := w.seg(dialed, syn, nil)
	first.ack = 0
	c.segment(first)
	w.bump(dialed, 1)
	c.segment(w.seg(!dialed, syn|ack, nil))
	w.bump(!dialed, 1)
	c.segment(w.seg(dialed, ack, nil))
	return w
}

func addrPort(a net.Addr) (netip.AddrPort, bool) {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}, false
	}
	p := t.AddrPort()
	return netip.AddrPortFrom(p.Addr().Unmap().WithZone(""), p.Port()), true
}

// A Conn is a connection with recorded traffic. A Conn has the methods of net.Conn, and the methods
// of net.TCPConn below. These TCP methods return errors.ErrUnsupported if the recorded connection
// lacks the method.
type Conn struct {
	net.Conn
	*Stream
	wmu sync.Mutex // one Write at a time, so that the frames are in the order of the bytes
}

// A Stream is a connection of a capture. The methods are safe for concurrent use.
type Stream struct {
	c             *Capture
	local, remote netip.AddrPort

	mu             sync.Mutex
	sent, got      uint32 // next sequence number out and in; guarded by mu
	unackedOut     int    // bytes since the peer's last acknowledgement; guarded by mu
	unackedIn      int    // bytes since this side's; guarded by mu
	finOut, finIn  bool   // guarded by mu
	reset, aborted bool   // guarded by mu
}

// seg makes the next frame of a direction, with the current sequence numbers.
func (w *Stream) seg(out bool, flags byte, p []byte) segment {
	s := segment{src: w.remote, dst: w.local, seq: w.got, ack: w.sent, flags: flags, payload: p}
	if out {
		s = segment{src: w.local, dst: w.remote, seq: w.sent, ack: w.got, flags: flags, payload: p, out: true}
	}
	return s
}

func (w *Stream) bump(out bool, n int) {
	if out {
		w.sent += uint32(n)
	} else {
		w.got += uint32(n)
	}
}

// Data records bytes of a direction and returns the number of the packet with the first byte.
func (w *Stream) Data(out bool, p []byte) (packet int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(p) > 0 {
		n := min(len(p), maxSegment)
		k := w.c.segment(w.seg(out, ack|psh, p[:n]))
		if packet == 0 {
			packet = k
		}
		w.bump(out, n)
		mine, other := &w.unackedIn, &w.unackedOut
		if out {
			mine, other = other, mine
		}
		*other = 0 // this frame also acknowledged the other direction
		if *mine += n; *mine >= ackEvery {
			*mine = 0
			w.c.segment(w.seg(!out, ack, nil))
		}
		p = p[n:]
	}
	return packet
}

// End records the end of a direction, once.
func (w *Stream) End(out bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.endLocked(out)
}

func (w *Stream) endLocked(out bool) {
	done := &w.finIn
	if out {
		done = &w.finOut
	}
	if *done || w.reset {
		return
	}
	*done = true
	w.c.segment(w.seg(out, ack|fin, nil))
	w.bump(out, 1)
	w.c.segment(w.seg(!out, ack, nil))
}

// Reset records a reset of the connection. out is true if this side sent the reset.
func (w *Stream) Reset(out bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.reset {
		return
	}
	w.reset = true
	w.c.segment(w.seg(out, ack|rst, nil))
}

// Read reads from the connection and records the bytes.
func (w *Conn) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	w.Data(false, p[:n])
	switch {
	case err == io.EOF:
		w.End(false)
	case errors.Is(err, syscall.ECONNRESET):
		w.Reset(false)
	}
	return n, err
}

// Write records the bytes before the write, so that the frames precede the peer's answer in the
// file.
func (w *Conn) Write(p []byte) (int, error) {
	w.wmu.Lock()
	defer w.wmu.Unlock()
	for off := 0; off < len(p); {
		// The bytes are recorded and written in pieces, so that a write failing halfway shows at
		// most one unsent piece.
		piece := p[off:min(len(p), off+maxSegment)]
		w.Data(true, piece)
		n, err := w.Conn.Write(piece)
		off += n
		if err != nil {
			if errors.Is(err, syscall.ECONNRESET) {
				w.Reset(false)
			}
			return off, err
		}
	}
	return len(p), nil
}

// CloseWrite ends the outgoing direction.
func (w *Conn) CloseWrite() error {
	h, ok := w.Conn.(interface{ CloseWrite() error })
	if !ok {
		return errors.ErrUnsupported
	}
	w.End(true)
	return h.CloseWrite()
}

// SetLinger sets the linger time. After SetLinger(0), Close records a reset.
func (w *Conn) SetLinger(sec int) error {
	h, ok := w.Conn.(interface{ SetLinger(int) error })
	if !ok {
		return errors.ErrUnsupported
	}
	w.mu.Lock()
	w.aborted = sec == 0
	w.mu.Unlock()
	return h.SetLinger(sec)
}

// SetNoDelay sets TCP_NODELAY.
func (w *Conn) SetNoDelay(on bool) error {
	if h, ok := w.Conn.(interface{ SetNoDelay(bool) error }); ok {
		return h.SetNoDelay(on)
	}
	return errors.ErrUnsupported
}

// SetKeepAlive turns probes of an idle connection on or off.
func (w *Conn) SetKeepAlive(on bool) error {
	if h, ok := w.Conn.(interface{ SetKeepAlive(bool) error }); ok {
		return h.SetKeepAlive(on)
	}
	return errors.ErrUnsupported
}

// SetKeepAlivePeriod sets the time between probes.
func (w *Conn) SetKeepAlivePeriod(d time.Duration) error {
	if h, ok := w.Conn.(interface {
		SetKeepAlivePeriod(time.Duration) error
	}); ok {
		return h.SetKeepAlivePeriod(d)
	}
	return errors.ErrUnsupported
}

// Close closes the connection and records the end.
func (w *Conn) Close() error {
	w.mu.Lock()
	if w.aborted && !w.reset {
		w.reset = true
		w.c.segment(w.seg(true, ack|rst, nil))
	} else {
		w.endLocked(true)
	}
	w.mu.Unlock()
	return w.Conn.Close()
}
