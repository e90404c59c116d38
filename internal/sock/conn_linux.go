package sock

import (
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/internal/perturb"
	"viaduct/samehost"
)

// Own takes the descriptor of the TCP connection nc away from the runtime, for the set-up exchange
// that precedes an engine. While the runtime watches a descriptor, each arrival wakes a thread for
// nothing, because the caller of the exchange polls for the answer. Own returns nc itself if nc is
// no TCP connection, or if the process has no descriptor left. Otherwise nc must not be used after
// Own.
func Own(nc net.Conn) net.Conn {
	tc, ok := nc.(*net.TCPConn)
	if !ok {
		return nc
	}
	local, remote := nc.LocalAddr(), nc.RemoteAddr()
	s := Take(tc)
	if s == nil {
		return nc
	}
	return &conn{s: s, local: local, remote: remote}
}

// A conn is a connection of Own, Dial or an ownedListener. Take returns the Socket to an engine.
type conn struct {
	s             *Socket
	local, remote net.Addr
	tuned         *Tuning                // options that the listener has set; nil: not known
	later         atomic.Pointer[Tuning] // options that setLater still has to set; nil: none
	// The rendezvous where a dialer of this host can request shared memory; nil for none.
	meet *rendezvous

	mu     perturb.Mutex
	limits *limits // guarded by mu; nil while there are no deadlines and no sleepers
}

// limits are the deadlines of both directions.
type limits struct{ read, write limit }

// A limit is the deadline of a direction; at is zero without a deadline. sleepers counts the
// goroutines asleep at the epoll instance whose file is sleep. A new deadline is set there too
// while sleepers > 0.
type limit struct {
	at       time.Time
	sleepers int
	sleep    *os.File
}

func (l *limit) set(t time.Time) {
	l.at = t
	if l.sleepers > 0 {
		l.sleep.SetReadDeadline(t)
	}
}

// none reports whether the direction has neither a deadline nor a sleeper.
func (l *limit) none() bool { return l.at.IsZero() && l.sleepers == 0 }

func (l *limit) passed() bool { return !l.at.IsZero() && !time.Now().Before(l.at) }

var (
	_ net.Conn     = (*conn)(nil)
	_ syscall.Conn = (*conn)(nil)
)

func (o *conn) LocalAddr() net.Addr  { return o.local }
func (o *conn) RemoteAddr() net.Addr { return o.remote }

func (o *conn) SetDeadline(t time.Time) error      { return o.limit(t, true, true) }
func (o *conn) SetReadDeadline(t time.Time) error  { return o.limit(t, true, false) }
func (o *conn) SetWriteDeadline(t time.Time) error { return o.limit(t, false, true) }

func (o *conn) limit(t time.Time, read, write bool) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.limits == nil && t.IsZero() {
		return nil
	}
	l := o.limitsLocked()
	if read {
		l.read.set(t)
	}
	if write {
		l.write.set(t)
	}
	if l.read.none() && l.write.none() {
		o.limits = nil
	}
	return nil
}

// limitsLocked returns the limits, created here if necessary. The caller holds mu.
func (o *conn) limitsLocked() *limits {
	if o.limits == nil {
		o.limits = new(limits)
	}
	return o.limits
}

// late reports whether the deadline of a direction has passed.
func (o *conn) late(write bool) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch l := o.limits; {
	case l == nil:
		return false
	case write:
		return l.write.passed()
	default:
		return l.read.passed()
	}
}

// Read implements [net.Conn]. After the deadline Read fails even if bytes have arrived.
func (o *conn) Read(p []byte) (int, error) { return o.receive(p, plainly, false) }

// A reading is a read function, for example a read without consuming, in two forms: from a
// descriptor, and from shared memory. rings is nil if the connection never uses shared memory.
type reading struct {
	socket func(fd int, p []byte) (int, error)
	rings  func(r *rings, p []byte) (int, error)
}

var plainly = reading{read, (*rings).read}

// settle ends the period when the stream may move to shared memory, because an engine takes the
// socket. settle waits while a grant is undecided.
func (o *conn) settle() {
	_ = o.setLater() // after an error the socket only lacks these options
	o.s.rlockDecided()
	o.s.used.Store(true)
	o.s.mu.RUnlock()
	if o.meet != nil {
		o.meet.remove(o)
	}
}

