package sock

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/samehost"
)

// A Socket is the descriptor of a stream, taken away from the runtime. Its carrier moves the bytes;
// the methods of the Socket itself are for the sleeps of the reader and the writer, and for the end.
type Socket struct {
	carrier
	agreement
	in  arrivals // where the reader sleeps
	out Watch    // where the writer sleeps
}

// Take moves the descriptor of nc into a Socket and closes nc. It returns nil, and leaves nc open,
// if nc has no descriptor or the process has no other descriptor left. No call may be in progress
// on nc.
func Take(nc net.Conn) *Socket {
	if o, ok := nc.(*conn); ok {
		o.settle()
		return o.s
	}
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return nil
	}
	s := dup(sc)
	if s != nil {
		nc.Close()                    // the other descriptor keeps the stream open
		unix.SetNonblock(s.fd, false) // blocking mode, which ReadV needs
	}
	return s
}

// dup returns a Socket for a duplicate of the descriptor of sc. It returns nil if sc is no stream
// or the process has no descriptor left.
func dup(sc syscall.Conn) *Socket {
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil
	}
	s := &Socket{carrier: carrier{fd: -1}}
	raw.Control(func(fd uintptr) {
		if kind, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TYPE); err != nil ||
			kind != unix.SOCK_STREAM {
			return
		}
		if s.fd, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0); err != nil {
			s.fd = -1
		}
	})
	if s.fd < 0 {
		return nil
	}
	return s
}

// adopt makes the bytes go through the rings r from now on. adopt fails if s is closed or bytes
// have already gone through TCP. Without an error s owns r. A reader that may be asleep at the TCP
// socket sleeps at the bell afterwards; the listening side has called r.in.Ask before the peer
// could write.
func (s *Socket) adopt(r *rings) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.used.Load() {
		return net.ErrClosed
	}
	if s.in.f != nil && !s.in.move(s.fd, r.bell) {
		return unix.ENOMEM
	}
	if s.out.f != nil { // the dialer waited here for the connection
		s.out.Close()
		s.out = Watch{}
	}
	r.tcp, s.fd, s.rings, s.shared = s.fd, r.bell, r, true
	return nil
}

// OpenArrivals creates the epoll instance for the reader's sleep, unless the instance exists. Take
// does not create the instance, because a short connection needs none. OpenArrivals returns false
// if the socket is closed or the process has no descriptor left.
func (s *Socket) OpenArrivals() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.closed && (s.in.f != nil || s.in.open(s.fd))
}

// CloseArrivals closes the epoll instance of OpenArrivals. The reader must not be asleep. [reader]
func (s *Socket) CloseArrivals() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.in.close()
		s.in = arrivals{}
	}
}

// Sleep calls ready at once and at each arrival after Arm, until ready returns true. After
// Interrupt the error is os.ErrDeadlineExceeded. Close ends Sleep with another error. OpenArrivals
// must have succeeded. [reader]
func (s *Socket) Sleep(ready func(uintptr) bool) error { return s.in.raw.Read(ready) }

// Arm makes each arrival from now until Disarm wake Sleep. Earlier arrivals need not wake Sleep. So
// the reader calls Arm and then reads until nothing is left, both inside the function Sleep calls,
// where no report is lost. Arm returns false if the system refuses. [reader]
func (s *Socket) Arm() bool {
	if !s.in.arm(s.fd) {
		return false
	}
	s.Ask()
	return true
}

// Disarm keeps arrivals from waking the reader. The end of the stream may still wake it. [reader]
func (s *Socket) Disarm() { s.in.disarm(s.fd) }

// Interrupt makes the reader's current or next Sleep return os.ErrDeadlineExceeded. Before
// OpenArrivals, Interrupt returns false and does nothing.
func (s *Socket) Interrupt() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.in.f == nil {
		return false
	}
	s.in.f.SetReadDeadline(time.Unix(1, 0))
	return true
}

// Interrupted ends the effect of Interrupt. OpenArrivals must have succeeded. [reader]
func (s *Socket) Interrupted() { s.in.f.SetReadDeadline(time.Time{}) }

// openOut creates the epoll instance for the writer's sleep, unless the instance exists. The result
// is false if the socket is closed or the process has no descriptor left.
func (s *Socket) openOut() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	fd, events := s.fd, uint32(unix.EPOLLOUT)
	if r := s.rings; r != nil {
		fd, events = r.room, unix.EPOLLIN|unix.EPOLLRDHUP
	}
	return !s.closed && (s.out.f != nil || s.out.Open(fd, events))
}

// WaitWritable sleeps until the socket may have room or is closed. Without a descriptor to sleep
// with, the wait ends after a millisecond. [writer]
func (s *Socket) WaitWritable() {
	if !s.openOut() {
		time.Sleep(time.Millisecond) // closed, or no descriptor left
		return
	}
	s.out.raw.Read(s.writable)
}

// writable reports whether the writer's wait is over, in the callback of s.out.
func (s *Socket) writable(uintptr) bool {
	r := s.rings
	if r == nil {
		return s.out.Ready(s.fd)
	}
	if !s.out.armed {
		r.writing.Lock()
		roomy := r.poll() || !r.askRoom()
		r.writing.Unlock()
		if roomy {
			return true
		}
	}
	return s.out.Ready(r.room)
}

// Close wakes a sleeping reader and writer, and closes the descriptors. Neither may use the socket
// any more. With reset, the peer sees a reset, and unsent bytes are dropped. A second call does
// nothing.
func (s *Socket) Close(reset bool) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.closed = true
	s.mu.Unlock()
	s.in.close() // these calls wait until the sleepers have left
	s.out.Close()
	fd := s.fd
	if r := s.rings; r != nil {
		fd = r.tcp
		r.close(reset)
	}
	if reset {
		unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	}
	unix.Close(fd)
}

// CloseWrite ends the sending direction. It does nothing after Close.
func (s *Socket) CloseWrite() {
	s.mu.RLock()
	defer s.mu.RUnlock()
	switch {
	case s.closed:
	case s.rings != nil:
		s.rings.finish()
	default:
		unix.Shutdown(s.fd, unix.SHUT_WR)
	}
}

// Control calls f with the descriptor of the TCP connection, for socket options. The error is
// net.ErrClosed after Close.
func (s *Socket) Control(f func(fd uintptr)) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return net.ErrClosed
	}
	fd := s.fd
	if s.rings != nil {
		fd = s.rings.tcp
	}
	f(uintptr(fd))
	return nil
}

// Handle returns a net.Conn for callers in need of the addresses of nc, or the socket options of s,
// after s has taken the descriptor of nc.
func Handle(nc net.Conn, s *Socket) net.Conn { return handle{nc, s} }

type handle struct {
	net.Conn
	s *Socket
}

var _ syscall.Conn = handle{}

func (h handle) path() samehost.Path { return h.s.path() }

func (h handle) SyscallConn() (syscall.RawConn, error) { return rawHandle{h.s}, nil }

type rawHandle struct{ s *Socket }

func (h rawHandle) Control(f func(fd uintptr)) error { return h.s.Control(f) }
func (rawHandle) Read(func(uintptr) bool) error      { return net.ErrClosed }
func (rawHandle) Write(func(uintptr) bool) error     { return net.ErrClosed }
