package sock

import (
	"errors"
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

// Own takes the descriptor of a TCP connection away from the runtime, for the
// exchange that comes before an engine takes the connection over: as long as
// the runtime watches it, each answer wakes a thread for nothing while the
// caller looks for it. nc must not be used any more. What is returned is nc
// itself if it is no TCP connection, or if there is no descriptor left.
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

// A conn is the connection that Own returns. Take returns its Socket.
type conn struct {
	s             *Socket
	local, remote net.Addr
	tuned         *Tuning                // what has been set already
	later         atomic.Pointer[Tuning] // what is going to be set, see setLater
	meet          *rendezvous            // where a dialer of this host finds the connection; guarded by its mu, but for nil

	mu     perturb.Mutex
	limits *limits // guarded by mu; nil while there are none, as later in a Conn
}

// limits are the deadlines of both directions.
type limits struct{ read, write limit }

// A limit is a deadline, and the instance that sleepers of its direction sleep
// at, which has to know it while there are any.
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

// none reports whether the limit need not be kept.
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

// limitsLocked returns the limits, which are kept as long as there is one.
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

// Read is as of any net.Conn.
func (o *conn) Read(p []byte) (int, error) { return o.receive(p, plainly, false) }

// reading is a way to read, from a socket and from shared memory.
type reading struct {
	socket func(fd int, p []byte) (int, error)
	rings  func(r *rings, p []byte) (int, error)
}

var plainly = reading{read, (*rings).read}

// settle ends the time in which the bytes may be moved to shared memory.
func (o *conn) settle() {
	_ = o.setLater() // the socket goes without if need be
	o.s.rlockDecided()
	o.s.used.Store(true)
	o.s.mu.RUnlock()
	if o.meet != nil {
		o.meet.remove(o)
	}
}

func (o *conn) path() samehost.Path { return o.s.path() }

// setLater sets what every connection has, on one that was dialled: while the answer
// to the first write is under way, since a call for each option would be a good part of
// a set-up. Where the bytes go through shared memory the socket is silent, and can wait
// for setNow.
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

// setNow is setLater for a caller that has to do with the socket itself.
func (o *conn) setNow() error {
	t := o.later.Swap(nil)
	if t == nil {
		return nil
	}
	return o.option(func(fd int) error {
		if err := netKeepAlive(fd); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
		if err := unix.SetNonblock(fd, false); err != nil { // see ReadV
			return os.NewSyscallError("fcntl", err)
		}
		return tuneAlways(fd, *t)
	})
}

// receive calls f, which reads, until it does not block.
func (o *conn) receive(p []byte, f reading, soon bool) (n int, err error) {
	if len(p) == 0 {
		return 0, nil
	}
	if err := o.setLater(); err != nil {
		return 0, err
	}
	try := func() bool {
		o.s.rlockDecided() // an end of the TCP connection is nothing to one that has committed
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

// sleepIn waits until try has done it.
func (o *conn) sleepIn(try func() bool) error {
	s := o.s
	if !s.OpenArrivals() {
		return s.openError()
	}
	return o.sleep(false, &s.in.instance, func(uintptr) bool {
		s.mu.RLock()
		armed := !s.closed && s.Arm() // what comes from here on is reported
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

// sleep is the Read of n with the limit of a direction.
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
	if errors.Is(err, os.ErrClosed) {
		err = net.ErrClosed
	}
	return err
}

// Write is as of any net.Conn.
func (o *conn) Write(p []byte) (done int, err error) {
	if o.s.used.Load() { // a second write must not wait for an acknowledgement
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

// write is Write of a Socket that may be closed meanwhile.
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
		return o.s.openError()
	}
	return o.sleep(true, &o.s.out.instance, o.s.writable)
}

// openError is why a socket can't be waited for.
func (s *Socket) openError() error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return net.ErrClosed
	}
	return unix.EMFILE
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

// CloseWrite ends the sending direction.
func (o *conn) CloseWrite() error {
	o.s.CloseWrite()
	return nil
}

// SetLinger is as of a net.TCPConn; negative turns lingering off.
func (o *conn) SetLinger(sec int) error {
	return o.option(func(fd int) error {
		l := unix.Linger{Linger: int32(max(sec, 0))}
		if sec >= 0 {
			l.Onoff = 1
		}
		return unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &l)
	})
}

// option sets something on the socket.
func (o *conn) option(f func(fd int) error) (err error) {
	if err := o.setNow(); err != nil {
		return err
	}
	return o.set(f)
}

// set is option for what does not follow what is set later.
func (o *conn) set(f func(fd int) error) (err error) {
	if cerr := o.s.Control(func(fd uintptr) { err = f(int(fd)) }); cerr != nil {
		err = cerr
	}
	return o.opError("set", err)
}

// SyscallConn gives access to the options of the socket.
func (o *conn) SyscallConn() (syscall.RawConn, error) {
	return rawHandle{o.s}, o.setNow()
}

// tune is Tune.
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

// tune sets TCP_NODELAY whatever t says: what is written has been batched
// already, and must not wait for an acknowledgement. [I-28]
func tune(fd int, t Tuning) error {
	if err := tuneAlways(fd, t); err != nil || t.Congestion == "" {
		return err
	}
	return congestion(fd, t.Congestion)
}

// tuneAlways is tune without what systems may refuse.
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
