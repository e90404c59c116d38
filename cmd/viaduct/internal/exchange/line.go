package exchange

import (
	"bytes"
	"context"
	"net"
	"net/netip"
	"sync"
	"time"

	"viaduct/cmd/viaduct/internal/pcapng"
)

// Delay is the transit time of the line. The engines answer much faster, so that their messages
// fall into steps of Delay, even on a busy machine.
const Delay = 8 * time.Millisecond

// epoch is the time when every recording begins.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// A line connects two hosts. It delays the bytes of connections, loses chosen frames, and records
// everything, lost or not, at the time of sending.
type line struct {
	buf bytes.Buffer
	cap *pcapng.Capture

	// cut, if set, returns the length of the frame at the front of b, or 0 if the frame is
	// incomplete. Frames are then recorded one by one, and lose may drop one.
	cut func(b []byte) int

	clock    sync.Mutex    // may be locked while mu is held
	start    time.Time     // guarded by clock; moved forward by the time for which the clock stood still
	stood    time.Duration // guarded by clock; the time that a stopped clock shows
	crossing int           // guarded by clock; see hold
	silent   int           // guarded by clock; see hold
	released chan struct{} // guarded by clock; closed when the clock goes on; nil without a hold
	begun    chan struct{} // has an element for each direction that began in a hold

	mu   sync.Mutex
	at   time.Duration           // time of the packets that are being recorded; guarded by mu
	lose func(frame []byte) bool // guarded by mu
	lost map[int]bool            // numbers of lost packets; guarded by mu

	leisure int // factor by which times are longer than the shortest

	pumps  sync.WaitGroup
	ctx    context.Context
	cancel context.CancelFunc
}

type nopCloser struct{ *bytes.Buffer }

func (nopCloser) Close() error { return nil }

func newLine(ctx context.Context) (*line, error) {
	l := &line{start: time.Now(), lost: make(map[int]bool)}
	l.ctx, l.cancel = context.WithCancel(ctx)
	c, err := pcapng.New(nopCloser{&l.buf}, "viaduct ladder")
	if err != nil {
		return nil, err
	}
	c.Clock = func() time.Time { return epoch.Add(l.at) } // mu is held, see record
	l.cap = c
	return l, nil
}

// elapsed returns the time since the start, by the clock of the line.
func (l *line) elapsed() time.Duration {
	l.clock.Lock()
	defer l.clock.Unlock()
	if l.silent > 0 {
		return l.stood
	}
	return time.Since(l.start)
}

// now returns the time since the start, in whole steps.
func (l *line) now() time.Duration { return l.elapsed().Truncate(Delay) }

// record calls f with mu held. All packets that f records have the time at which f is called.
func (l *line) record(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.at = l.now()
	f()
}

// hold stops the clock, and delivers the messages of two connections in rounds. In the first round,
// nothing is delivered until n directions have bytes to carry. Their messages then cross, even on a
// busy machine. In the second round, the clock shows their arrival until n more directions, those of
// the answers, have bytes to carry. So no answer arrives before a request was read.
func (l *line) hold(n int) {
	l.clock.Lock()
	defer l.clock.Unlock()
	l.stood, l.crossing, l.silent, l.released = time.Since(l.start), n, n, make(chan struct{})
	l.begun = make(chan struct{}, 2*n)
}

// awaitBegin waits until one more direction has begun since hold, or the line is closed, or failed is
// closed.
func (l *line) awaitBegin(failed <-chan struct{}) {
	select {
	case <-l.begun:
	case <-failed:
	case <-l.ctx.Done():
	}
}

// begins is called when a direction gets its first bytes to carry. The last direction to begin ends
// the round.
func (l *line) begins() {
	l.clock.Lock()
	defer l.clock.Unlock()
	if l.silent == 0 {
		return
	}
	l.begun <- struct{}{}
	if l.silent--; l.silent > 0 {
		return
	}
	close(l.released)
	if l.silent, l.crossing = l.crossing, 0; l.silent > 0 {
		l.stood += Delay
		l.released = make(chan struct{})
	} else {
		l.start = time.Now().Add(-l.stood)
	}
}

// await waits until the clock shows t, or the line is closed.
func (l *line) await(t time.Duration) {
	for {
		l.clock.Lock()
		released := l.released
		if l.silent == 0 || t <= l.stood {
			released = nil
		}
		l.clock.Unlock()
		if released == nil {
			break
		}
		select {
		case <-released:
		case <-l.ctx.Done():
			return
		}
	}
	timer := time.NewTimer(t - l.elapsed())
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-l.ctx.Done():
	}
}