func (o *conn) path() samehost.Path { return o.s.path() }

// setLater sets the options a dialled connection still lacks: keepalive, blocking mode, and the
// Tuning in later. setLater runs while the answer to the first write is under way, because one
// system call for each option would be a considerable part of a set-up. If the bytes go through
// shared memory, the TCP socket is silent, and setLater leaves the options to setNow.
func (o *conn) setLater() error {
	if o.later.Load() == nil {
		return nil
	}
	o.s.mu.RLock()
	silent := o.s.rings != nil
	o.s.mu.RUnlock()
	if silent {
		return nil
	}
	return o.setNow()
}

// setNow does the work of setLater even if the bytes go through shared memory, for a caller of the
// TCP socket itself. Without a Tuning in later, setNow does nothing.
func (o *conn) setNow() error {
	t := o.later.Swap(nil)
	if t == nil {
		return nil
	}
	return o.option(func(fd int) error {
		if err := netKeepAlive(fd); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
		if err := unix.SetNonblock(fd, false); err != nil { // blocking mode, which ReadV needs
			return os.NewSyscallError("fcntl", err)
		}
		return tuneAlways(fd, *t)
	})
}

// receive reads into p with f. It sleeps until bytes arrive, the stream ends (io.EOF) or the read
// deadline passes. With soon, receive polls for up to 100 us before the sleep. After Close the
// error wraps net.ErrClosed. For an empty p the result is 0 without an error.
func (o *conn) receive(p []byte, f reading, soon bool) (n int, err error) {
	if len(p) == 0 {
		return 0, nil
	}
	if err := o.setLater(); err != nil {
		return 0, err
	}
	try := func() bool {
		o.s.rlockDecided() // once a dialer has committed, an end of the TCP connection does not matter
		defer o.s.mu.RUnlock()
		switch r := o.s.rings; {
		case o.s.closed:
			n, err = 0, net.ErrClosed
		case r != nil:
			r.reading.Lock()
			n, err = f.rings(r, p)
			r.reading.Unlock()
		default:
			n, err = f.socket(o.s.fd, p)
		}
		if err == ErrWouldBlock {
			return false
		}
		o.s.used.Store(true)
		return true
	}
	switch {
	case o.late(false):
		err = os.ErrDeadlineExceeded
	case soon && Soon(try), !soon && try():
	default:
		if serr := o.sleepIn(try); serr != nil {
			n, err = 0, serr
		}
	}
	if n == 0 && err == nil {
		return 0, io.EOF
	}
	return max(n, 0), o.opError("read", err)
}

// sleepIn sleeps until try returns true. It returns an error if the socket is closed, the deadline
// has passed, or the process has no descriptor to sleep with.
func (o *conn) sleepIn(try func() bool) error {
	s := o.s
	if !s.OpenArrivals() {
		return s.closedOr(unix.EMFILE)
	}
	return o.sleep(false, &s.in.instance, func(uintptr) bool {
		s.mu.RLock()
		armed := !s.closed && s.Arm() // later arrivals are reported
		s.mu.RUnlock()
		if !try() {
			return false
		}
		if armed {
			s.Disarm()
		}
		return true
	})
}

// sleep calls f, and repeats the call at each event of n, until f returns true or the deadline of
// the direction passes. The error is net.ErrClosed after Close.
func (o *conn) sleep(write bool, n *instance, f func(uintptr) bool) error {
	o.mu.Lock()
	both := o.limitsLocked() // kept while there are sleepers
	l := &both.read
	if write {
		l = &both.write
	}
	l.sleep = n.f
	l.sleepers++
	n.f.SetReadDeadline(l.at)
	o.mu.Unlock()
	err := n.raw.Read(f)
	o.mu.Lock()
	if l.sleepers--; l.sleepers == 0 {
		n.f.SetReadDeadline(time.Time{})
		if both.read.none() && both.write.none() {
			o.limits = nil
		}
	}
	o.mu.Unlock()
	if err == nil {
		return nil
	}
	return o.s.closedOr(err) // raw.Read's own error after Close matches no exported one
}

