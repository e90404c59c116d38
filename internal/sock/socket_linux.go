package sock

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/internal/perturb"
)

// A Socket is the descriptor of a stream, taken away from the runtime. It has
// one reader and one writer at a time. Its reads and writes never wait.
type Socket struct {
	fd  int
	in  arrivals
	out Watch

	mu     perturb.RWMutex // held while fd is used outside the reader and the writer
	closed bool            // guarded by mu; fd is closed when nothing can be using it any more
}

// Take makes the descriptor of nc a Socket and closes nc; nil if nc has none,
// or the process can have no other. Nothing may be under way on nc.
func Take(nc net.Conn) *Socket {
	if o, ok := nc.(*conn); ok {
		return o.s
	}
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return nil
	}
	s := dup(sc)
	if s != nil {
		nc.Close()                    // the stream lives on in the other descriptor
		unix.SetNonblock(s.fd, false) // see ReadV
	}
	return s
}

// dup returns a Socket for another descriptor of sc's, or nil.
func dup(sc syscall.Conn) *Socket {
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil
	}
	s := &Socket{fd: -1}
	raw.Control(func(fd uintptr) {
		if kind, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TYPE); err != nil || kind != unix.SOCK_STREAM {
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

// FD returns the descriptor. It is valid until Close.
func (s *Socket) FD() int { return s.fd }

// OpenArrivals makes what the reader sleeps at, unless it is there: a
// connection that ends soon does without. It is false if the socket is closed,
// or if the process has no descriptor left.
func (s *Socket) OpenArrivals() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.closed && (s.in.f != nil || s.in.open(s.fd))
}

// CloseArrivals gives that descriptor back. [reader, which does not sleep]
func (s *Socket) CloseArrivals() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.in.close()
		s.in = arrivals{}
	}
}

// Sleep calls ready, and calls it again each time something has arrived since
// Arm, until it is true. The error is os.ErrClosed after Close and
// os.ErrDeadlineExceeded after Interrupt. OpenArrivals comes first. [reader]
func (s *Socket) Sleep(ready func(uintptr) bool) error { return s.in.raw.Read(ready) }

// Arm has each arrival from here on reported to Sleep, until Disarm. What came
// before need not be reported, so the reader arms and then reads until nothing
// is there, inside the function that Sleep calls, where it can't miss what is
// reported meanwhile. It is false if that can't be done. [reader]
func (s *Socket) Arm() bool { return s.in.arm(s.fd) }

// Disarm keeps arrivals from waking the reader. The end of the stream may. [reader]
func (s *Socket) Disarm() { s.in.disarm(s.fd) }

// Interrupt has the reader's Sleep, the one in progress or the next, return
// with os.ErrDeadlineExceeded. It is false before OpenArrivals.
func (s *Socket) Interrupt() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.in.f == nil {
		return false
	}
	s.in.f.SetReadDeadline(time.Unix(1, 0))
	return true
}

// Interrupted ends the effect of Interrupt. [reader]
func (s *Socket) Interrupted() { s.in.f.SetReadDeadline(time.Time{}) }

// openOut is OpenArrivals for the writer.
func (s *Socket) openOut() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.closed && (s.out.f != nil || s.out.Open(s.fd, unix.EPOLLOUT))
}

// WaitWritable sleeps until the socket may have room, or is closed. [writer]
func (s *Socket) WaitWritable() {
	if !s.openOut() {
		time.Sleep(time.Millisecond) // closed, or the process has no descriptor left
		return
	}
	s.out.raw.Read(s.writable)
}

// writable is what a writer waits for in the callback of s.out.
func (s *Socket) writable(uintptr) bool { return s.out.Ready(s.fd) }

// Close gives the descriptors back and wakes the reader and the writer if they
// sleep. Neither uses the socket any more. With reset the peer is told by a
// reset, and what it has not been sent is dropped.
func (s *Socket) Close(reset bool) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.closed = true
	s.mu.Unlock()
	s.in.close() // these wait until the sleepers have left
	s.out.Close()
	if reset {
		unix.SetsockoptLinger(s.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	}
	unix.Close(s.fd)
}

// CloseWrite ends the sending direction.
func (s *Socket) CloseWrite() {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if !s.closed {
		unix.Shutdown(s.fd, unix.SHUT_WR)
	}
}

// Control calls f with the descriptor, for socket options. The error is
// net.ErrClosed after Close.
func (s *Socket) Control(f func(fd uintptr)) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return net.ErrClosed
	}
	f(uintptr(s.fd))
	return nil
}

// Handle returns nc, whose descriptor is s now, for addresses and socket
// options.
func Handle(nc net.Conn, s *Socket) net.Conn { return handle{nc, s} }

type handle struct {
	net.Conn
	s *Socket
}

var _ syscall.Conn = handle{}

func (h handle) SyscallConn() (syscall.RawConn, error) { return rawHandle{h.s}, nil }

type rawHandle struct{ s *Socket }

func (h rawHandle) Control(f func(fd uintptr)) error { return h.s.Control(f) }
func (rawHandle) Read(func(uintptr) bool) error      { return net.ErrClosed }
func (rawHandle) Write(func(uintptr) bool) error     { return net.ErrClosed }
