package bench

import (
	"context"
	"io"
	"net"

	"viaduct/cmd/viaduct/internal/addr"
	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/cmd/viaduct/internal/transport"
	"viaduct/samehost"
)

// A streamLane is a lane over a net.Conn. Its messages have the fixed length of the spec. The end
// of the stream stands for the end message.
type streamLane struct {
	s    spec
	c    net.Conn
	raw  rawReader // reader for polling; nil if the connection has none
	buf  []byte
	at   int
	left int
}

func newStreamLane(s spec, c net.Conn) *streamLane {
	work := footprint
	if s.bare() {
		work = 64
	}
	l := &streamLane{s: s, c: c, buf: make([]byte, max(work, s.Size*max(1, s.Doorbell)))}
	switch s.Op {
	case OpPoll:
		l.raw = newRawReader(c)
	case OpIdle:
		// A program with an idle stream waits in a read. A message transport does so by itself.
		go c.Read(l.buf)
	}
	return l
}

func (l *streamLane) use(target) {}

func (l *streamLane) path() samehost.Path { return shell.StreamPath(l.c) }

// post writes n messages with one call.
func (l *streamLane) post(n int) error {
	size := n * l.s.Size
	if l.at+size > len(l.buf) {
		l.at = 0
	}
	b := l.buf[l.at:][:min(size, len(l.buf))]
	l.at += len(b)
	l.left += n
	_, err := l.c.Write(b)
	return err
}

func (l *streamLane) reap(context.Context, bool) (int, error) {
	n := l.left
	l.left = 0
	return n, nil
}

// send ends the sending direction if n is the length of the end message. Otherwise send writes a
// message, like post.
func (l *streamLane) send(_ context.Context, n int, _ bool) error {
	if n == endSize && l.s.Size != endSize {
		if h, ok := l.c.(interface{ CloseWrite() error }); ok {
			return h.CloseWrite()
		}
		return errShort
	}
	_, err := l.c.Write(l.buf[:n])
	return err
}

// recv reads one message. For a bandwidth measurement, recv reads to the end of the stream, because
// a read of a single byte would look like an end message.
func (l *streamLane) recv(ctx context.Context, poll bool) (int, error) {
	var n int
	var err error
	switch {
	case l.s.Op != OpPoll && l.s.Op != OpWait && l.s.Op != OpSetup:
		for err == nil {
			_, err = l.c.Read(l.buf[:min(len(l.buf), 256<<10)])
		}
	case poll && l.raw != nil:
		n, err = l.raw.readFull(ctx, l.buf[:l.s.Size])
	default:
		n, err = io.ReadFull(l.c, l.buf[:l.s.Size])
	}
	if n == 0 && err == io.EOF {
		return endSize, nil
	}
	return n, err
}

func (l *streamLane) close() {
	if l.s.Op != OpSetup {
		l.c.Close()
		return
	}
	if h, ok := l.c.(interface{ CloseWrite() error }); ok {
		h.CloseWrite()
		io.Copy(io.Discard, l.c)
	}
	l.c.Close()
	if d, ok := l.c.(interface{ Done() <-chan struct{} }); ok {
		<-d.Done()
	}
}

type streamHost struct {
	s spec
	u *addr.URL
	l net.Listener
}

func openStream(s spec) (host, error) {
	u, err := addr.Parse(s.scheme() + "://" + s.Host + ":0" + s.query())
	if err != nil {
		return nil, err
	}
	t, err := transport.For(u)
	if err != nil {
		return nil, err
	}
	l, err := t.ListenStream(u, benchOptions(s))
	if err != nil {
		return nil, err
	}
	return &streamHost{s, u.WithPort(l.Addr()), l}, nil
}

func (h *streamHost) url() string { return h.u.String() }

func (h *streamHost) accept(ctx context.Context) (lane, target, error) {
	stop := context.AfterFunc(ctx, func() { h.l.Close() })
	defer stop()
	c, err := h.l.Accept()
	if err != nil {
		return nil, target{}, err
	}
	return newStreamLane(h.s, c), target{}, nil
}

func (h *streamHost) close() { h.l.Close() }

type streamDialer struct {
	s spec
	u *addr.URL
	t *transport.Transport
}

func newStreamDialer(s spec, u *addr.URL) (dialer, error) {
	t, err := transport.For(u)
	if err != nil {
		return nil, err
	}
	return &streamDialer{s, u, t}, nil
}

func (d *streamDialer) dial(ctx context.Context) (dialed, error) {
	c, err := d.t.DialStream(ctx, d.u, benchOptions(d.s))
	if err != nil {
		return nil, err
	}
	return newStreamLane(d.s, c), nil
}

func (d *streamDialer) close() {}

// A rawReader reads a connection by polling.
type rawReader interface {
	readFull(ctx context.Context, b []byte) (int, error)
}