// Write implements [net.Conn].
func (o *conn) Write(p []byte) (done int, err error) {
	if o.s.used.Load() { // not before the first write: only a later one would wait for an acknowledgement (Nagle)
		if err := o.setLater(); err != nil {
			return 0, err
		}
	}
	for done < len(p) {
		if o.late(true) {
			return done, o.opError("write", os.ErrDeadlineExceeded)
		}
		n, err := o.s.write(p[done:])
		if err == ErrWouldBlock {
			n, err = 0, o.sleepOut()
		}
		if done += n; err != nil {
			return done, o.opError("write", err)
		}
	}
	return done, nil
}

// write is Write for goroutines that may write and close concurrently. write waits for an undecided
// grant of shared memory, and returns net.ErrClosed after Close.
func (s *Socket) write(p []byte) (int, error) {
	s.rlockDecided()
	defer s.mu.RUnlock()
	if s.closed {
		return 0, net.ErrClosed
	}
	s.used.Store(true)
	if r := s.rings; r != nil {
		r.writing.Lock()
		defer r.writing.Unlock()
	}
	return s.Write(p)
}

func (o *conn) sleepOut() error {
	if !o.s.openOut() {
		return o.s.closedOr(unix.EMFILE)
	}
	return o.sleep(true, &o.s.out.instance, o.s.writable)
}

func (o *conn) opError(op string, err error) error {
	if err == nil {
		return nil
	}
	return &net.OpError{Op: op, Net: "tcp", Source: o.local, Addr: o.remote, Err: err}
}

func (o *conn) Close() error {
	o.s.Close(false)
	if o.meet != nil {
		o.meet.remove(o)
	}
	return nil
}

// CloseWrite ends the sending direction. It returns nil.
func (o *conn) CloseWrite() error {
	o.s.CloseWrite()
	return nil
}

// SetLinger is like the method of a net.TCPConn. sec is in seconds; a negative sec turns lingering
// off.
func (o *conn) SetLinger(sec int) error {
	return o.option(func(fd int) error {
		l := unix.Linger{Linger: int32(max(sec, 0))}
		if sec >= 0 {
			l.Onoff = 1
		}
		return unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &l)
	})
}

// option calls f with the TCP socket to set an option, after setNow.
func (o *conn) option(f func(fd int) error) (err error) {
	if err := o.setNow(); err != nil {
		return err
	}
	return o.set(f)
}

// set is option without setNow.
func (o *conn) set(f func(fd int) error) (err error) {
	if cerr := o.s.Control(func(fd uintptr) { err = f(int(fd)) }); cerr != nil {
		err = cerr
	}
	return o.opError("set", err)
}

// SyscallConn returns access to the TCP socket, for the socket options. Read and Write of the
// result fail.
func (o *conn) SyscallConn() (syscall.RawConn, error) {
	return rawHandle{o.s}, o.setNow()
}

// tune implements Tune. Before the first exchange on a dialled connection, tune sets only the
// congestion control, so that an unknown algorithm is reported here, and records t for setLater.
func (o *conn) tune(t Tuning) error {
	if o.tuned != nil && *o.tuned == t {
		return nil
	}
	o.tuned = nil
	if o.later.Load() == nil {
		return o.option(func(fd int) error { return tune(fd, t) })
	}
	if t.Congestion != "" {
		if err := o.set(func(fd int) error { return congestion(fd, t.Congestion) }); err != nil {
			return err
		}
	}
	o.later.Store(&t)
	return nil
}

// tune sets the options of t and, regardless of t, TCP_NODELAY: the engines batch their writes, and
// a write must not wait for an acknowledgement. [I-28]
func tune(fd int, t Tuning) error {
	if err := tuneAlways(fd, t); err != nil || t.Congestion == "" {
		return err
	}
	return congestion(fd, t.Congestion)
}

// tuneAlways sets the options of t known to every Linux: all but the congestion control.
func tuneAlways(fd int, t Tuning) error {
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	return os.NewSyscallError("setsockopt", keepAlive(fd, t.KeepAlive))
}

func keepAlive(fd int, d time.Duration) error {
	if d == 0 {
		return nil
	}
	if d < 0 {
		return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 0)
	}
	sec := int((d + time.Second - 1) / time.Second)
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1); err != nil {
		return err
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, sec); err != nil {
		return err
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, sec)
}
