package frameio

import (
	"net"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A socket is a stream's descriptor, taken away from the runtime. The runtime
// watches every descriptor of package net all the time, and each message to
// or from a consumer that polls would wake a thread for nothing, which costs
// as much as the message. Here a descriptor is watched only while somebody
// sleeps on it.
type socket struct {
	fd  int
	in  edge
	out watch

	mu     sync.RWMutex // held by those without a role while they use fd
	closed bool         // guarded by mu; fd is closed when nobody can be using it any more
}

// takeSocket makes the descriptor of nc ours and closes nc; nil if nc has
// none, or none can be made. Nothing may be under way on nc.
func takeSocket(nc net.Conn) *socket {
	if o, ok := nc.(*owned); ok {
		return o.s
	}
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return nil
	}
	s := dup(sc)
	if s != nil {
		nc.Close()                    // the stream lives on in the other descriptor
		unix.SetNonblock(s.fd, false) // see sysReadv
	}
	return s
}

// dup returns a socket for another descriptor of sc's, or nil.
func dup(sc syscall.Conn) *socket {
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil
	}
	s := &socket{fd: -1}
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

// openIn makes what a reader sleeps on, unless it is there: a connection that
// ends soon does without. It is false if the socket is closed, or if the process
// has no descriptor left.
func (s *socket) openIn() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.closed && (s.in.f != nil || s.in.open(s.fd))
}

// openOut is openIn for the writer.
func (s *socket) openOut() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.closed && (s.out.f != nil || s.out.open(s.fd, unix.EPOLLOUT))
}

// startle has the reader return with os.ErrDeadlineExceeded, if it waits or is
// about to. It is false if there is nothing yet that it might wait at.
func (s *socket) startle() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.in.f == nil {
		return false
	}
	s.in.startle()
	return true
}

// close gives the descriptors back. Nobody uses fd any more; who sleeps is
// woken.
func (s *socket) close(reset bool) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.closed = true
	s.mu.Unlock()
	s.in.close() // these wait for who is woken
	s.out.close()
	if reset {
		unix.SetsockoptLinger(s.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	}
	unix.Close(s.fd)
}

func (s *socket) closeWrite() {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if !s.closed {
		unix.Shutdown(s.fd, unix.SHUT_WR)
	}
}

// waitWritable sleeps until the socket may have room, or is closed. [send
// role]
func (s *socket) waitWritable() {
	if !s.openOut() {
		time.Sleep(time.Millisecond) // closed, or the process has no descriptor left
		return
	}
	s.out.raw.Read(s.writable)
}

// writable is what a writer waits for in the callback of s.out.
func (s *socket) writable(uintptr) bool {
	if s.out.armed {
		s.out.forget()
		return true
	}
	return !s.out.arm(s.fd)
}

// A nest is an epoll instance for one descriptor, which the runtime's poller
// watches in turn: it hears of every arrival that the instance asks for.
type nest struct {
	f    *os.File
	raw  syscall.RawConn
	epfd int
}

func (n *nest) open(fd int, events uint32) bool {
	epfd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return false
	}
	unix.SetNonblock(epfd, true)
	n.epfd = epfd
	f := os.NewFile(uintptr(epfd), "epoll")
	if err = unix.EpollCtl(epfd, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events}); err == nil {
		n.raw, err = f.SyscallConn()
	}
	if err != nil {
		f.Close()
		return false
	}
	n.f = f
	return true
}

func (n *nest) close() {
	if n.f != nil {
		n.f.Close()
	}
}

func (n *nest) ask(fd int, events uint32) bool {
	ev := unix.EpollEvent{Events: events}
	return epollCtl(n.epfd, unix.EPOLL_CTL_MOD, fd, &ev)
}

// An edge wakes its waiter whenever something has arrived since it was armed,
// until it is disarmed: who waits long asks once. What was there before need
// not be reported, so the waiter arms it and then reads until there is
// nothing, in the callback of raw, where it can't miss what the runtime's
// poller reports meanwhile.
type edge struct {
	nest
	armed bool // owned by who waits
}

func (e *edge) open(fd int) bool { return e.nest.open(fd, 0) }

func (e *edge) arm(fd int) bool {
	if !e.armed {
		e.armed = e.ask(fd, unix.EPOLLIN|unix.EPOLLRDHUP)
	}
	return e.armed
}

// disarm keeps arrivals from waking anybody. An end of the stream may.
func (e *edge) disarm(fd int) {
	if e.armed {
		e.armed = !e.ask(fd, 0)
	}
}

// startle has who waits, or is about to, return with os.ErrDeadlineExceeded.
func (e *edge) startle() { e.f.SetReadDeadline(time.Unix(1, 0)) }

// calm ends that.
func (e *edge) calm() { e.f.SetReadDeadline(time.Time{}) }

// A watch waits for one kind of readiness of a descriptor. It reports once
// per arm.
type watch struct {
	nest
	events uint32

	// Owned by who waits.
	armed bool // arm was called since the last forget
	stale bool // the kernel may still report what was asked for before
}

func (w *watch) open(fd int, events uint32) bool {
	// Errors and hang-ups are reported whatever was asked for, so there may
	// be a report before the first arm.
	w.events, w.stale = events|unix.EPOLLONESHOT, true
	return w.nest.open(fd, unix.EPOLLONESHOT)
}

// arm asks to be woken as soon as fd is ready, which may be now. It is false
// if that can't be done. It is called from where the waiter can't miss what
// the runtime's poller reports meanwhile.
func (w *watch) arm(fd int) bool {
	if w.stale {
		// A report that nobody has taken would keep the next one from
		// being made.
		w.stale = false
		w.take()
	}
	w.armed = w.ask(fd, w.events)
	return w.armed
}

// forget ends what arm has begun, whether it was reported or not.
func (w *watch) forget() {
	if w.armed {
		w.armed = false
		w.stale = !w.take()
	}
}

// take tells whether there was a report.
func (w *watch) take() bool {
	var ev unix.EpollEvent
	n, _, e := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(w.epfd), uintptr(unsafe.Pointer(&ev)), 1, 0, 0, 0)
	return e == 0 && n == 1
}

// A handle is what remains of a net.Conn whose descriptor was taken:
// addresses and socket options.
type handle struct {
	net.Conn
	s *socket
}

var _ syscall.Conn = handle{}

func (h handle) SyscallConn() (syscall.RawConn, error) { return rawHandle(h), nil }

type rawHandle handle

func (h rawHandle) Control(f func(fd uintptr)) error { return handle(h).control(f) }

func (h handle) control(f func(fd uintptr)) error {
	h.s.mu.RLock()
	defer h.s.mu.RUnlock()
	if h.s.closed {
		return net.ErrClosed
	}
	f(uintptr(h.s.fd))
	return nil
}

func (rawHandle) Read(func(uintptr) bool) error  { return net.ErrClosed }
func (rawHandle) Write(func(uintptr) bool) error { return net.ErrClosed }