// step waits for the start of the n-th step from now.
func (l *line) step(n int) {
	t := time.NewTimer(l.now() + time.Duration(n)*Delay - l.elapsed())
	defer t.Stop()
	select {
	case <-t.C:
	case <-l.ctx.Done():
	}
}

// close ends the line and all connections of the line, and returns the capture.
func (l *line) close() ([]byte, error) {
	l.cancel()
	l.pumps.Wait()
	err := l.cap.Close()
	return l.buf.Bytes(), err
}

// join puts the line into nc, a connection opened by this process. Bytes written to the result go
// over the line to nc, and bytes from nc return over the line. Closing the line closes both
// connections. If the line cannot be made, join closes nc and returns nc.
func (l *line) join(nc net.Conn) net.Conn {
	near, far, err := pair()
	if err != nil { // the connection is useless without the line
		nc.Close()
		return nc
	}
	var st *pcapng.Stream
	l.record(func() { st = l.cap.Stream(addrOf(nc.LocalAddr()), addrOf(nc.RemoteAddr()), true) })
	stop := context.AfterFunc(l.ctx, func() { nc.Close(); far.Close() })
	var both sync.WaitGroup
	both.Go(func() { l.pump(st, false, far, nc) })
	both.Go(func() { l.pump(st, true, nc, far) })
	l.pumps.Go(func() {
		both.Wait()
		stop()
		nc.Close()
		far.Close()
	})
	return &ended{near.(*net.TCPConn), nc.LocalAddr(), nc.RemoteAddr()}
}

// An ended is a connection that reports the addresses of another connection.
type ended struct {
	*net.TCPConn
	local, remote net.Addr
}

func (e *ended) LocalAddr() net.Addr  { return e.local }
func (e *ended) RemoteAddr() net.Addr { return e.remote }

func addrOf(a net.Addr) netip.AddrPort {
	p := a.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(p.Addr().Unmap(), p.Port())
}

// pair makes a TCP connection within the process and returns both ends.
func pair() (near, far net.Conn, err error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	defer ln.Close()
	if near, err = net.Dial("tcp", ln.Addr().String()); err != nil {
		return nil, nil, err
	}
	if far, err = ln.Accept(); err != nil {
		near.Close()
	}
	return near, far, err
}

// A parcel is a number of bytes in transit.
type parcel struct {
	due time.Duration // by the clock of the line
	b   []byte        // nil at the end of the stream
}

// carryLocked records the frames at the front of b. It returns the frames that the line does not
// lose, and the bytes of b that are no whole frame yet.
func (l *line) carryLocked(st *pcapng.Stream, back bool, b []byte) (kept []parcel, rest []byte) {
	for len(b) > 0 {
		k := len(b)
		if l.cut != nil {
			if k = l.cut(b); k == 0 {
				break
			}
		}
		packet := st.Data(!back, b[:k])
		if l.lose != nil && l.lose(b[:k]) {
			l.lost[packet] = true
		} else {
			kept = append(kept, parcel{l.at + Delay, bytes.Clone(b[:k])})
		}
		b = b[k:]
	}
	return kept, b
}

// pump carries the bytes of one direction between two connections, until from ends.
func (l *line) pump(st *pcapng.Stream, back bool, from, to net.Conn) {
	way := make(chan parcel, 1024)
	var wg sync.WaitGroup
	wg.Go(func() {
		for p := range way {
			l.await(p.due)
			if p.b == nil {
				if h, ok := to.(interface{ CloseWrite() error }); ok {
					h.CloseWrite()
				}
				continue
			}
			to.Write(p.b)
		}
	})
	var rest []byte
	b := make([]byte, 64<<10)
	for begun := false; ; {
		n, err := from.Read(b)
		rest = append(rest, b[:n]...)
		var kept []parcel
		l.record(func() { kept, rest = l.carryLocked(st, back, rest) })
		for _, p := range kept {
			way <- p
		}
		if n > 0 && !begun {
			begun = true
			l.begins() // after the recording, because the clock may go on here
		}
		if err != nil {
			var due time.Duration
			l.record(func() { st.End(!back); due = l.at + Delay })
			way <- parcel{due, nil}
			close(way)
			wg.Wait()
			return
		}
	}
}
