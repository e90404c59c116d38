package sock

import (
	"errors"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/internal/perturb"
	"viaduct/samehost"
)

// A Socket is the descriptor of a stream, taken away from the runtime. It has
// one reader and one writer at a time. Its reads and writes never wait.
//
// Its bytes may go through shared memory instead: then fd is what is readable when
// something has arrived. A nil check in each method is all that this costs a plain
// socket; an interface would cost a call that can't be inlined.
type Socket struct {
	fd    int
	in    arrivals
	out   Watch
	rings *rings // nil: the bytes go through fd

	used atomic.Bool // something was read or written, or an engine has the socket

	mu      perturb.RWMutex // held while fd is used outside the reader and the writer
	closed  bool            // guarded by mu; fd is closed when nothing can be using it any more
	verdict chan struct{}   // closed when a dialer that was granted shared memory has committed or left; guarded by mu
	why     string          // why the bytes do not go through shared memory; guarded by mu
}

// Take makes the descriptor of nc a Socket and closes nc; nil if nc has none,
// or the process can have no other. Nothing may be under way on nc.
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

// adopt has the bytes go through shared memory from now on, if none have gone
// another way. The rings belong to s then. If a reader may sleep at the TCP socket, they
// were asked to ring before the peer could write: it sleeps at the bell from here on.
func (s *Socket) adopt(r *rings) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.used.Load() {
		return net.ErrClosed
	}
	if s.in.f != nil && !s.in.move(s.fd, r.bell) {
		return unix.ENOMEM
	}
	if s.out.f != nil { // at which the dialer has waited for the connection
		s.out.Close()
		s.out = Watch{}
	}
	r.tcp, s.fd, s.rings = s.fd, r.bell, r
	return nil
}

// decide has reads, writes, and an engine that takes the socket, wait for a verdict, which is the function that it returns: a
// dialer was granted shared memory, and may commit or leave. While there is no verdict on another grant, the error is
// ErrWouldBlock unless decide is to wait for that.
func (s *Socket) decide(wait bool) (decided func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.verdict != nil && !s.closed {
		if !wait {
			return nil, ErrWouldBlock
		}
		ch := s.verdict
		s.mu.Unlock()
		<-ch
		s.mu.Lock()
	}
	if s.closed || s.used.Load() || s.rings != nil {
		return nil, errors.New(whyBegun)
	}
	ch := make(chan struct{})
	s.verdict = ch
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.verdict = nil
		close(ch)
	}, nil
}

// rlockDecided takes mu for reading as soon as no verdict is waited for.
func (s *Socket) rlockDecided() {
	s.mu.RLock()
	for s.verdict != nil && !s.closed {
		ch := s.verdict
		s.mu.RUnlock()
		<-ch
		s.mu.RLock()
	}
}

func (s *Socket) setWhy(why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.why = why
}

func (s *Socket) path() samehost.Path {
	s.mu.RLock()
	defer s.mu.RUnlock()
	switch {
	case s.rings != nil:
		return samehost.Path{SharedMemory: true}
	case s.why == "":
		return samehost.Path{Why: whyNotAsked}
	}
	return samehost.Path{Why: s.why}
}

// ByKernel tells that the kernel moves the bytes, which reports memory that is gone
// by EFAULT: through shared memory the process moves them itself, and faults.
func (s *Socket) ByKernel() bool { return s.rings == nil }

// Detach makes what was written independent of the memory that it was written from, of
// which the peer may be going to copy bytes that no write has returned. [writer]
func (s *Socket) Detach() {
	if r := s.rings; r != nil {
		r.out.Detach()
	}
}

// Owes reports whether a write has taken bytes that it did not return, since the peer is to
// copy them from where they are. [writer]
func (s *Socket) Owes() bool { return s.rings != nil && s.rings.out.Owed() > 0 }

// Roomy reports whether a write through shared memory would not have to wait. [writer]
func (s *Socket) Roomy() bool { return s.rings.out.Roomy() || s.rings.gone.Load() }

// Apart reports whether the next bytes have arrived, and are where a Read that begins before
// them leaves them. [reader]
func (s *Socket) Apart() bool { return s.rings != nil && s.rings.in.Apart() }

// Taken is how many bytes have been read, of a Socket whose bytes the kernel does not move. The
// difference of two is what a read in between has read that a fault has broken off. [reader]
func (s *Socket) Taken() uint64 { return s.rings.in.Taken() }

// FD returns the descriptor that is readable when something has arrived. It is
// valid until Close.
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
func (s *Socket) Arm() bool {
	if !s.in.arm(s.fd) {
		return false
	}
	s.Ask()
	return true
}

// Ask is for whatever watches FD by other means than Arm and Sleep. If it is true,
// the next arrival is reported there, but what came before need not be: the caller
// reads until nothing is there. If it is false, everything is reported. [reader]
func (s *Socket) Ask() bool {
	if s.rings == nil {
		return false
	}
	s.rings.ask()
	return true
}

// Polls reports whether looking for arrivals takes no system call.
func (s *Socket) Polls() bool { return s.rings != nil }

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
	fd, events := s.fd, uint32(unix.EPOLLOUT)
	if r := s.rings; r != nil {
		fd, events = r.room, unix.EPOLLIN|unix.EPOLLRDHUP
	}
	return !s.closed && (s.out.f != nil || s.out.Open(fd, events))
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

// CloseWrite ends the sending direction.
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

// Control calls f with the descriptor of the TCP connection, for socket options.
// The error is net.ErrClosed after Close.
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

// Handle returns nc, whose descriptor is s now, for addresses and socket
// options.
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
